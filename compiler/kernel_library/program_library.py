"""The resident program library: which macro opcode runs which micro-program, and its programs on a live machine."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from cosim.driver import Driver
from cosim.programs import Candidate
from hw.isa.assembler import assemble
from hw.isa.program import Program


class ProgramLibrary:
    """Library programs on a device, loaded on first use.

    Parameters
    ----------
    driver : Driver
        Driver of the device.
    """

    def __init__(self, driver: Driver):
        self.driver = driver
        self.config = driver.config
        self._segments: dict[str, int] = {}
        self._bound: set[str] = set()

    def segment(self, operation: str) -> int:
        """Return the segment of an operation's program, loading it if necessary."""
        name = program_name(operation)
        if name not in self._segments:
            self._segments[name] = self.driver.load(resident_program(name))
        return self._segments[name]

    def bind(self, operation: str) -> int:
        """Return the operation's macro opcode, bound to its program."""
        if operation not in self._bound:
            self.driver.programs.bind(OPCODES[operation], [Candidate(self.segment(operation))])
            self._bound.add(operation)
        return OPCODES[operation]

    def enqueue(self, operation: str, operands: Sequence[int], *, tag: int = 0, irq: bool = False) -> int:
        """Enqueue an operation; return the number of the macro-instruction."""
        return self.driver.enqueue(self.bind(operation), operands, tag=tag, irq=irq)

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
