"""Assembler: translates assembly text to micro-programs.

A line is `[label:] [instruction] [; comment]`. Directives: `.name NAME`, `.signature TEXT`, `.equ NAME, EXPRESSION`,
`.reg NAME, rN`, `.operand NAME, INDEX` and `.word EXPRESSION`. Sources are registers (`r4` or a `.reg` name), macro
operands (`op3` or `$name`), statistics (`%fuse_zeros`) and expressions. An instruction has up to two selectors
(registers, operands or statistics), followed by at most one expression: `add r1, r2, op0, 4*N`. Packed fields take
`name=value` lists: `set fuse.src, a_src=sp op=add`. Semaphores are `unit:index`. docs/isa.md is the complete reference.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

from hw.isa.commands import PACKED_FIELDS, UNIT_FIELDS, field_number
from hw.isa.enums import SEMAPHORES_PER_PAIR, SEQUENCER
from hw.isa.expressions import evaluate
from hw.isa.micro_instruction import (
    FORMS,
    ISSUE_D,
    ISSUE_IMM,
    LOOP_IMM,
    MAX_OPERANDS,
    OPERAND_BASE,
    MicroOp,
    encode,
)
from hw.isa.operands import (
    NAME,
    UNITS,
    Symbols,
    define,
    packed_value,
    register_of,
    selector_of,
    semaphore_of,
    sources,
    unit_of,
)
from hw.isa.program import Program

_CALL = re.compile(r"(\w+)\s*\(([^()]*)\)\s*\Z")
_MAX_WORDS = 1 << 14


class AssemblyError(ValueError):
    """A line of assembly text is invalid; the message reads `name:line: reason`."""


def assemble(text: str, name: str = "program") -> Program:
    """Assemble `text`, or raise AssemblyError, which names the invalid line."""
    symbols = Symbols(name)
    _each(name, enumerate(text.splitlines(), 1), lambda line: _collect(symbols, *line))
    words: list[int] = []
    _each(name, symbols.lines, lambda line: words.append(_encode(symbols, line[1], line[2])))
    lines = tuple(number for number, _, _ in symbols.lines)
    return Program(symbols.name, tuple(words), "\n".join(symbols.signature), lines)


def _each(name: str, lines: Iterable[tuple], action: Callable[[Any], None]) -> None:
    for line in lines:
        try:
            action(line)
        except ValueError as error:
            raise AssemblyError(f"{name}:{line[0]}: {error}") from None


def _collect(symbols: Symbols, number: int, line: str) -> None:
    line = line.split(";", 1)[0].strip()
    label, colon, rest = line.partition(":")
    if colon and NAME.match(label.strip()) and not line.startswith("."):
        define(symbols, label.strip(), len(symbols.lines))
        line = rest.strip()
    if not line:
        return
    mnemonic, _, operands = line.partition(" ")
    mnemonic, operands = mnemonic.lower(), operands.strip()
    if mnemonic.startswith(".") and mnemonic != ".word":
        _directive(symbols, mnemonic, operands)
        return
    if len(symbols.lines) >= _MAX_WORDS:
        raise ValueError(f"program must be at most {_MAX_WORDS} words long")
    symbols.lines.append((number, mnemonic, operands))


def _directive(symbols: Symbols, mnemonic: str, operands: str) -> None:
    parts = [p.strip() for p in operands.split(",")]
    if mnemonic == ".name":
        symbols.name = operands
    elif mnemonic == ".signature":
        symbols.signature.append(operands)
    elif mnemonic == ".equ" and len(parts) == 2:
        define(symbols, parts[0], evaluate(parts[1], symbols.names))
    elif mnemonic == ".reg" and len(parts) == 2:
        symbols.selectors[parts[0]] = register_of(symbols, parts[1])
    elif mnemonic == ".operand" and len(parts) == 2:
        index = evaluate(parts[1], symbols.names)
        if not 0 <= index < MAX_OPERANDS:
            raise ValueError(f"operand index must be in 0..{MAX_OPERANDS - 1}, not {index}")
        symbols.selectors[f"${parts[0]}"] = OPERAND_BASE + index
    else:
        raise ValueError(
            f"{mnemonic} {operands} is not a directive (.name .signature .equ .reg .operand .word)"
        )


def _set(symbols: Symbols, operands: str) -> int:
    target, _, rest = operands.partition(",")
    unit_name, _, field_name = target.strip().partition(".")
    number = field_number(unit_of(unit_name), field_name)
    packed = PACKED_FIELDS.get(target.strip())
    if packed and (rest.strip() == "default" or "=" in rest):
        return encode(
            MicroOp.SET,
            d=number,
            imm=packed_value(symbols, packed, rest.replace("default", "").replace(",", " ")),
        )
    values = sources(symbols, [p.strip() for p in rest.split(",")])
    if set(values) == {"imm"}:
        spec = next(f for f in UNIT_FIELDS[unit_of(unit_name)] if f.name == field_name)
        spec.check(values["imm"], f"{unit_name}.")
    return encode(MicroOp.SET, d=number, **values)


def _issue(operands: str) -> int:
    unit_text, *groups = [p.strip() for p in re.split(r",(?![^(]*\))", operands)]
    unit = unit_of(unit_text)
    masks = {"wait": 0, "signal": 0}
    for group in groups:
        match = _CALL.match(group)
        if not match or match[1] not in masks:
            raise ValueError(f"{group!r} must be wait(UNIT:INDEX, ...) or signal(UNIT:INDEX, ...)")
        units: dict[str, int] = {name: int(u) for name, u in UNITS.items()}
        if match[1] == "signal":
            units["seq"] = SEQUENCER
        for item in match[2].split(","):
            peer, index = semaphore_of(item, units)
            masks[match[1]] |= 1 << (peer * SEMAPHORES_PER_PAIR + index)
    d = ISSUE_D.pack(unit=int(unit), signal_seq=masks["signal"] >> 16)
    return encode(MicroOp.ISSUE, d=d, imm=ISSUE_IMM.pack(wait=masks["wait"], signal=masks["signal"] & 0xFFFF))


def _loop(symbols: Symbols, parts: list[str]) -> int:
    if len(parts) < 2:
        raise ValueError("loop takes a count and the label of its end")
    values = sources(symbols, parts[:-1])
    if "b" in values:
        raise ValueError("loop takes one register and one expression at most")
    imm = LOOP_IMM.pack(end=evaluate(parts[-1], symbols.names), count=values.get("imm", 0))
    return encode(MicroOp.LOOP, a=values.get("a", 0), imm=imm)


def _branch(symbols: Symbols, op: MicroOp, parts: list[str]) -> int:
    selectors = [selector_of(symbols, p) for p in parts[:-1]]
    if len(parts) != 3 or None in selectors:
        raise ValueError(f"{op.name.lower()} takes two registers, operands or statistics and a label")
    return encode(op, a=selectors[0] or 0, b=selectors[1] or 0, imm=evaluate(parts[2], symbols.names))


def _encode(symbols: Symbols, mnemonic: str, operands: str) -> int:
    """Return the word of one instruction."""
    parts = [p.strip() for p in operands.split(",")] if operands else []
    if mnemonic == ".word":
        value = evaluate(operands, symbols.names)
        if not 0 <= value < 1 << 64:
            raise ValueError(f".word must be in 0..2**64-1, not {value}")
        return value
    if mnemonic.upper() not in MicroOp.__members__ or mnemonic == "illegal":
        raise ValueError(f"{mnemonic!r} is not an instruction")
    op = MicroOp[mnemonic.upper()]
    if op is MicroOp.SET:
        return _set(symbols, operands)
    if op is MicroOp.ISSUE:
        return _issue(operands)
    if op is MicroOp.LOOP:
        return _loop(symbols, parts)
    form = FORMS[op].operands
    if form == ("a", "b", "target"):
        return _branch(symbols, op, parts)
    if op is MicroOp.FENCE:
        return encode(op, d=sum({1 << unit_of(p) for p in parts}))
    if form[:1] == ("d",):
        return encode(op, d=register_of(symbols, parts[0] if parts else ""), **sources(symbols, parts[1:]))
    if form[:1] == ("a",):
        return encode(op, **sources(symbols, parts))
    if len(parts) != len(form):
        raise ValueError(f"{mnemonic} takes {len(form)} operands, not {len(parts)}")
    return encode(
        op,
        **{
            key: value
            for kind, part in zip(form, parts, strict=True)
            for key, value in _plain(symbols, kind, part)
        },
    )


def _plain(symbols: Symbols, kind: str, text: str) -> list[tuple[str, int]]:
    """Return the fields that an operand of a simple instruction sets."""
    if kind == "unit":
        return [("d", int(unit_of(text)))]
    if kind == "sem":
        producer, index = semaphore_of(text, {name: int(u) for name, u in UNITS.items()})
        return [("d", producer * SEMAPHORES_PER_PAIR + index)]
    return [("d" if kind == "segment" else "imm", evaluate(text, symbols.names))]
