"""Unit commands as the golden model keeps them."""

from dataclasses import dataclass, field
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


class Config(SimpleNamespace):
    """Every field of a command as an attribute, the packed words split into their parts."""


def unpack_fields(unit: Unit, values: list[int]) -> Config:
    """Fields of a command from the raw values the sequencer holds, in the order of the unit's table."""
    out: dict[str, int] = {}
    for item, value in zip(UNIT_FIELDS[unit], values, strict=True):
        packed = PACKED[unit].get(item.name)
        if packed is None:
            out[item.name] = value
        else:
            out |= packed.unpack(value)
    return Config(**out)


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
