"""Fields of unit commands: default values, and values unpacked from the raw words that SET writes."""

from functools import lru_cache
from types import SimpleNamespace

from hw.isa.commands import PACKED_FIELDS, UNIT_FIELDS
from hw.isa.enums import Unit

#: Layouts of the packed words of each unit, by field name.
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
    """All fields of a command as attributes; packed words are split into their fields."""


def unpack_fields(unit: Unit, values: list[int]) -> CommandFields:
    """Return the fields of a command, unpacked from raw values.

    Parameters
    ----------
    unit : Unit
        Unit that the command is for.
    values : list of int
        Raw value of each field, in the order of `hw.isa.commands.UNIT_FIELDS`.
    """
    out = dict(zip(_NAMES[unit], values, strict=True))
    for name in PACKED[unit]:
        out |= _unpacked(unit, name, out.pop(name))
    return CommandFields(**out)


@lru_cache(maxsize=1 << 12)
def _unpacked(unit: Unit, name: str, value: int) -> dict[str, int]:
    return PACKED[unit][name].unpack(value)


#: Raw field values of each unit when a program starts.
_DEFAULTS = tuple([f.default for f in UNIT_FIELDS[unit]] for unit in Unit)


def default_fields(unit: int) -> list[int]:
    """Return the raw values that a unit's fields have when a program starts."""
    return list(_DEFAULTS[unit])
