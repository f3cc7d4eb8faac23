"""Disassembler: translates micro-programs to assembly text that assembles to the same words."""

from hw.isa.assembler import AssemblyError, assemble
from hw.isa.commands import PACKED_FIELDS, field_of
from hw.isa.enums import SEMAPHORES_PER_PAIR, SEQUENCER, Unit
from hw.isa.fields import Packed
from hw.isa.micro_instruction import (
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
    decode,
)
from hw.isa.program import Program

_UNIT_NAMES = [u.name.lower() for u in Unit] + ["seq"]


def disassemble(program: Program) -> str:
    """Return the assembly text of `program`; assembling it gives the same words and signature."""
    lines = [f".name {program.name}"]
    lines += [f".signature {text}" for text in program.signature.splitlines()]
    width = len(str(len(program.words)))
    lines += [f"    {instruction(word):<60} ; {pc:>{width}}" for pc, word in enumerate(program.words)]
    return "\n".join(lines) + "\n"


def instruction(word: int) -> str:
    """Return one instruction as text; a word that encodes no instruction is written as `.word`."""
    raw = f".word {word:#018x}"
    values = decode(word)
    try:
        op = MicroOp(values["opcode"])
        text = _text(op, values)
        return text if assemble(text).words == (word,) else raw
    except (ValueError, AssemblyError, KeyError):
        return raw


def selector_name(selector: int) -> str:
    """Return the text of an operand selector."""
    if selector < REGISTERS:
        return f"r{selector}"
    if OPERAND_BASE <= selector < OPERAND_BASE + MAX_OPERANDS:
        return f"op{selector - OPERAND_BASE}"
    if selector - STATISTIC_BASE in set(Statistic):
        return f"%{Statistic(selector - STATISTIC_BASE).name.lower()}"
    return f"sel{selector}"


def _sources(values: dict[str, int]) -> list[str]:
    a, b, imm = values["a"], values["b"], values["imm"]
    parts = [selector_name(a)] if a or b else []
    parts += [selector_name(b)] if b else []
    return parts + ([str(imm)] if imm or not parts else [])


def _mask(mask: int) -> str:
    names = [
        f"{_UNIT_NAMES[i // SEMAPHORES_PER_PAIR]}:{i % SEMAPHORES_PER_PAIR}"
        for i in range((SEQUENCER + 1) * SEMAPHORES_PER_PAIR)
        if mask >> i & 1
    ]
    return ", ".join(names)


def _packed(packed: Packed, word: int) -> str:
    parts = []
    for field, value in zip(packed.fields, packed.unpack(word).values(), strict=True):
        if value != field.default:
            parts.append(f"{field.name}={field.enum[value] if value < len(field.enum) else value}")
    return " ".join(parts) or "default"


def _set(values: dict[str, int]) -> str:
    target = field_of(values["d"])
    if target is None:
        raise ValueError("no such field")
    name = f"{target[0].name.lower()}.{target[1].name}"
    if name in PACKED_FIELDS and not values["a"] and not values["b"]:
        return f"set {name}, {_packed(PACKED_FIELDS[name], values['imm'] & 0xFFFFFFFF)}"
    if not values["a"] and not values["b"] and not target[1].signed:
        return f"set {name}, {values['imm'] & 0xFFFFFFFF}"
    return f"set {name}, {', '.join(_sources(values))}"


def _issue(values: dict[str, int]) -> str:
    d, imm = ISSUE_D.unpack(values["d"]), ISSUE_IMM.unpack(values["imm"])
    text = f"issue {_UNIT_NAMES[d['unit']]}"
    if imm["wait"]:
        text += f", wait({_mask(imm['wait'])})"
    if signal := imm["signal"] | d["signal_seq"] << 16:
        text += f", signal({_mask(signal)})"
    return text


def _loop(values: dict[str, int]) -> str:
    imm = LOOP_IMM.unpack(values["imm"])
    count = [selector_name(values["a"])] if values["a"] else []
    count += [str(imm["count"])] if imm["count"] or not count else []
    return f"loop {', '.join(count)}, {imm['end']}"


def _text(op: MicroOp, values: dict[str, int]) -> str:
    mnemonic, form = op.name.lower(), FORMS[op].operands
    if op is MicroOp.SET:
        return _set(values)
    if op is MicroOp.ISSUE:
        return _issue(values)
    if op is MicroOp.LOOP:
        return _loop(values)
    if op is MicroOp.FENCE:
        return f"fence {', '.join(name for i, name in enumerate(_UNIT_NAMES[:4]) if values['d'] >> i & 1)}"
    if form == ("a", "b", "target"):
        return f"{mnemonic} {selector_name(values['a'])}, {selector_name(values['b'])}, {values['imm']}"
    if form[:1] == ("d",):
        return f"{mnemonic} r{values['d']}, {', '.join(_sources(values))}"
    if form[:1] == ("a",):
        return f"{mnemonic} {', '.join(_sources(values))}"
    return f"{mnemonic} {', '.join(_plain(kind, values) for kind in form)}".strip()


def _plain(kind: str, values: dict[str, int]) -> str:
    if kind == "unit":
        return _UNIT_NAMES[Unit(values["d"])]
    if kind == "sem":
        return f"{_UNIT_NAMES[Unit(values['d'] // SEMAPHORES_PER_PAIR)]}:{values['d'] % SEMAPHORES_PER_PAIR}"
    return str(values["d" if kind == "segment" else "imm"])
