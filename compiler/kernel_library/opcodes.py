"""The resident library: which macro opcode runs which micro-program."""

from functools import cache
from pathlib import Path

from hw.isa.assembler import assemble
from hw.isa.program import Program

LIBRARY = Path(__file__).parents[2] / "hw" / "library"

#: Macro opcode of each operation of the library.
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
#: Operations that are one program with different operands.
SHARED = {
    "add_i8": "elementwise",
    "mul_i8": "elementwise",
    "table_i8": "elementwise",
    "requantize_i8": "elementwise",
}


def program_name(operation: str) -> str:
    """Name of the program that carries out an operation of the library."""
    return SHARED.get(operation, operation)


@cache
def resident_program(name: str) -> Program:
    """The assembled library program `name`."""
    return assemble((LIBRARY / f"{name}.s").read_text(), f"{name}.s")
