"""Programs that find what they address somewhere else: at other operands, or elsewhere in the model's memory."""

from collections.abc import Mapping
from dataclasses import replace

from compiler.runtime.dispatch.variant_memory import Moved
from hw.isa.micro_instruction import MAX_OPERANDS, OPERAND_BASE, MicroOp, decode, encode
from hw.isa.program import Program


def rebased(program: Program, memory: Moved, moved: Mapping[int, tuple[int, int]]) -> Program:
    """The program with addresses taken from elsewhere.

    Parameters
    ----------
    program : Program
        What the compiler wrote: only `set` reads operands, each an address to which it adds a constant.
    memory : Moved
        Where the model's memory, operand 0, has gone.
    moved : dict
        For each of the other operands the one that takes its place, and bytes that are added.
    """
    return replace(program, words=tuple(_word(word, memory, moved) for word in program.words))


def _word(word: int, memory: Moved, moved: Mapping[int, tuple[int, int]]) -> int:
    values = decode(word)
    op, index = MicroOp(values.pop("opcode")), values["b"] - OPERAND_BASE
    if op is not MicroOp.SET or not 0 <= index < MAX_OPERANDS:
        return word
    if index == 0:
        return encode(op, **values | {"imm": memory.to(values["imm"])})
    operand, offset = moved[index]
    return encode(op, **values | {"b": OPERAND_BASE + operand, "imm": values["imm"] + offset})
