"""Best programs in the database: one per key, within a total size limit.

Stage executables have a compact binary encoding, for fast loading: a JSON header that describes the contents, followed
by the programs (each with its CRC-32) and the memory images.
"""

import logging
import struct
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from sqlalchemy import Connection, bindparam, func, select

from compiler.codegen.executable import StageExecutable
from compiler.codegen.split_programs import ProgramPart
from compiler.ir.identity import stored
from compiler.profile.measurement import Measurement
from compiler.tuning_db import json_codec
from compiler.tuning_db.connection import (
    MAX_PROGRAM_BYTES,
    PROGRAMS,
    VERSIONS,
    SealedRows,
    entries,
    key_conditions,
    remove,
)
from compiler.tuning_db.entries import Entry, EntryKey
from compiler.tuning_db.json_codec import read_config
from compiler.util.checks import DAMAGE, Fields, parsed, written
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.micro_instruction import MAX_OPERANDS
from hw.isa.program import Program

_log = logging.getLogger(__name__)

#: Queries built once, so that SQLAlchemy caches their compiled form.
_NUMBERS = select(PROGRAMS.c.id).where(*key_conditions(PROGRAMS)).order_by(PROGRAMS.c.cost, PROGRAMS.c.id)
_ONE = entries(PROGRAMS, MAX_PROGRAM_BYTES).where(PROGRAMS.c.id == bindparam("number"))

_WRITER_LOCK = select(VERSIONS.c.version).with_for_update()


def to_bytes(entry: Entry) -> bytes:
    """Encode an entry and check that it can be decoded.

    Raises
    ------
    InputError
        The measurement is not valid, or a value cannot be stored.
    """
    if not entry.result.valid:
        raise InputError(
            "a program is stored only if its outputs were correct and its cycles not below the lower bound"
        )
    values = json_codec.key_values(entry.key) | {
        "schedule": json_codec.schedule_values(entry.schedule),
        "result": json_codec.result_values(entry.result),
        "cost": entry.cost,
        "when": entry.when or time.time(),
        "proposers": entry.proposers,
    }
    try:
        data = encode(values, entry.codes)
        read(data)
    except DAMAGE as error:
        raise InputError(f"the database cannot store this program: {error}") from None
    return data


def read(data: bytes) -> Entry:
    """Decode an entry from its data."""
    fields, made = decode(data)
    result = json_codec.read_result(fields.get("result"))
    if not isinstance(result, Measurement) or not result.valid or not made:
        raise ValueError("a program's outputs must be correct and its cycles not below the lower bound")
    return Entry(
        key=json_codec.read_key(fields),
        schedule=json_codec.read_schedule(fields.get("schedule")),
        cost=fields.number("cost"),
        result=result,
        codes=made,
        when=fields.number("when"),
        proposers=_proposers(fields),
    )


def _proposers(fields: Fields) -> dict[str, str]:
    """Return the proposers of the layers' schedules, which entries of earlier versions do not name."""
    found = fields.values.get("proposers", {})
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise ValueError("the proposers of a program must be texts")
    return found


def best(rows: SealedRows, key: EntryKey) -> Entry | None:
    """Return the best program of a key that this user measured; None if there is none."""
    return rows.work(lambda connection: _best(rows, connection, key))


def put(rows: SealedRows, entry: Entry, room: int) -> bool:
    """Write a program unless a stored program is at least as good; return True if it was written.

    Older programs are removed if the total size exceeds `room` bytes.
    """
    data = to_bytes(entry)
    if len(data) > min(room, MAX_PROGRAM_BYTES):
        _log.warning(
            "a program of %s bytes is too large for the database and is not stored", f"{len(data):,}"
        )
        return False
    columns = json_codec.key_values(entry.key) | {"cost": entry.cost}

    def work(connection: Connection) -> bool:
        # Serialize writers, so that concurrent updates are visible. SQLite always does.
        connection.execute(_WRITER_LOCK)
        known = _best(rows, connection, entry.key)
        if known is not None and known.cost <= entry.cost:
            return False
        _drop(connection, entry.key)
        rows.add(connection, PROGRAMS, data, columns)
        _prune(connection, room)
        return True

    return rows.write(work)


def drop(rows: SealedRows, key: EntryKey) -> None:
    """Remove the program of a key."""
    rows.write(lambda connection: _drop(connection, key))


def _best(rows: SealedRows, connection: Connection, key: EntryKey) -> Entry | None:
    tried: list[int] = []
    # Another process may replace a program between the two queries, which are then repeated.
    while (numbers := _numbers(connection, key)) != tried:
        for number in numbers:
            for entry, trusted in rows.read(connection, PROGRAMS, _ONE, read, {"number": number}):
                if trusted and entry.key == key:
                    return entry
        tried = numbers
    return None


def _numbers(connection: Connection, key: EntryKey) -> list[int]:
    return list(connection.scalars(_NUMBERS, json_codec.key_values(key)))


def _drop(connection: Connection, key: EntryKey) -> None:
    remove(connection, PROGRAMS, _numbers(connection, key))


def _prune(connection: Connection, room: int) -> None:
    """Remove the oldest programs until the total size is within the limit; their schedules remain in the trials."""
    query = select(PROGRAMS.c.id, func.length(PROGRAMS.c.data)).order_by(PROGRAMS.c.id.desc())
    total, late = 0, []
    for number, size in connection.execute(query):
        total += size or 0
        if total > room:
            late.append(number)
    remove(connection, PROGRAMS, late)


_MAGIC = b"MLAC\1"
_LENGTH = struct.Struct("<I")
_START = len(_MAGIC) + _LENGTH.size
_MAX_MEMORY_BYTES = 1 << 32


def encode(head: dict[str, Any], codes: Sequence[StageExecutable]) -> bytes:
    """Encode JSON header fields and executables as bytes."""
    blobs: list[bytes] = []
    stages = []
    for code in codes:
        programs = [program.to_bytes() for program in code.programs]
        blobs += [*programs, code.image.tobytes()]
        stages.append(
            {
                "config": stored(code.config),
                "programs": [len(each) for each in programs],
                "layers": [part.layers for part in code.parts],
                "tags": code.tags,
                "image": code.image.size,
                "memory": code.memory,
                "places": code.operand_numbers,
            }
        )
    text = written(head | {"codes": stages})
    return b"".join([_MAGIC, _LENGTH.pack(len(text)), text, *blobs])


def decode(data: bytes) -> tuple[Fields, tuple[StageExecutable, ...]]:
    """Decode header fields and executables; the memory images are read-only views of the data.

    Raises
    ------
    ValueError, InputError
        The bytes are not a valid encoding.
    """
    if data[: len(_MAGIC)] != _MAGIC or len(data) < _START:
        raise ValueError("not an encoded program")
    (length,) = _LENGTH.unpack_from(data, len(_MAGIC))
    if length > len(data) - _START:
        raise ValueError("cut short")
    head = Fields(parsed(data[_START : _START + length]))
    reader = _Reader(data, _START + length)
    codes = tuple(reader.code(Fields(each)) for each in head.sequence("codes"))
    reader.finish()
    return head, codes


class _Reader:
    """Sequential reader of binary blobs."""

    def __init__(self, data: bytes, start: int):
        self.data, self.start = memoryview(data), start

    def read(self, size: int) -> memoryview:
        """Return the next `size` bytes."""
        if size > len(self.data) - self.start:
            raise ValueError("cut short")
        self.start += size
        return self.data[self.start - size : self.start]

    def finish(self) -> None:
        """Check that all bytes have been read."""
        if self.start != len(self.data):
            raise ValueError("bytes after its end")

    def code(self, fields: Fields) -> StageExecutable:
        """Read the next executable, which the given header fields describe."""
        config = read_config(fields.get("config"))
        programs = [self._program(config, _natural(size)) for size in fields.sequence("programs")]
        layers = [
            tuple(_natural(layer) for layer in _checked_list(each)) for each in fields.sequence("layers")
        ]
        image = np.frombuffer(self.read(fields.count("image")), np.uint8)
        tags, memory = tuple(_natural(tag) for tag in fields.sequence("tags")), fields.count("memory")
        places = fields.counts("places")
        if not programs or len(programs) != len(layers):
            raise ValueError("programs are missing")
        if not image.size <= memory < _MAX_MEMORY_BYTES or not all(tag < config.tags for tag in tags):
            raise ValueError("memory or tags out of range")
        if not all(layer < len(tags) for each in layers for layer in each):
            raise ValueError("a program refers to a missing layer")
        if not all(1 <= place < MAX_OPERANDS for place in places.values()):
            raise ValueError("an input or output has an invalid operand index")
        parts = tuple(ProgramPart(program, each) for program, each in zip(programs, layers, strict=True))
        return StageExecutable(config, parts, tags, image, memory, places)

    def _program(self, config: MlaConfig, size: int) -> Program:
        program = Program.from_bytes(bytes(self.read(size)))
        if len(program.words) > config.wis_words:
            raise ValueError("a program is longer than the instruction store")
        return program


def _checked_list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("layers must be a list")
    return value


def _natural(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("a size or index must be a non-negative integer")
    return value
