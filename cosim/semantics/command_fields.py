"""Fields of unit commands: defaults, and values unpacked from the raw words that SET writes."""

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


class CommandFields(SimpleNamespace):
    """Every field of a command as an attribute, the packed words split into their parts."""


def unpack_fields(unit: Unit, values: list[int]) -> CommandFields:
    """Fields of a command from the raw values the sequencer holds, in the order of the unit's table."""
    out = dict(zip(_NAMES[unit], values, strict=True))
    for name in PACKED[unit]:
        out |= _unpacked(unit, name, out.pop(name))
    return CommandFields(**out)


@lru_cache(maxsize=1 << 12)
def _unpacked(unit: Unit, name: str, value: int) -> dict[str, int]:
    return PACKED[unit][name].unpack(value)


#: Raw field values of each unit at a program's start.
_DEFAULTS = tuple([f.default for f in UNIT_FIELDS[unit]] for unit in Unit)


def default_fields(unit: int) -> list[int]:
    """Raw values of a unit's fields at a program's start."""
    return list(_DEFAULTS[unit])
