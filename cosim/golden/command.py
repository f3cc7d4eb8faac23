"""Unit commands as the golden model keeps them."""

from dataclasses import dataclass, field

from cosim.semantics.command_fields import CommandFields
from hw.isa.enums import Unit


@dataclass
class Command:
    """A unit command and what travels with it.

    Parameters
    ----------
    unit : Unit
        Engine that runs it.
    config : Config
        Snapshot of the fields.
    wait, signal : int
        Semaphores to take (`producer << 2 | index`) and to give (`consumer << 2 | index`, 4 the sequencer).
    tag, macro : int
        Tag and number of the macro-instruction that issued it.
    """

    unit: Unit
    config: CommandFields
    wait: int = 0
    signal: int = 0
    tag: int = 0
    macro: int = 0
    waits: tuple[int, ...] = field(init=False)
    signals: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.waits = tuple(i for i in range(16) if self.wait >> i & 1)
        self.signals = tuple(i for i in range(20) if self.signal >> i & 1)
