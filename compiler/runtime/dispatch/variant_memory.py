"""Memory layout shared by several executables of one model, and programs rebased into it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from compiler.codegen.executable import StageExecutable
from hw.isa.micro_instruction import MAX_OPERANDS, OPERAND_BASE, MicroOp, decode, encode
from hw.isa.program import Program

_ALIGN = 64


@dataclass(frozen=True)
class Moved:
    """Relocation of one variant's memory.

    Parameters
    ----------
    constants : int
        Size of the variant's constants in bytes.
    fixed, passing : int
        New offsets of the constants and of the work area.
    """

    constants: int
    fixed: int
    passing: int

    def to(self, address: int) -> int:
        """New address of a byte."""
        return address + (self.fixed if address < self.constants else self.passing - align_up(self.constants))


def rebased(program: Program, memory: Moved, moved: Mapping[int, tuple[int, int]]) -> Program:
    """Relocate the addresses of a program.

    Parameters
    ----------
    program : Program
        Program made by the compiler: only `set` reads operands, each an address to which it adds a constant.
    memory : Moved
        Relocation of the model's memory, operand 0.
    moved : dict
        For each other operand, the operand that replaces it and the byte offset that is added.
    """
    return replace(program, words=tuple(_word(word, memory, moved) for word in program.words))


def _word(word: int, memory: Moved, moved: Mapping[int, tuple[int, int]]) -> int:
    values = decode(word)
    op, index = MicroOp(values.pop("opcode")), values["b"] - OPERAND_BASE
    if op is not MicroOp.SET or not 0 <= index < MAX_OPERANDS:
        return word
    if index == 0:
        return encode(op, **values | {"imm": memory.to(values["imm"])})
    operand, offset = moved[index]
    return encode(op, **values | {"b": OPERAND_BASE + operand, "imm": values["imm"] + offset})


@dataclass(frozen=True, eq=False)
class VariantMemory:
    """Memory layout of several variants.

    Parameters
    ----------
    image : array of uint8
        Constants of all variants.
    size : int
        Total size in bytes.
    moved : list of Moved
        Relocation of each variant.
    more : int
        Offset of the additional constants.
    """

    image: NDArray[np.uint8]
    size: int
    moved: list[Moved]
    more: int


def together(
    codes: Sequence[StageExecutable], more: NDArray[np.uint8] | None = None, start: int = 0
) -> VariantMemory:
    """Lay out variants of which one runs at a time, after `start` reserved bytes, with `more` constants."""
    at, fixed = align_up(start), []
    for code in codes:
        fixed.append(at)
        at += align_up(code.image.size)
    further, size = at, 0 if more is None else more.size
    passing = at + align_up(size)
    image = np.zeros(further + size, np.uint8)
    for code, place in zip(codes, fixed, strict=True):
        image[place : place + code.image.size] = code.image
    if more is not None:
        image[further:] = more
    moved = [Moved(code.image.size, place, passing) for code, place in zip(codes, fixed, strict=True)]
    work = max(code.memory - align_up(code.image.size) for code in codes)
    return VariantMemory(image, passing + work, moved, further)


def align_up(size: int) -> int:
    """Round an offset up to the alignment."""
    return -(-size // _ALIGN) * _ALIGN
