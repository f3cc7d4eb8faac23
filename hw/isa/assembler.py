"""Assembly text to micro-programs.

A line is `[label:] [instruction] [; comment]`. Directives: `.name NAME`, `.signature TEXT`, `.equ NAME, EXPRESSION`, `.reg NAME, rN`,
`.operand NAME, INDEX` and `.word EXPRESSION`. Sources are registers (`r4` or a `.reg` name), macro operands (`op3` or `$name`),
statistics (`%fuse_zeros`) and expressions; up to two of the former, then at most one expression: `add r1, r2, op0, 4*N`.
Packed fields take `name=value` lists: `set fuse.src, a_src=sp op=add`. Semaphores are `unit:index`. docs/isa.md lists everything.
"""

import re
from dataclasses import dataclass, field

from hw.isa.commands import PACKED_FIELDS, UNIT_FIELDS, field_number
from hw.isa.enums import SEMAPHORES_PER_PAIR, SEQUENCER, Unit
from hw.isa.expressions import evaluate
from hw.isa.fields import Packed
from hw.isa.micro import (
    FORMS,
    ISSUE_D,
    ISSUE_IMM,
    LOOP_IMM,
    MAX_OPERANDS,
    OPERAND_BASE,
    REGISTERS,
    STATISTIC_BASE,
    MicroOp,
    Statistic,
    encode,
)
from hw.isa.program import Program

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_CALL = re.compile(r"(\w+)\s*\(([^()]*)\)\s*\Z")
_UNITS = {u.name.lower(): u for u in Unit}
_MAX_WORDS = 1 << 14


class AssemblyError(ValueError):
    """What is wrong with a line of assembly text, as `name:line: message`."""


@dataclass
class _State:
    """Symbols and lines collected in the first pass."""

    name: str
    names: dict[str, int] = field(default_factory=dict)
    selectors: dict[str, int] = field(default_factory=dict)
    signature: list[str] = field(default_factory=list)
    lines: list[tuple[int, str, str]] = field(default_factory=list)


def assemble(text: str, name: str = "program") -> Program:
    """Assemble `text`; raises AssemblyError naming the line."""
    state = _State(name)
    _each(name, enumerate(text.splitlines(), 1), lambda line: _collect(state, *line))
    words: list[int] = []
    _each(name, state.lines, lambda line: words.append(_encode(state, line[1], line[2])))
    return Program(state.name, tuple(words), "\n".join(state.signature))


def _each(name: str, lines, action) -> None:
    for line in lines:
        try:
            action(line)
        except ValueError as error:
            raise AssemblyError(f"{name}:{line[0]}: {error}") from None


def _collect(state: _State, number: int, line: str) -> None:
    line = line.split(";", 1)[0].strip()
    label, colon, rest = line.partition(":")
    if colon and _NAME.match(label.strip()) and not line.startswith("."):
        _define(state, label.strip(), len(state.lines))
        line = rest.strip()
    if not line:
        return
    mnemonic, _, operands = line.partition(" ")
    mnemonic, operands = mnemonic.lower(), operands.strip()
    if mnemonic.startswith(".") and mnemonic != ".word":
        _directive(state, mnemonic, operands)
        return
    if len(state.lines) >= _MAX_WORDS:
        raise ValueError(f"program must be at most {_MAX_WORDS} words long")
    state.lines.append((number, mnemonic, operands))


def _define(state: _State, name: str, value: int) -> None:
    if not _NAME.match(name):
        raise ValueError(f"{name!r} is not a name")
    if name in state.names:
        raise ValueError(f"{name!r} is already defined")
    state.names[name] = value


def _directive(state: _State, mnemonic: str, operands: str) -> None:
    parts = [p.strip() for p in operands.split(",")]
    if mnemonic == ".name":
        state.name = operands
    elif mnemonic == ".signature":
        state.signature.append(operands)
    elif mnemonic == ".equ" and len(parts) == 2:
        _define(state, parts[0], evaluate(parts[1], state.names))
    elif mnemonic == ".reg" and len(parts) == 2:
        state.selectors[parts[0]] = _register(state, parts[1])
    elif mnemonic == ".operand" and len(parts) == 2:
        index = evaluate(parts[1], state.names)
        if not 0 <= index < MAX_OPERANDS:
            raise ValueError(f"operand index must be in 0..{MAX_OPERANDS - 1}, not {index}")
        state.selectors[f"${parts[0]}"] = OPERAND_BASE + index
    else:
        raise ValueError(
            f"{mnemonic} {operands} is not a directive (.name .signature .equ .reg .operand .word)"
        )


def _selector(state: _State, text: str) -> int | None:
    """Selector of a register, operand or statistic; None if `text` is an expression."""
    if text in state.selectors:
        return state.selectors[text]
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


def _register(state: _State, text: str) -> int:
    selector = _selector(state, text)
    if selector is None or selector >= REGISTERS:
        raise ValueError(f"{text!r} must be a register (r0..r{REGISTERS - 1} or a .reg name)")
    return selector


def _sources(state: _State, parts: list[str]) -> dict[str, int]:
    """a, b and imm from up to two selectors and then at most one expression."""
    values: dict[str, int] = {}
    for part in parts:
        selector = _selector(state, part)
        if selector is None:
            if "imm" in values:
                raise ValueError(f"only one expression is allowed, not also {part!r}")
            values["imm"] = evaluate(part, state.names)
        elif "imm" in values:
            raise ValueError(f"{part!r} must come before the expression")
        elif "b" in values:
            raise ValueError(f"at most two registers, operands or statistics are allowed, not also {part!r}")
        else:
            values["b" if "a" in values else "a"] = selector
    if not parts or "" in parts:
        raise ValueError("an operand is missing")
    return values


def _packed(state: _State, packed: Packed, text: str) -> int:
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
            values[name] = evaluate(value, state.names)
    return packed.pack(**values)


def _unit(text: str) -> Unit:
    if text not in _UNITS:
        raise ValueError(f"{text!r} must be one of {' '.join(_UNITS)}")
    return _UNITS[text]


def _semaphore(text: str, units: dict[str, int]) -> tuple[int, int]:
    unit, _, index = text.strip().partition(":")
    if unit not in units or not index.isdigit() or int(index) >= SEMAPHORES_PER_PAIR:
        raise ValueError(
            f"{text.strip()!r} must be UNIT:INDEX with UNIT in {' '.join(units)} and INDEX below {SEMAPHORES_PER_PAIR}"
        )
    return units[unit], int(index)


def _set(state: _State, operands: str) -> int:
    target, _, rest = operands.partition(",")
    unit_name, _, field_name = target.strip().partition(".")
    number = field_number(_unit(unit_name), field_name)
    packed = PACKED_FIELDS.get(target.strip())
    if packed and (rest.strip() == "default" or "=" in rest):
        return encode(
            MicroOp.SET, d=number, imm=_packed(state, packed, rest.replace("default", "").replace(",", " "))
        )
    values = _sources(state, [p.strip() for p in rest.split(",")])
    if set(values) == {"imm"}:
        spec = next(f for f in UNIT_FIELDS[_unit(unit_name)] if f.name == field_name)
        spec.check(values["imm"], f"{unit_name}.")
    return encode(MicroOp.SET, d=number, **values)


def _issue(operands: str) -> int:
    unit_text, *groups = [p.strip() for p in re.split(r",(?![^(]*\))", operands)]
    unit = _unit(unit_text)
    masks = {"wait": 0, "signal": 0}
    for group in groups:
        match = _CALL.match(group)
        if not match or match[1] not in masks:
            raise ValueError(f"{group!r} must be wait(UNIT:INDEX, ...) or signal(UNIT:INDEX, ...)")
        units: dict[str, int] = {name: int(u) for name, u in _UNITS.items()}
        if match[1] == "signal":
            units["seq"] = SEQUENCER
        for item in match[2].split(","):
            peer, index = _semaphore(item, units)
            masks[match[1]] |= 1 << (peer * SEMAPHORES_PER_PAIR + index)
    d = ISSUE_D.pack(unit=int(unit), signal_seq=masks["signal"] >> 16)
    return encode(MicroOp.ISSUE, d=d, imm=ISSUE_IMM.pack(wait=masks["wait"], signal=masks["signal"] & 0xFFFF))


def _loop(state: _State, parts: list[str]) -> int:
    if len(parts) < 2:
        raise ValueError("loop takes a count and the label of its end")
    values = _sources(state, parts[:-1])
    if "b" in values:
        raise ValueError("loop takes one register and one expression at most")
    imm = LOOP_IMM.pack(end=evaluate(parts[-1], state.names), count=values.get("imm", 0))
    return encode(MicroOp.LOOP, a=values.get("a", 0), imm=imm)


def _branch(state: _State, op: MicroOp, parts: list[str]) -> int:
    selectors = [_selector(state, p) for p in parts[:-1]]
    if len(parts) != 3 or None in selectors:
        raise ValueError(f"{op.name.lower()} takes two registers, operands or statistics and a label")
    return encode(op, a=selectors[0] or 0, b=selectors[1] or 0, imm=evaluate(parts[2], state.names))


def _encode(state: _State, mnemonic: str, operands: str) -> int:
    """Word of one instruction."""
    parts = [p.strip() for p in operands.split(",")] if operands else []
    if mnemonic == ".word":
        value = evaluate(operands, state.names)
        if not 0 <= value < 1 << 64:
            raise ValueError(f".word must be in 0..2**64-1, not {value}")
        return value
    if mnemonic.upper() not in MicroOp.__members__ or mnemonic == "illegal":
        raise ValueError(f"{mnemonic!r} is not an instruction")
    op = MicroOp[mnemonic.upper()]
    if op is MicroOp.SET:
        return _set(state, operands)
    if op is MicroOp.ISSUE:
        return _issue(operands)
    if op is MicroOp.LOOP:
        return _loop(state, parts)
    form = FORMS[op].operands
    if form == ("a", "b", "target"):
        return _branch(state, op, parts)
    if op is MicroOp.FENCE:
        return encode(op, d=sum({1 << _unit(p) for p in parts}))
    if form[:1] == ("d",):
        return encode(op, d=_register(state, parts[0] if parts else ""), **_sources(state, parts[1:]))
    if form[:1] == ("a",):
        return encode(op, **_sources(state, parts))
    if len(parts) != len(form):
        raise ValueError(f"{mnemonic} takes {len(form)} operands, not {len(parts)}")
    return encode(
        op,
        **{
            key: value
            for kind, part in zip(form, parts, strict=True)
            for key, value in _plain(state, kind, part)
        },
    )


def _plain(state: _State, kind: str, text: str) -> list[tuple[str, int]]:
    """Fields set by an operand of a simple instruction."""
    if kind == "unit":
        return [("d", int(_unit(text)))]
    if kind == "sem":
        producer, index = _semaphore(text, {name: int(u) for name, u in _UNITS.items()})
        return [("d", producer * SEMAPHORES_PER_PAIR + index)]
    return [("d" if kind == "segment" else "imm", evaluate(text, state.names))]
