"""Representations of a stage: its commands before emission, and its executable programs and memory image, whose
addresses can be relocated so that several executables of one model share memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from compiler.codegen.buffer_allocation import Peak
from compiler.codegen.semaphores import Issued
from compiler.codegen.split_programs import ProgramPart
from compiler.commands.commands import CircularBuffer, Command, TensorLayout
from compiler.ir.identity import identity
from hw.config import MlaConfig
from hw.isa.micro_instruction import MAX_OPERANDS, OPERAND_BASE, MicroOp, decode, encode
from hw.isa.program import Program

if TYPE_CHECKING:
    from compiler.lowering.lower import LoweredNetwork


@dataclass(frozen=True, eq=False)
class CommandStream:
    """Commands of a network or stage before programs are emitted.

    Parameters
    ----------
    lowered : LoweredNetwork
        Layers of the network or stage.
    layouts : dict
        Layout of each tensor, by name.
    commands : list of Command
        Commands in order, with addresses relative to buffers.
    starts : dict
        Start address of each buffer, in units of the memory.
    issued : list of Issued
        The same commands with resolved field values and semaphores.
    """

    lowered: "LoweredNetwork"
    layouts: dict[str, TensorLayout]
    commands: list[Command]
    starts: dict[CircularBuffer, int]
    issued: list[Issued]


@identity("Regions", "image", "windows", "base", "modulus")
@dataclass(frozen=True)
class Regions:
    """Parts of an image that a program can compute again, and how to tell which one it has computed.

    The number of instructions that the program executes, minus `base`, modulo `modulus`, is 0 if no input has changed.
    Otherwise, it exceeds the number of windows by one, and by one more and the number of the window if pixels have
    changed.

    Parameters
    ----------
    image : (int, int)
        Height and width of the image in pixels.
    windows : tuple of (int, int)
        Height and width of each window in pixels.
    base, modulus : int
        Numbers of instructions.
    """

    image: tuple[int, int]
    windows: tuple[tuple[int, int], ...]
    base: int
    modulus: int

    def computed(self, instructions: int) -> tuple[int, int] | None:
        """Return the height and width of what a run has computed, in pixels; None if no input has changed."""
        number = (instructions - self.base) % self.modulus - len(self.windows) - 1
        if number == -len(self.windows) - 1:
            return None
        return self.windows[number - 1] if 1 <= number <= len(self.windows) else (0, 0)


@dataclass(frozen=True)
class StageExecutable:
    """Programs and memory image of a stage.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the target machine.
    parts : tuple of ProgramPart
        Programs in order. Operand 0 is the address of the model's memory; the addresses of inputs and outputs follow.
    tags : tuple of int
        Counter tag of each layer; adjacent layers share tags if there are more layers than tags.
    image : array of uint8
        Initial contents of the model's memory; zeros in the regions of other stages.
    memory : int
        Size of the model's memory in bytes.
    operand_numbers : dict
        Index of the operand that holds the address of each input and output, by name.
    peak : Peak or None
        Peak use of scratchpad and accumulator; None if unknown.
    mutable : int
        Number of bytes at the end of the image that the programs may change.
    regions : Regions or None
        Parts of an image that the program computes again if they have changed; None: it computes everything.
    """

    config: MlaConfig
    parts: tuple[ProgramPart, ...]
    tags: tuple[int, ...]
    image: NDArray[np.uint8]
    memory: int
    operand_numbers: dict[str, int]
    peak: Peak | None = None
    mutable: int = 0
    regions: Regions | None = None

    @property
    def constants(self) -> int:
        """Number of bytes at the start of the memory that the programs may not change."""
        return self.image.size - self.mutable

    def __repr__(self) -> str:
        return f"<StageExecutable: {len(self.parts)} programs for N = {self.config.n}, {self.memory:,} bytes of memory>"

    @property
    def programs(self) -> tuple[Program, ...]:
        """Programs that run if no guard holds."""
        return tuple(part.program for part in self.parts)

    @property
    def all_programs(self) -> tuple[Program, ...]:
        """All programs; guarded programs precede the program that they replace."""
        return tuple(program for part in self.parts for program in part.programs)

    @property
    def program_names(self) -> tuple[str, ...]:
        """Name of the first program of each layer; a layer that only loads is part of the preceding program."""
        names = {layer: part.program.name for part in reversed(self.parts) for layer in part.layers}
        out: list[str] = []
        for layer in range(len(self.tags)):
            out.append(names.get(layer, out[-1] if out else self.parts[0].program.name))
        return tuple(out)


#: Alignment of the constants of executables that share memory, in bytes.
_RELOCATION_ALIGN = 64


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
        Program generated by the compiler: only `set` reads operands, and adds constants to these addresses.
    memory : Relocation
        Relocation of the model's memory, whose address is operand 0.
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
    """Lay out variants that share a work area because only one variant runs at a time.

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
    """Round a size or offset up to the alignment."""
    return -(-size // _RELOCATION_ALIGN) * _RELOCATION_ALIGN
