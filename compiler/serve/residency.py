"""Which programs are in the instruction store: brought in while others run, given up by use."""

from collections.abc import Iterable
from dataclasses import dataclass

from cosim.driver import Driver
from cosim.programs import Candidate
from hw.isa.program import Program

Words = tuple[int, ...]


@dataclass
class _Resident:
    """A program in the store: its segment, the opcode that is its own, macro-instructions on their way to it."""

    segment: int
    opcode: int
    expected: int = 0
    used: int = 0


class Residency:
    """Keeps programs in the instruction store, each with an opcode of its own; the same words are there once.

    An opcode is never bound anew while a macro-instruction in the ring names it: such a one carries operands that are
    right for one version of a network alone.

    Parameters
    ----------
    driver : Driver
        The machine's driver; nobody else loads programs.

    Attributes
    ----------
    loads, evictions, load_cycles : int
        Programs loaded, programs given up for others, and cycles from the first word of a load to its check.
    """

    def __init__(self, driver: Driver):
        self.driver, self.config = driver, driver.config
        self._known: dict[Words, _Resident] = {}
        self._clock = 0
        self.loads = self.evictions = self.load_cycles = 0

    def __contains__(self, program: Program) -> bool:
        return program.words in self._known

    def opcode(self, program: Program) -> int:
        """The opcode of a resident program."""
        return self._known[program.words].opcode

    def expect(self, program: Program) -> None:
        """A macro-instruction has been sent to a resident program."""
        entry = self._known[program.words]
        self._clock += 1
        entry.expected, entry.used = entry.expected + 1, self._clock

    def done(self, program: Program) -> None:
        """One of them has completed."""
        self._known[program.words].expected -= 1

    def bring(self, program: Program, keep: Iterable[Program] = (), soon: Iterable[Program] = ()) -> bool:
        """Load a program if it is not there; False if there is no room for it now.

        Parameters
        ----------
        program : Program
            What is needed.
        keep : iterable of Program
            Stay, even if nothing is on its way to them.
        soon : iterable of Program
            What is needed next, in order: whatever is needed last, or never, goes first.
        """
        if program in self:
            return True
        out = self._leaving(program, {each.words for each in keep}, [each.words for each in soon])
        if out is None:
            return False
        for words in out:
            self.driver.programs.unload(self._known.pop(words).segment)
        self.evictions += len(out)
        start = self.driver.device.cycle
        segment = self.driver.programs.load(program, dma=True)
        self.load_cycles += self.driver.device.cycle - start
        opcode = min(set(range(self.config.opcodes)) - {each.opcode for each in self._known.values()})
        self.driver.programs.bind(opcode, [Candidate(segment)])
        self._known[program.words] = _Resident(segment, opcode)
        self.loads += 1
        return True

    def leave(self, programs: Iterable[Program], keep: Iterable[Program]) -> None:
        """Unload programs that nothing is on its way to, but for those to keep."""
        kept = {each.words for each in keep}
        for words in {each.words for each in programs} - kept:
            entry = self._known.get(words)
            if entry and not entry.expected and not self.driver.programs.in_use(entry.segment):
                self.driver.programs.unload(entry.segment)
                del self._known[words]

    def forget_expected(self) -> None:
        """Nothing is on its way any more: the ring has been emptied."""
        for entry in self._known.values():
            entry.expected = 0

    def _leaving(self, program: Program, keep: set[Words], soon: list[Words]) -> list[Words] | None:
        """Programs that make room by leaving; None if even all that may leave do not."""
        distance = {words: place for place, words in reversed(list(enumerate(soon)))}
        free = [words for words, each in self._known.items() if not each.expected and words not in keep]
        free.sort(key=lambda words: (-distance.get(words, len(soon)), self._known[words].used))
        out: list[Words] = []
        length = len(program.words)
        while not self._room(length, out):
            if len(out) == len(free):
                return None
            out.append(free[len(out)])
        return out

    def _room(self, length: int, out: list[Words]) -> bool:
        """Whether a program fits, in words, segments and opcodes, once some have left."""
        segments = [self._known[words].segment for words in out]
        return len(self._known) - len(out) < self.config.opcodes and self.driver.programs.fits(
            length, segments
        )
