"""Relocation of programs to other operands or other offsets in the model's memory."""

from collections.abc import Mapping
from dataclasses import replace

from compiler.runtime.dispatch.variant_memory import Moved
from hw.isa.micro_instruction import MAX_OPERANDS, OPERAND_BASE, MicroOp, decode, encode
from hw.isa.program import Program


def rebased(program: Program, memory: Moved, moved: Mapping[int, tuple[int, int]]) -> Program:
    """Relocate the addresses of a program.

    Parameters
    ----------
    program : Program
        Program made by the compiler: only `set` reads operands, each an address to which it adds a constant.
    memory : Moved
        Relocation of the model's memory, operand 0.
    moved : dict
        For each other operand, the operand that replaces it and the byte offset that is added.
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
