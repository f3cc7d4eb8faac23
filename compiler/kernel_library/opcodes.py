"""Macro opcodes of the hand-written micro-programs."""

from functools import cache
from pathlib import Path

from hw.isa.assembler import assemble
from hw.isa.program import Program

LIBRARY = Path(__file__).parents[2] / "hw" / "library"

#: Macro opcode of each operation.
OPCODES = {
    "gemm_i8": 1,
    "gemm_i32": 2,
    "conv2d_i8": 3,
    "depthwise_i8": 4,
    "add_i8": 5,
    "mul_i8": 6,
    "pool_i8": 7,
    "table_i8": 8,
    "transpose": 9,
    "copy": 10,
    "reduce": 11,
    "softmax_i8": 12,
    "requantize_i8": 13,
}
#: Operations that share one program with different operands.
SHARED = {
    "add_i8": "elementwise",
    "mul_i8": "elementwise",
    "table_i8": "elementwise",
    "requantize_i8": "elementwise",
}


def program_name(operation: str) -> str:
    """Return the name of the program that implements an operation."""
    return SHARED.get(operation, operation)


@cache
def resident_program(name: str) -> Program:
    """Return the assembled library program `name`."""
    return assemble((LIBRARY / f"{name}.s").read_text(), f"{name}.s")
