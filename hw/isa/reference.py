"""Generator of the instruction set's reference page: `python -m hw.isa.reference > docs/isa.md`."""

from collections.abc import Iterable

from hw.isa.commands import FIELD_INDEX_BITS, PACKED_FIELDS, UNIT_FIELDS
from hw.isa.counters import COUNTERS, MAXIMA
from hw.isa.enums import EXACT_TRAPS, SEMAPHORE_MAX, SEMAPHORES_PER_PAIR, Trap, Unit
from hw.isa.fields import Field, Packed
from hw.isa.macro_instruction import CANDIDATE, HEADER, RECORD, SLOT_BYTES
from hw.isa.micro_instruction import FORMS, LOOP_IMM, WORD, MicroOp, Statistic


def _table(header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "| " + " | ".join("---" for _ in header) + " |"]
    lines += ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _bits(low: int, width: int) -> str:
    return f"{low + width - 1}..{low}" if width > 1 else str(low)


def _meaning(field: Field) -> str:
    values = ", ".join(f"{i} {name}" for i, name in enumerate(field.enum))
    return f"{field.doc} ({values})" if values else field.doc


def _packed(packed: Packed) -> str:
    rows = [
        (_bits(packed.offset(f.name), f.width), f"`{f.name}`", f.default, _meaning(f)) for f in packed.fields
    ]
    return _table(("bits", "field", "default", "meaning"), rows)


def _unit(unit: Unit) -> str:
    name = unit.name.lower()
    rows = [
        (
            int(unit) << FIELD_INDEX_BITS | index,
            f"`{name}.{f.name}`",
            f"{f.width}{' signed' if f.signed else ''}",
            f.default,
            f.doc,
        )
        for index, f in enumerate(UNIT_FIELDS[unit])
    ]
    parts = [f"### {unit.name}", _table(("number", "field", "bits", "default", "meaning"), rows)]
    for key, packed in PACKED_FIELDS.items():
        if key.startswith(f"{name}."):
            parts += [f"Bit fields of `{key}` (`set {key}, name=value ...`):", _packed(packed)]
    return "\n\n".join(parts)


def _instruction(op: MicroOp) -> tuple[object, ...]:
    form = FORMS[op]
    return (
        int(op),
        f"`{op.name.lower()} {', '.join(form.operands)}`".replace(" `", "`"),
        form.cls.name.lower(),
        form.doc,
    )


def page() -> str:
    """Return the whole page as Markdown."""
    exact = dict.fromkeys(EXACT_TRAPS, "exact")
    loop_parts = [f"{f.name} in bits {_bits(LOOP_IMM.offset(f.name), f.width)}" for f in LOOP_IMM.fields]
    parts = [
        "# Instruction set",
        "Generated from `hw/isa`; [machine.md](machine.md) specifies the semantics,\n"
        "`hw/isa/assembler.py` describes the assembly syntax.",
        "## Micro-instructions",
        _packed(WORD),
        _table(("opcode", "form", "class", "meaning"), map(_instruction, FORMS)),
        f"`loop` packs its immediate: {', '.join(loop_parts)}.",
        "Statistics: " + ", ".join(f"`%{s.name.lower()}`" for s in Statistic) + ".",
        f"Semaphores: {SEMAPHORES_PER_PAIR} for each producer and consumer, counting 0..{SEMAPHORE_MAX}.",
        "## Unit commands",
        *(_unit(unit) for unit in Unit),
        "## Macro-instructions",
        f"A ring slot is {SLOT_BYTES} bytes. Its first word:",
        _packed(HEADER),
        "First word of the completion record:",
        _packed(RECORD),
        "First word of a dispatch candidate:",
        _packed(CANDIDATE),
        "## Traps",
        _table(("cause", "name", "state"), ((int(t), t.name, exact.get(t, "imprecise")) for t in Trap if t)),
        "## Counters",
        _table(
            ("number", "name", "group", "same on every device", "meaning"),
            (
                (i, f"`{c.name}`", c.group, "yes" if c.architectural else "", c.doc)
                for i, c in enumerate(COUNTERS)
            ),
        ),
        "Maxima: " + ", ".join(f"`{name}` ({doc})" for name, doc in MAXIMA) + ".",
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(page(), end="")
