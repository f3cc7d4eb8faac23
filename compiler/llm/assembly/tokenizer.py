"""Encoding and decoding of micro-programs as tokens, which `compiler.llm.tokens.assembly_tokens` defines."""

from collections.abc import Iterable

from compiler.codegen.emit import emit
from compiler.llm.assembly.operands import Rules, Values
from compiler.llm.assembly.parser import NullListener, ProgramParser, word_of
from compiler.llm.tokens.assembly_tokens import (
    END,
    HEAD_OF,
    NAME_OF,
    NAMING,
    OPENERS,
    PAIRS,
    SELECTOR,
    SIGNALS,
    STOP,
    TO,
    WAITS,
    Head,
)
from compiler.llm.tokens.integer_tokens import encode_number
from compiler.tuning.edits.rewrites import unroll
from hw.isa.enums import SEMAPHORES_PER_PAIR, Unit
from hw.isa.micro_instruction import ISSUE_D, ISSUE_IMM, LOOP_IMM, MicroOp, decode
from hw.isa.program import Program

#: Counter tags by layer number.
_TAGS = range(64)


def straight_line(program: Program) -> Program | None:
    """Return an equivalent program without loops; None if the program does more than issue commands."""
    found = unroll(program)
    if found is None or found.fenced:
        return None
    return emit(program.name, found.commands, _TAGS, alone=found.alone)


_RULES = Rules()
_MASK = (1 << 32) - 1
_WORD_OF_PAIR = {
    name: {pair: token for token, pair in tokens.items() if pair[1] is not None}
    for name, tokens in PAIRS.items()
}


def decode_program(tokens: Iterable[str], name: str) -> Program:
    """Decode a program from tokens.

    Parameters
    ----------
    tokens : iterable of str
        Tokens as returned by `encode_program`.
    name : str
        Name of the program.

    Raises
    ------
    ValueError
        The tokens are not a valid program; the message names the token.
    """
    parser = ProgramParser(_RULES, NullListener())
    for position, token in enumerate(tokens):
        try:
            parser.accept(token)
        except ValueError as error:
            raise ValueError(f"token {position}: {error}") from None
    if not parser.done:
        raise ValueError(f"the program does not end with {STOP!r}")
    return Program(name, tuple(parser.words))


def encode_program(program: Program) -> list[str]:
    """Encode a program as tokens, without name and signature.

    Raises
    ------
    ValueError
        The program is empty, or an instruction has no assembly text.
    """
    if not program.words:
        raise ValueError("a program must have at least one instruction")
    out: list[str] = []
    ends: list[int] = []
    for pc, word in enumerate(program.words):
        while ends and ends[-1] == pc:
            out.append(END)
            ends.pop()
        tokens, end = _instruction(word, pc, ends[-1] if ends else len(program.words))
        out += tokens
        ends += [end] if end else []
    out += [END] * len(ends)
    return [*out, STOP]


def _instruction(word: int, pc: int, outer: int) -> tuple[list[str], int]:
    """Return the tokens of an instruction and the end of its body (0: no body)."""
    values = decode(word)
    head = _head(values)
    out, end = ([], 0) if head is None else _operands(head, values, pc, outer)
    if head is None or _read(head, out, pc, end) != word:
        raise ValueError(f"instruction {pc}: {word:#018x} cannot be written as assembly text")
    return [head.token, *out], end


def _read(head: Head, tokens: list[str], pc: int, end: int) -> int | None:
    """Decode the operand tokens of an instruction; return None if they are invalid."""
    values: Values = {}
    operands = _RULES.operands(head, values, pc, 1)
    for token in tokens:
        while operands and not operands[0].accept(token):
            if not operands.pop(0).ends:
                return None
        if not operands:
            return None
    return word_of(head, values, end) if all(operand.ends for operand in operands) else None


def _head(values: dict[str, int]) -> Head | None:
    if values["opcode"] not in set(MicroOp):
        return None
    op, d = MicroOp(values["opcode"]), 0
    if op is MicroOp.ISSUE:
        d = ISSUE_D.unpack(values["d"])["unit"]
    elif op in NAMING:
        d = values["d"]
    return HEAD_OF.get((op, d))


def _operands(head: Head, values: dict[str, int], pc: int, outer: int) -> tuple[list[str], int]:
    if head.op is MicroOp.LOOP:
        return _loop(values, pc, outer)
    out: list[str] = []
    for kind in head.kinds:
        if kind == "d":
            out += _selector(values["d"])
        elif kind == "segment":
            out += encode_number(values["d"])
        elif kind == "target":
            out += encode_number(values["imm"] - pc)
        elif kind == "imm":
            out += _sources(head, values)
        elif kind in ("a", "b"):
            out += [] if "imm" in head.kinds else _selector(values[kind])
        else:
            out += _semaphores(kind, values)
    return out, 0


def _sources(head: Head, values: dict[str, int]) -> list[str]:
    a, b, imm = values["a"], values["b"], values["imm"]
    if "a" not in head.kinds:
        return encode_number(imm)
    if head.field and not a and not b:
        return _constant(head, imm)
    out = _selector(a) if a or b else []
    out += _selector(b) if b else []
    return out + (encode_number(imm) if imm or not out else [])


def _constant(head: Head, imm: int) -> list[str]:
    """Return the tokens of a constant field value."""
    assert head.field
    value = imm if head.field.signed else imm & _MASK
    if not head.field.low <= value <= head.field.high:
        return [NAME_OF[0], *encode_number(value)]
    if head.packed is None:
        return encode_number(value)
    names, openers = (
        _WORD_OF_PAIR[head.packed.name],
        {index: token for token, index in OPENERS[head.packed.name]},
    )
    out: list[str] = []
    for index, (part, number) in enumerate(
        zip(head.packed.fields, head.packed.unpack(value).values(), strict=True)
    ):
        if number != part.default:
            out += [openers[index], *encode_number(number)] if index in openers else [names[index, number]]
    return out


def _loop(values: dict[str, int], pc: int, outer: int) -> tuple[list[str], int]:
    packed = LOOP_IMM.unpack(values["imm"] & _MASK)
    out = _selector(values["a"]) if values["a"] else []
    out += encode_number(packed["count"]) if packed["count"] or not out else []
    if pc + 1 < packed["end"] <= outer:
        return out, packed["end"]
    return [*out, TO, *encode_number(packed["end"] - pc)], 0


def _semaphores(kind: str, values: dict[str, int]) -> list[str]:
    imm = ISSUE_IMM.unpack(values["imm"] & _MASK)
    sequencer = ISSUE_D.unpack(values["d"])["signal_seq"] << SEMAPHORES_PER_PAIR * len(Unit)
    mask, names = (imm["wait"], WAITS) if kind == "wait" else (imm["signal"] | sequencer, SIGNALS)
    return [name for number, name in enumerate(names) if mask >> number & 1]


def _selector(selector: int) -> list[str]:
    if selector in NAME_OF:
        return [NAME_OF[selector]]
    return [SELECTOR, *encode_number(selector)]
