"""Which programs are in the instruction store: brought in while others run, given up by use.

Programs that the machine chooses among come and go together. They have a worth, which is 1 more after each use and
halves every so many uses of any: between least recently and least frequently used (LRFU). What is needed soon is worth
a load, whatever its past. Room is made where what has to go is worth least together and leaves a long enough gap.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from compiler.codegen.dispatch_guard import Guard
from compiler.codegen.split_programs import ProgramPart, candidates
from cosim.driver import Driver

#: Words of a part's programs, and the guards.
Key = tuple[tuple[tuple[int, ...], ...], tuple[Guard, ...]]

#: Uses of any program after which one is worth half.
HALF_LIFE = 64.0
#: Worth of what is needed soon, and of what is needed next on top: more than use can make it.
_SOON, _NEXT = 1000.0, 500.0


@dataclass
class _Resident:
    """Programs in the store: their segments, the opcode that is their own, macro-instructions on their way to it.

    `worth` is that at their last use, the use with the number `used`.
    """

    segments: list[int]
    opcode: int
    expected: int = 0
    worth: float = 0.0
    used: int = 0


def _key(part: ProgramPart) -> Key:
    return tuple(each.words for each in part.programs), tuple(variant.guard for variant in part.instead)


class ResidentPrograms:
    """Keeps programs in the instruction store, each with an opcode of its own; the same words are there once.

    Programs that the machine chooses among have one opcode, and come and go together.

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
        self.driver, self.config, self.store = driver, driver.config, driver.programs
        self._known: dict[Key, _Resident] = {}
        self._clock = 0
        self.loads = self.evictions = self.load_cycles = 0

    def __contains__(self, part: ProgramPart) -> bool:
        return _key(part) in self._known

    def opcode(self, part: ProgramPart) -> int:
        """The opcode of resident programs."""
        return self._known[_key(part)].opcode

    def worth(self, part: ProgramPart) -> float:
        """What resident programs are worth by their use."""
        return self._worth(self._known[_key(part)])

    def expect(self, part: ProgramPart) -> None:
        """A macro-instruction has been sent to resident programs."""
        entry = self._known[_key(part)]
        self._clock += 1
        entry.worth, entry.used = self._worth(entry) + 1, self._clock
        entry.expected += 1

    def done(self, part: ProgramPart) -> None:
        """One of them has completed."""
        self._known[_key(part)].expected -= 1

    def bring(
        self, part: ProgramPart, keep: Iterable[ProgramPart] = (), soon: Iterable[ProgramPart] = ()
    ) -> bool:
        """Load programs if they are not there; False if there is no room for them now.

        Parameters
        ----------
        part : Part
            What is needed.
        keep : iterable of Part
            Stay, even if nothing is on its way to them.
        soon : iterable of Part
            What is needed next, in order.
        """
        if part in self:
            return True
        out = self._leaving(part, {_key(each) for each in keep}, [_key(each) for each in soon])
        if out is None:
            return False
        for key in out:
            self._unload(key)
        self.evictions += len(out)
        start = self.driver.device.cycle
        segments = [self.store.load(program, dma=True) for program in part.programs]
        self.load_cycles += self.driver.device.cycle - start
        opcode = min(set(range(self.config.opcodes)) - {each.opcode for each in self._known.values()})
        self.store.bind(opcode, candidates(part, segments))
        self._known[_key(part)] = _Resident(segments, opcode, used=self._clock)
        self.loads += len(segments)
        return True

    def leave(self, parts: Iterable[ProgramPart], keep: Iterable[ProgramPart]) -> None:
        """Unload programs that nothing is on its way to, but for those to keep."""
        kept = {_key(each) for each in keep}
        for key in {_key(each) for each in parts} - kept:
            entry = self._known.get(key)
            if entry and not entry.expected and not any(map(self.store.in_use, entry.segments)):
                self._unload(key)

    def _unload(self, key: Key) -> None:
        for segment in self._known.pop(key).segments:
            self.store.unload(segment)

    def forget_expected(self) -> None:
        """Nothing is on its way any more: the ring has been emptied."""
        for entry in self._known.values():
            entry.expected = 0

    def _worth(self, entry: _Resident) -> float:
        return entry.worth * 0.5 ** ((self._clock - entry.used) / HALF_LIFE)

    def _leaving(self, part: ProgramPart, keep: set[Key], soon: list[Key]) -> list[Key] | None:
        """Programs that make room by leaving, worth least together; None if even all that may leave do not."""
        prices = self._prices(keep, soon)
        found = [
            out
            for first in self._gaps(part, prices)
            if (out := self._enough(part, first, prices)) is not None
        ]
        return min(found, key=lambda out: sum(prices[key] for key in out), default=None)

    def _prices(self, keep: set[Key], soon: list[Key]) -> dict[Key, float]:
        """What is lost with those that may leave."""
        place = {key: place for place, key in reversed(list(enumerate(soon)))}
        return {
            key: self._worth(entry) + (_SOON + _NEXT / (1 + place[key]) if key in place else 0.0)
            for key, entry in self._known.items()
            if not entry.expected and key not in keep and not any(map(self.store.in_use, entry.segments))
        }

    def _gaps(self, part: ProgramPart, prices: Mapping[Key, float]) -> Iterator[list[Key]]:
        """What may leave and is in the way of the longest program behind each one that is there; and nothing."""
        length = max(len(program.words) for program in part.programs)
        owner = {segment: key for key, entry in self._known.items() for segment in entry.segments}
        there = {s: (self.store.base(s), len(p.words)) for s, p in self.store.programs.items()}
        yield []
        for start in sorted({0, *(base + size for base, size in there.values())}):
            over = [
                owner.get(s)
                for s, (base, size) in there.items()
                if base < start + length and start < base + size
            ]
            if over and start + length <= self.config.wis_words and all(key in prices for key in over):
                yield [key for key in dict.fromkeys(over) if key]

    def _enough(self, part: ProgramPart, first: list[Key], prices: Mapping[Key, float]) -> list[Key] | None:
        """Some that leave, and more, worth least first, until there is room; without those that need not."""
        out = list(first)
        for key in sorted(prices.keys() - set(first), key=lambda key: prices[key]):
            if self._room(part, out):
                break
            out.append(key)
        if not self._room(part, out):
            return None
        for key in sorted(out, key=lambda key: -prices[key]):
            without = [each for each in out if each != key]
            if self._room(part, without):
                out = without
        return out

    def _room(self, part: ProgramPart, out: list[Key]) -> bool:
        """Whether programs fit, in words, segments and opcodes, once some have left."""
        segments = [segment for key in out for segment in self._known[key].segments]
        lengths = [len(program.words) for program in part.programs]
        return len(self._known) - len(out) < self.config.opcodes and self.store.fit(lengths, segments)
