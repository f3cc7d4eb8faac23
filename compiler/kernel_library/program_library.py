"""Loads and binds library programs on a device."""

from collections.abc import Sequence

from compiler.kernel_library.opcodes import OPCODES, program_name, resident_program
from cosim.driver import Driver
from cosim.programs import Candidate


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
