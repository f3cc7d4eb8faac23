"""The library's programs on a live machine."""

from collections.abc import Sequence

from compiler.kernel_library.opcodes import OPCODES, program_name, resident_program
from cosim.driver import Driver
from cosim.programs import Candidate


class ProgramLibrary:
    """Programs of the library on a machine: loads each when it is first used.

    Parameters
    ----------
    driver : Driver
        The machine's driver.
    """

    def __init__(self, driver: Driver):
        self.driver = driver
        self.config = driver.config
        self._segments: dict[str, int] = {}
        self._bound: set[str] = set()

    def segment(self, operation: str) -> int:
        """Segment that holds the operation's program; loads it if need be."""
        name = program_name(operation)
        if name not in self._segments:
            self._segments[name] = self.driver.load(resident_program(name))
        return self._segments[name]

    def bind(self, operation: str) -> int:
        """The operation's macro opcode, bound to its program."""
        if operation not in self._bound:
            self.driver.programs.bind(OPCODES[operation], [Candidate(self.segment(operation))])
            self._bound.add(operation)
        return OPCODES[operation]

    def enqueue(self, operation: str, operands: Sequence[int], *, tag: int = 0, irq: bool = False) -> int:
        """Put an operation into the ring; returns the number of the macro-instruction."""
        return self.driver.enqueue(self.bind(operation), operands, tag=tag, irq=irq)
