"""What is known of a network before its programs are written."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from compiler.codegen.command import Command, Ring
from compiler.codegen.home import Home
from compiler.codegen.sync import Issued

if TYPE_CHECKING:
    from compiler.lower.lower import Lowered


@dataclass(frozen=True, eq=False)
class Making:
    """A network, or a stage of one, between its schedule and its programs.

    Parameters
    ----------
    lowered : Lowered
        Its layers.
    homes : dict
        Where tensors live.
    commands : list of Command
        In order, over rings.
    starts : dict
        Where rings start, in units of their memory.
    issued : list of Issued
        The same commands with all their numbers and semaphores.
    """

    lowered: "Lowered"
    homes: dict[str, Home]
    commands: list[Command]
    starts: dict[Ring, int]
    issued: list[Issued]
