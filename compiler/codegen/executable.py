"""Representations of a stage: its commands before emission, and its executable programs and memory image."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from compiler.codegen.buffer_allocation import Peak
from compiler.codegen.semaphores import Issued
from compiler.codegen.split_programs import ProgramPart
from compiler.commands.commands import CircularBuffer, Command, TensorLayout
from hw.config import MlaConfig
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
    """

    config: MlaConfig
    parts: tuple[ProgramPart, ...]
    tags: tuple[int, ...]
    image: NDArray[np.uint8]
    memory: int
    operand_numbers: dict[str, int]
    peak: Peak | None = None

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
