"""Programs that find what they address somewhere else: other operands, or places in the model's memory."""

from collections.abc import Mapping
from dataclasses import replace

from hw.isa.micro import MAX_OPERANDS, OPERAND_BASE, MicroOp, decode, encode
from hw.isa.program import Program


def rebased(program: Program, moved: Mapping[int, tuple[int, int]]) -> Program:
    """The program with addresses taken from other operands.

    Parameters
    ----------
    program : Program
        What the compiler wrote: only `set` reads operands, each an address to which it adds a constant.
    moved : dict
        For each of its operands the one that takes its place, and bytes that are added.
    """
    return replace(program, words=tuple(_word(word, moved) for word in program.words))


def _word(word: int, moved: Mapping[int, tuple[int, int]]) -> int:
    values = decode(word)
    op, index = MicroOp(values.pop("opcode")), values["b"] - OPERAND_BASE
    if op is not MicroOp.SET or not 0 <= index < MAX_OPERANDS:
        return word
    operand, offset = moved[index]
    return encode(op, **values | {"b": OPERAND_BASE + operand, "imm": values["imm"] + offset})
