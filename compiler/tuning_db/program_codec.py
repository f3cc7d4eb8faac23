"""Code as bytes: leaner than a compiled file, so that a program from the database is there at once.

A head of JSON says what there is; then come the programs (each with its CRC-32) and the images of the models' memories.
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
_MOST_MEMORY = 1 << 32


def to_bytes(head: dict[str, Any], codes: Sequence[StageExecutable]) -> bytes:
    """Values of JSON, and code."""
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
                "places": code.places,
            }
        )
    text = written(head | {"codes": stages})
    return b"".join([_MAGIC, _LENGTH.pack(len(text)), text, *blobs])


def from_bytes(data: bytes) -> tuple[Fields, tuple[StageExecutable, ...]]:
    """The values of JSON, and the code; images are read-only views of the data.

    Raises
    ------
    ValueError, InputError
        The bytes are nothing that `to_bytes` makes.
    """
    if data[: len(_MAGIC)] != _MAGIC or len(data) < _START:
        raise ValueError("no code")
    (length,) = _LENGTH.unpack_from(data, len(_MAGIC))
    if length > len(data) - _START:
        raise ValueError("cut short")
    head = Fields(parsed(data[_START : _START + length]))
    reader = _Reader(data, _START + length)
    codes = tuple(reader.code(Fields(each)) for each in head.sequence("codes"))
    reader.finish()
    return head, codes


class _Reader:
    """Takes blobs one after the other."""

    def __init__(self, data: bytes, start: int):
        self.data, self.start = memoryview(data), start

    def take(self, size: int) -> memoryview:
        """The next bytes."""
        if size > len(self.data) - self.start:
            raise ValueError("cut short")
        self.start += size
        return self.data[self.start - size : self.start]

    def finish(self) -> None:
        """There must be no more."""
        if self.start != len(self.data):
            raise ValueError("bytes after its end")

    def code(self, fields: Fields) -> StageExecutable:
        """The next code."""
        config = read_config(fields.get("config"))
        programs = [self._program(config, _natural(size)) for size in fields.sequence("programs")]
        layers = [
            tuple(_natural(layer) for layer in _checked_list(each)) for each in fields.sequence("layers")
        ]
        image = np.frombuffer(self.take(fields.count("image")), np.uint8)
        tags, memory = tuple(_natural(tag) for tag in fields.sequence("tags")), fields.count("memory")
        places = fields.counts("places")
        if not programs or len(programs) != len(layers):
            raise ValueError("programs are missing")
        if not image.size <= memory < _MOST_MEMORY or not all(tag < config.tags for tag in tags):
            raise ValueError("memory or tags out of range")
        if not all(layer < len(tags) for each in layers for layer in each):
            raise ValueError("a program is of a layer that there is not")
        if not all(1 <= place < MAX_OPERANDS for place in places.values()):
            raise ValueError("a place of an input or output is none")
        parts = tuple(ProgramPart(program, each) for program, each in zip(programs, layers, strict=True))
        return StageExecutable(config, parts, tags, image, memory, places)

    def _program(self, config: MlaConfig, size: int) -> Program:
        program = Program.from_bytes(bytes(self.take(size)))
        if len(program.words) > config.wis_words:
            raise ValueError("a program is longer than the instruction store")
        return program


def _checked_list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("layers must be a list")
    return value


def _natural(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("no natural number")
    return value
