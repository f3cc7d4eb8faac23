"""A network's layers, layouts and commands before its programs are written."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from compiler.codegen.semaphores import Issued
from compiler.commands.commands import CircularBuffer, Command
from compiler.commands.tensor_layout import TensorLayout

if TYPE_CHECKING:
    from compiler.lowering.lower import LoweredNetwork


@dataclass(frozen=True, eq=False)
class CommandStream:
    """A network, or a stage of one, between its schedule and its programs.

    Parameters
    ----------
    lowered : LoweredNetwork
        Layers of the network or stage.
    homes : dict
        Layout of each tensor, by name.
    commands : list of Command
        Commands in order, with addresses relative to rings.
    starts : dict
        Start address of each ring, in units of its memory.
    issued : list of Issued
        The same commands with all their numbers and semaphores.
    """

    lowered: "LoweredNetwork"
    homes: dict[str, TensorLayout]
    commands: list[Command]
    starts: dict[CircularBuffer, int]
    issued: list[Issued]
