"""Programs as a model is shown them: short, and with labels, so that lines can come and go."""

from hw.isa.micro_instruction import FORMS, MicroOp

#: Instructions whose last operand is the number of an instruction.
_JUMPS = frozenset(op.name.lower() for op in MicroOp if op in FORMS and "target" in FORMS[op].operands)
_JUMPS -= {"callp"}  # into another program


def short_text(text: str) -> str:
    """A disassembled program without comments and indentation, with labels where it goes to."""
    heads, lines = [], []
    for line in text.splitlines():
        bare = line.split(";", 1)[0].strip()
        if bare:
            (heads if bare.startswith(".") and not bare.startswith(".word") else lines).append(bare)
    targets = {number for line in lines if (number := _target(line)) is not None and number <= len(lines)}
    out = list(heads)
    for number, line in enumerate(lines):
        out += [f"L{number}:"] * (number in targets)
        out.append(f"{line.rpartition(' ')[0]} L{_target(line)}" if _target(line) in targets else line)
    out += [f"L{len(lines)}:"] * (len(lines) in targets)
    return "\n".join(out) + "\n"


def _target(line: str) -> int | None:
    """The instruction that a line goes to; None if it goes nowhere."""
    mnemonic, _, rest = line.partition(" ")
    last = rest.rpartition(",")[2].strip()
    return int(last) if mnemonic in _JUMPS and last.isdigit() else None
