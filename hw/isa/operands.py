"""Operands of assembly text: registers, operands of the macro-instruction, statistics, expressions, semaphores."""

import re
from dataclasses import dataclass, field

from hw.isa.enums import SEMAPHORES_PER_PAIR, Unit
from hw.isa.expressions import evaluate
from hw.isa.fields import Packed
from hw.isa.micro_instruction import MAX_OPERANDS, OPERAND_BASE, REGISTERS, STATISTIC_BASE, Statistic

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
UNITS = {u.name.lower(): u for u in Unit}


@dataclass
class Symbols:
    """Symbols and lines that the first pass has collected."""

    name: str
    names: dict[str, int] = field(default_factory=dict)
    selectors: dict[str, int] = field(default_factory=dict)
    signature: list[str] = field(default_factory=list)
    lines: list[tuple[int, str, str]] = field(default_factory=list)


def define(symbols: Symbols, name: str, value: int) -> None:
    """Define the value of a label or constant."""
    if not NAME.match(name):
        raise ValueError(f"{name!r} is not a name")
    if name in symbols.names:
        raise ValueError(f"{name!r} is already defined")
    symbols.names[name] = value


def selector_of(symbols: Symbols, text: str) -> int | None:
    """Return the selector of a register, operand or statistic; None if `text` is an expression."""
    if text in symbols.selectors:
        return symbols.selectors[text]
    if match := re.fullmatch(r"(r|op|sel)(\d{1,3})", text):
        base, limit = {"r": (0, REGISTERS), "op": (OPERAND_BASE, MAX_OPERANDS), "sel": (0, 256)}[match[1]]
        if int(match[2]) >= limit:
            raise ValueError(f"{text} does not exist (there are {limit})")
        return base + int(match[2])
    if text.startswith("%"):
        if text[1:].upper() not in Statistic.__members__:
            raise ValueError(
                f"{text!r} is not a statistic ({' '.join('%' + s.name.lower() for s in Statistic)})"
            )
        return STATISTIC_BASE + Statistic[text[1:].upper()]
    if text.startswith("$"):
        raise ValueError(f"operand {text!r} is not declared (.operand NAME, INDEX)")
    return None


def register_of(symbols: Symbols, text: str) -> int:
    """Return the index of a register."""
    selector = selector_of(symbols, text)
    if selector is None or selector >= REGISTERS:
        raise ValueError(f"{text!r} must be a register (r0..r{REGISTERS - 1} or a .reg name)")
    return selector


def sources(symbols: Symbols, parts: list[str]) -> dict[str, int]:
    """Return the fields a, b and imm, parsed from up to two selectors followed by at most one expression."""
    values: dict[str, int] = {}
    for part in parts:
        selector = selector_of(symbols, part)
        if selector is None:
            if "imm" in values:
                raise ValueError(f"only one expression is allowed, not also {part!r}")
            values["imm"] = evaluate(part, symbols.names)
        elif "imm" in values:
            raise ValueError(f"{part!r} must come before the expression")
        elif "b" in values:
            raise ValueError(f"at most two registers, operands or statistics are allowed, not also {part!r}")
        else:
            values["b" if "a" in values else "a"] = selector
    if not parts or "" in parts:
        raise ValueError("an operand is missing")
    return values


def packed_value(symbols: Symbols, packed: Packed, text: str) -> int:
    """Parse a list of `name=value` items and return the packed word."""
    values: dict[str, int] = {}
    for item in text.split():
        name, equals, value = item.partition("=")
        if not equals:
            raise ValueError(
                f"{item!r} must be NAME=VALUE; names: {', '.join(f.name for f in packed.fields)}"
            )
        part = next((f for f in packed.fields if f.name == name), None)
        if part is None:
            packed.offset(name)
        elif part.enum and value in part.enum:
            values[name] = part.enum.index(value)
        else:
            values[name] = evaluate(value, symbols.names)
    return packed.pack(**values)


def unit_of(text: str) -> Unit:
    """Return the unit with the given name."""
    if text not in UNITS:
        raise ValueError(f"{text!r} must be one of {' '.join(UNITS)}")
    return UNITS[text]


def semaphore_of(text: str, units: dict[str, int]) -> tuple[int, int]:
    """Parse a semaphore written as `unit:index` and return the unit's number and the index."""
    unit, _, index = text.strip().partition(":")
    if unit not in units or not index.isdigit() or int(index) >= SEMAPHORES_PER_PAIR:
        raise ValueError(
            f"{text.strip()!r} must be UNIT:INDEX with UNIT in {' '.join(units)} and INDEX below {SEMAPHORES_PER_PAIR}"
        )
    return units[unit], int(index)
