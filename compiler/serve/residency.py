"""Which programs are in the instruction store: brought in while others run, given up by use.

Each program has a worth, which is 1 more after each use and halves every so many uses of any program: between least
recently and least frequently used (LRFU). One that is needed soon is worth a load, whatever its past. Room is made
where the programs that have to go are worth least together and leave a long enough gap.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cosim.driver import Driver
from cosim.programs import Candidate
from hw.isa.program import Program

Words = tuple[int, ...]

#: Uses of any program after which one is worth half.
HALF_LIFE = 64.0
#: Worth of a program that is needed soon, and of one that is needed next on top: more than use can make it.
_SOON, _NEXT = 1000.0, 500.0


@dataclass
class _Resident:
    """A program in the store: its segment, the opcode that is its own, macro-instructions on their way to it.

    `worth` is that at its last use, the use with the number `used`.
    """

    segment: int
    opcode: int
    expected: int = 0
    worth: float = 0.0
    used: int = 0


class Residency:
    """Keeps programs in the instruction store, each with an opcode of its own; the same words are there once.

    An opcode is never bound anew while a macro-instruction in the ring names it: such a one carries operands that are
    right for one version of a network alone.

    Parameters
    ----------
    driver : Driver
        The machine's driver. Programs that others load are left alone.

    Attributes
    ----------
    loads, evictions, load_cycles : int
        Programs loaded, programs given up for others, and cycles from the first word of a load to its check.
    """

    def __init__(self, driver: Driver):
        self.driver, self.config, self.store = driver, driver.config, driver.programs
        self._known: dict[Words, _Resident] = {}
        self._clock = 0
        self.loads = self.evictions = self.load_cycles = 0

    def __contains__(self, program: Program) -> bool:
        return program.words in self._known

    def opcode(self, program: Program) -> int:
        """The opcode of a resident program."""
        return self._known[program.words].opcode

    def worth(self, program: Program) -> float:
        """What a resident program is worth by its use."""
        return self._worth(self._known[program.words])

    def expect(self, program: Program) -> None:
        """A macro-instruction has been sent to a resident program."""
        entry = self._known[program.words]
        self._clock += 1
        entry.worth, entry.used = self._worth(entry) + 1, self._clock
        entry.expected += 1

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
            What is needed next, in order.
        """
        if program in self:
            return True
        out = self._leaving(program, {each.words for each in keep}, [each.words for each in soon])
        if out is None:
            return False
        for words in out:
            self.store.unload(self._known.pop(words).segment)
        self.evictions += len(out)
        start = self.driver.device.cycle
        segment = self.store.load(program, dma=True)
        self.load_cycles += self.driver.device.cycle - start
        opcode = min(set(range(self.config.opcodes)) - {each.opcode for each in self._known.values()})
        self.store.bind(opcode, [Candidate(segment)])
        self._known[program.words] = _Resident(segment, opcode, used=self._clock)
        self.loads += 1
        return True

    def leave(self, programs: Iterable[Program], keep: Iterable[Program]) -> None:
        """Unload programs that nothing is on its way to, but for those to keep."""
        kept = {each.words for each in keep}
        for words in {each.words for each in programs} - kept:
            entry = self._known.get(words)
            if entry and not entry.expected and not self.store.in_use(entry.segment):
                self.store.unload(entry.segment)
                del self._known[words]

    def forget_expected(self) -> None:
        """Nothing is on its way any more: the ring has been emptied."""
        for entry in self._known.values():
            entry.expected = 0

    def _worth(self, entry: _Resident) -> float:
        return entry.worth * 0.5 ** ((self._clock - entry.used) / HALF_LIFE)

    def _leaving(self, program: Program, keep: set[Words], soon: list[Words]) -> list[Words] | None:
        """Programs that make room by leaving, worth least together; None if even all that may leave do not."""
        prices = self._prices(keep, soon)
        choices = [(sum(prices[s] for s in each), each) for each in self._choices(len(program.words), prices)]
        price, gone = min(choices, default=(math.inf, []))
        if math.isinf(price):
            return None
        return [words for words, entry in self._known.items() if entry.segment in gone]

    def _prices(self, keep: set[Words], soon: list[Words]) -> dict[int, float]:
        """For each segment what is lost with it; infinite if it must stay."""
        place = {words: place for place, words in reversed(list(enumerate(soon)))}
        prices = dict.fromkeys(self.store.programs, math.inf)
        for words, entry in self._known.items():
            if not entry.expected and words not in keep and not self.store.in_use(entry.segment):
                needed = _SOON + _NEXT / (1 + place[words]) if words in place else 0.0
                prices[entry.segment] = self._worth(entry) + needed
        return prices

    def _choices(self, length: int, prices: Mapping[int, float]) -> list[list[int]]:
        """Sets of segments of which one has to go: what is in the way behind each program, and at the beginning."""
        there = {s: (self.store.base(s), len(p.words)) for s, p in self.store.programs.items()}
        full = len(there) == self.config.segments or len(self._known) == self.config.opcodes
        out = []
        for start in sorted({0, *(base + size for base, size in there.values())}):
            if start + length <= self.config.wis_words:
                over = [
                    s for s, (base, size) in there.items() if base < start + length and start < base + size
                ]
                if full and not over:  # a gap is not enough: there must be a segment and an opcode too
                    over = [min(prices, key=lambda segment: prices[segment])]
                out.append(over)
        return out
