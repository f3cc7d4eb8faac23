"""Ranges of field values for which a legal command exists.

The ranges are found by applying the hardware's command check to simple commands in each mode.
"""

from collections.abc import Iterator
from functools import cache

from compiler.llm.assembly.operands import Spans, spans_of
from cosim.semantics.command_checks import check_command
from cosim.semantics.command_fields import PACKED, unpack_fields
from hw.config import MlaConfig
from hw.isa.commands import UNIT_FIELDS, defaults
from hw.isa.enums import Unit
from hw.isa.fields import Field, Packed

#: Unrestricted DRAM window; actual windows are checked for whole commands.
_ALL_DRAM = [(0, (1 << 32) - 1, 3)]
#: Maximum width of parts that select modes, and minimum width of fields that are addresses or counts.
_MAX_MODE_BITS, _MIN_ADDRESS_BITS = 3, 16
Setting = dict[str, int]


def _legal(config: MlaConfig, unit: Unit, setting: Setting) -> bool:
    return check_command(config, _ALL_DRAM, unit, unpack_fields(unit, list(setting.values()))) is None


def _modes(config: MlaConfig, unit: Unit) -> Iterator[Setting]:
    """Yield the base settings of a unit's command fields, followed by variants of them in each mode."""
    for base in _base_settings(config, unit):
        yield base
        for name, packed in PACKED[unit].items():
            for part in packed.fields:
                if part.width <= _MAX_MODE_BITS:
                    for value in range(part.low, part.high + 1):
                        yield base | {name: packed.pack(**{part.name: value})}


def _base_settings(config: MlaConfig, unit: Unit) -> Iterator[Setting]:
    """Yield command fields: defaults, steps and addresses of one row, addresses in the middle of the scratchpad."""
    setting = defaults(unit)
    yield setting
    wide = [field for field in UNIT_FIELDS[unit] if field.width >= _MIN_ADDRESS_BITS and not field.signed]
    yield setting | {field.name: config.n for field in wide}
    middle = config.sp_bytes // 2
    yield setting | {field.name: middle for field in wide if not field.default and field.high > middle}


@cache
def field_span(config: MlaConfig, unit: Unit, name: str) -> tuple[int, int]:
    """Return the smallest and largest legal value of a field that is not packed."""
    field = next(each for each in UNIT_FIELDS[unit] if each.name == name)
    low = high = field.default
    for setting in _modes(config, unit):
        if (low, high) == (field.low, field.high):
            break
        if not _legal(config, unit, setting):
            continue
        if low > field.low and _legal(config, unit, setting | {name: low - 1}):
            low = _last_legal(config, unit, setting, field, field.low)
        if high < field.high and _legal(config, unit, setting | {name: high + 1}):
            high = _last_legal(config, unit, setting, field, field.high)
    return low, high


def _last_legal(config: MlaConfig, unit: Unit, setting: Setting, field: Field, end: int) -> int:
    """Return the legal value of a field that is closest to `end`, found by bisection from a legal command."""
    if _legal(config, unit, setting | {field.name: end}):
        return end
    good, bad = setting[field.name], end
    while abs(bad - good) > 1:
        middle = (good + bad) // 2
        if _legal(config, unit, setting | {field.name: middle}):
            good = middle
        else:
            bad = middle
    return good


@cache
def part_spans(config: MlaConfig, unit: Unit, name: str) -> dict[str, Spans]:
    """Return the legal values of each part of a packed field."""
    packed = PACKED[unit][name]
    return {
        part.name: spans_of(
            tuple(
                value
                for value in range(part.low, part.high + 1)
                if _part_legal(config, unit, name, packed, part.name, value)
            )
        )
        for part in packed.fields
    }


def _part_legal(config: MlaConfig, unit: Unit, name: str, packed: Packed, part: str, value: int) -> bool:
    """Return whether a command with the given value of a packed field's part is legal in some mode."""
    for setting in _modes(config, unit):
        values = packed.unpack(setting[name]) | {part: value}
        if _legal(config, unit, setting | {name: packed.pack(**values)}):
            return True
    return False
