"""Cache of programs in the instruction store: loaded while other programs run, evicted by an LRFU policy.

Alternative programs of one macro-instruction are loaded and evicted together. Their score grows by 1 with each use and
halves every `HALF_LIFE` uses of any program (least recently/frequently used, LRFU). The score of programs needed soon
exceeds any score from past uses. The set of victims with the lowest total score that frees a large enough gap is
evicted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from compiler.codegen.dispatch_guard import Guard
from compiler.codegen.split_programs import ProgramPart, candidates
from cosim.driver import Driver

#: Identity of alternative programs: their instruction words and guards.
Key = tuple[tuple[tuple[int, ...], ...], tuple[Guard, ...]]

#: Number of uses of any program after which a score is halved.
HALF_LIFE = 64.0
#: Score of programs needed soon, and bonus for the next one: larger than any score from uses.
_SOON, _NEXT = 1000.0, 500.0


@dataclass
class _Resident:
    """Resident programs: their segments, opcode, and number of macro-instructions in flight (`expected`).

    `score` is the score at the last use; `used` is the number of uses of any program up to then.
    """

    segments: list[int]
    opcode: int
    expected: int = 0
    score: float = 0.0
    used: int = 0


def _key(part: ProgramPart) -> Key:
    return tuple(each.words for each in part.programs), tuple(variant.guard for variant in part.instead)


class ResidentPrograms:
    """Manages the programs in the instruction store, without duplicates, and their opcodes.

    Alternative programs of one macro-instruction share an opcode, and are loaded and evicted together.

    An opcode is never rebound while a macro-instruction in the ring uses it, because the operands of a
    macro-instruction are valid for one version of a network only.

    Parameters
    ----------
    driver : Driver
        Driver of the machine; only this object loads programs.

    Attributes
    ----------
    loads, evictions, load_cycles : int
        Number of loaded programs, number of evicted programs, and cycles spent on loading and verifying.
    """

    def __init__(self, driver: Driver):
        self.driver, self.config, self.store = driver, driver.config, driver.programs
        self._known: dict[Key, _Resident] = {}
        self._clock = 0
        self.loads = self.evictions = self.load_cycles = 0

    def __contains__(self, part: ProgramPart) -> bool:
        return _key(part) in self._known

    def opcode(self, part: ProgramPart) -> int:
        """Return the opcode of resident programs."""
        return self._known[_key(part)].opcode

    def score(self, part: ProgramPart) -> float:
        """Return the LRFU score of resident programs."""
        return self._score(self._known[_key(part)])

    def expect(self, part: ProgramPart) -> None:
        """Record that a macro-instruction of resident programs was issued."""
        entry = self._known[_key(part)]
        self._clock += 1
        entry.score, entry.used = self._score(entry) + 1, self._clock
        entry.expected += 1

    def complete(self, part: ProgramPart) -> None:
        """Record that a macro-instruction of resident programs has completed."""
        self._known[_key(part)].expected -= 1

    def load(
        self, part: ProgramPart, keep: Iterable[ProgramPart] = (), soon: Iterable[ProgramPart] = ()
    ) -> bool:
        """Load programs unless they are resident; return False if there is currently no room for them.

        Parameters
        ----------
        part : ProgramPart
            Programs to load.
        keep : iterable of ProgramPart
            Programs that must not be evicted.
        soon : iterable of ProgramPart
            Programs needed next, in order.
        """
        if part in self:
            return True
        if not self._fits([part], []):
            out = self._victims(part, {_key(each) for each in keep}, [_key(each) for each in soon])
            if out is None:
                return False
            for key in out:
                self._unload(key)
            self.evictions += len(out)
        self.load_all([part])
        return True

    def load_all(self, parts: Iterable[ProgramPart]) -> None:
        """Load programs that are not resident in one round trip, as far as there is room without evictions."""
        chosen: dict[Key, ProgramPart] = {}
        for part in parts:
            if part not in self and self._fits([*chosen.values(), part], []):
                chosen.setdefault(_key(part), part)
        begun = self.driver.device.cycle
        started = self.store.start([program for part in chosen.values() for program in part.programs])
        segments = iter(self.store.finish(started))
        self.load_cycles += self.driver.device.cycle - begun
        free = sorted(set(range(self.config.opcodes)) - {each.opcode for each in self._known.values()})
        entries = {}
        for opcode, (key, part) in zip(free, chosen.items(), strict=False):
            mine = [next(segments) for _ in part.programs]
            self._known[key] = _Resident(mine, opcode, used=self._clock)
            entries[opcode] = candidates(part, mine)
            self.loads += len(mine)
        self.store.bind_all(entries)

    def unload(self, parts: Iterable[ProgramPart], keep: Iterable[ProgramPart]) -> None:
        """Unload programs that have no macro-instructions in flight, except those in `keep`."""
        kept = {_key(each) for each in keep}
        for key in {_key(each) for each in parts} - kept:
            entry = self._known.get(key)
            if entry and not entry.expected and not self.store.in_use(entry.segments):
                self._unload(key)

    def _unload(self, key: Key) -> None:
        for segment in self._known.pop(key).segments:
            self.store.unload(segment)

    def forget_expected(self) -> None:
        """Reset the in-flight counts after the ring has been emptied."""
        for entry in self._known.values():
            entry.expected = 0

    def _score(self, entry: _Resident) -> float:
        return entry.score * 0.5 ** ((self._clock - entry.used) / HALF_LIFE)

    def _victims(self, part: ProgramPart, keep: set[Key], soon: list[Key]) -> list[Key] | None:
        """Return the victims with the lowest total score that make enough room; None if there are none."""
        scores = self._scores(keep, soon)
        found = [
            out
            for first in self._gaps(part, scores)
            if (out := self._extend(part, first, scores)) is not None
        ]
        return min(found, key=lambda out: sum(scores[key] for key in out), default=None)

    def _scores(self, keep: set[Key], soon: list[Key]) -> dict[Key, float]:
        """Return the scores of the programs that may be evicted."""
        rank = {key: index for index, key in reversed(list(enumerate(soon)))}
        idle = {key: each for key, each in self._known.items() if not each.expected and key not in keep}
        busy = self.store.in_use(segment for entry in idle.values() for segment in entry.segments)
        return {
            key: self._score(entry) + (_SOON + _NEXT / (1 + rank[key]) if key in rank else 0.0)
            for key, entry in idle.items()
            if not busy & set(entry.segments)
        }

    def _gaps(self, part: ProgramPart, scores: Mapping[Key, float]) -> Iterator[list[Key]]:
        """Yield the empty set of victims, then sets that free one contiguous range for the longest new program."""
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
            if over and start + length <= self.config.wis_words and all(key in scores for key in over):
                yield [key for key in dict.fromkeys(over) if key]

    def _extend(self, part: ProgramPart, first: list[Key], scores: Mapping[Key, float]) -> list[Key] | None:
        """Add victims by ascending score until there is room, then remove unnecessary ones; return None on failure."""
        out = list(first)
        for key in sorted(scores.keys() - set(first), key=lambda key: scores[key]):
            if self._fits([part], out):
                break
            out.append(key)
        if not self._fits([part], out):
            return None
        for key in sorted(out, key=lambda key: -scores[key]):
            without = [each for each in out if each != key]
            if self._fits([part], without):
                out = without
        return out

    def _fits(self, parts: Sequence[ProgramPart], out: list[Key]) -> bool:
        """Return True if words, segments and opcodes suffice for programs after the eviction of `out`."""
        segments = [segment for key in out for segment in self._known[key].segments]
        lengths = [len(program.words) for part in parts for program in part.programs]
        opcodes = len(self._known) - len(out) + len(parts)
        return opcodes <= self.config.opcodes and self.store.fit(lengths, segments)
