"""Memory layout shared by several executables of one model, and relocation of programs into it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from compiler.codegen.executable import StageExecutable
from hw.isa.micro_instruction import MAX_OPERANDS, OPERAND_BASE, MicroOp, decode, encode
from hw.isa.program import Program

_ALIGN = 64


@dataclass(frozen=True)
class Relocation:
    """Relocation of one variant's memory.

    Parameters
    ----------
    constants : int
        Size of the variant's constants in bytes.
    constants_offset, work_offset : int
        New offsets of the constants and of the work area in bytes.
    """

    constants: int
    constants_offset: int
    work_offset: int

    def relocate(self, address: int) -> int:
        """Return the new address of a byte."""
        if address < self.constants:
            return address + self.constants_offset
        return address + self.work_offset - align_up(self.constants)


def rebased(program: Program, memory: Relocation, moved: Mapping[int, tuple[int, int]]) -> Program:
    """Relocate the addresses of a program.

    Parameters
    ----------
    program : Program
        Program made by the compiler: only `set` reads operands, each an address to which it adds a constant.
    memory : Relocation
        Relocation of the model's memory, operand 0.
    moved : dict
        For each other operand, the operand that replaces it and the byte offset to add.
    """
    return replace(program, words=tuple(_word(word, memory, moved) for word in program.words))


def _word(word: int, memory: Relocation, moved: Mapping[int, tuple[int, int]]) -> int:
    values = decode(word)
    op, index = MicroOp(values.pop("opcode")), values["b"] - OPERAND_BASE
    if op is not MicroOp.SET or not 0 <= index < MAX_OPERANDS:
        return word
    if index == 0:
        return encode(op, **values | {"imm": memory.relocate(values["imm"])})
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
    moved : list of Relocation
        Relocation of each variant.
    more : int
        Offset of the additional constants.
    """

    image: NDArray[np.uint8]
    size: int
    moved: list[Relocation]
    more: int


def share_memory(
    codes: Sequence[StageExecutable], more: NDArray[np.uint8] | None = None, start: int = 0
) -> VariantMemory:
    """Lay out variants that share a work area, of which one runs at a time.

    The layout begins with `start` reserved bytes; `more` is the array of additional constants.
    """
    end, offsets = align_up(start), []
    for code in codes:
        offsets.append(end)
        end += align_up(code.image.size)
    size = 0 if more is None else more.size
    work_offset = end + align_up(size)
    image = np.zeros(end + size, np.uint8)
    for code, offset in zip(codes, offsets, strict=True):
        image[offset : offset + code.image.size] = code.image
    if more is not None:
        image[end:] = more
    moved = [
        Relocation(code.image.size, offset, work_offset) for code, offset in zip(codes, offsets, strict=True)
    ]
    work = max(code.memory - align_up(code.image.size) for code in codes)
    return VariantMemory(image, work_offset + work, moved, end)


def align_up(size: int) -> int:
    """Round an offset up to the alignment."""
    return -(-size // _ALIGN) * _ALIGN
