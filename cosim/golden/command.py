"""Unit commands as the golden model keeps them."""

from dataclasses import dataclass, field
from functools import lru_cache
from types import SimpleNamespace

from hw.isa.commands import PACKED_FIELDS, UNIT_FIELDS
from hw.isa.enums import Unit

#: For each unit, the packed words: field name -> layout.
PACKED = tuple(
    {
        name.split(".")[1]: packed
        for name, packed in PACKED_FIELDS.items()
        if name.startswith(unit.name.lower() + ".")
    }
    for unit in Unit
)
_NAMES = tuple(tuple(item.name for item in UNIT_FIELDS[unit]) for unit in Unit)


class Config(SimpleNamespace):
    """Every field of a command as an attribute, the packed words split into their parts."""


def unpack_fields(unit: Unit, values: list[int]) -> Config:
    """Fields of a command from the raw values the sequencer holds, in the order of the unit's table."""
    out = dict(zip(_NAMES[unit], values, strict=True))
    for name in PACKED[unit]:
        out |= _unpacked(unit, name, out.pop(name))
    return Config(**out)


@lru_cache(maxsize=1 << 12)
def _unpacked(unit: Unit, name: str, value: int) -> dict[str, int]:
    return PACKED[unit][name].unpack(value)


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
    config: Config
    wait: int = 0
    signal: int = 0
    tag: int = 0
    macro: int = 0
    waits: tuple[int, ...] = field(init=False)
    signals: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.waits = tuple(i for i in range(16) if self.wait >> i & 1)
        self.signals = tuple(i for i in range(20) if self.signal >> i & 1)
