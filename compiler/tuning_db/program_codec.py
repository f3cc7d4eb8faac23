"""Compact binary encoding of stage executables for fast loading from the database.

A JSON header describes the contents; it is followed by the programs (each with its CRC-32) and the memory images.
"""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.codegen.executable import StageExecutable
from compiler.codegen.split_programs import ProgramPart
from compiler.ir.identity import stored
from compiler.tuning_db.json_codec import read_config
from compiler.util.checks import Fields, parsed, written
from hw.config import MlaConfig
from hw.isa.micro_instruction import MAX_OPERANDS
from hw.isa.program import Program

_MAGIC = b"MLAC\1"
_LENGTH = struct.Struct("<I")
_START = len(_MAGIC) + _LENGTH.size
_MAX_MEMORY_BYTES = 1 << 32


def to_bytes(head: dict[str, Any], codes: Sequence[StageExecutable]) -> bytes:
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


def from_bytes(data: bytes) -> tuple[Fields, tuple[StageExecutable, ...]]:
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
