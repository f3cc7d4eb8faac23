"""Unit commands in the queues of the golden model."""

from dataclasses import dataclass, field
from functools import lru_cache

from cosim.semantics.command_fields import CommandFields
from hw.isa.enums import Unit


@dataclass
class Command:
    """Queued unit command, with its semaphores and its origin.

    Parameters
    ----------
    unit : Unit
        Unit that executes the command.
    config : CommandFields
        Values of the command's fields at issue.
    wait, signal : int
        Mask of semaphores to wait for (bit `producer << 2 | index`), and mask of semaphores to signal (bit
        `consumer << 2 | index`; consumer 4 is the sequencer).
    tag, macro : int
        Tag in effect at issue, and number of the macro-instruction that issued the command.
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
        self.waits, self.signals = _bits(self.wait), _bits(self.signal)


@lru_cache(maxsize=1 << 12)
def _bits(mask: int) -> tuple[int, ...]:
    """Return the positions of the bits of a mask that are 1."""
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)
