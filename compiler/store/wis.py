"""Which programs stay in the instruction store of a live machine.

Each program has a value, which is 1 more after each use and halves every so many uses of any program: between least
recently and least frequently used (LRFU). Room is made where the programs that have to go are worth least together;
those that an opcode is bound to, or that are in use, stay.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cosim.programs import Candidate, ProgramStore
from hw.errors import InputError
from hw.isa.enums import Compare
from hw.isa.program import Program

#: Uses of any program after which one is worth half.
HALF_LIFE = 64.0


@dataclass(frozen=True)
class Version:
    """A program that an opcode may run, and its guard, as `cosim.programs.Candidate` has it."""

    program: Program
    compare: Compare = Compare.ALWAYS
    selector: int = 0
    value: int = 0


@dataclass
class _Resident:
    """A program of this cache in the store: its worth at the time of its last use."""

    program: Program
    worth: float
    used: int


class WisCache:
    """Brings programs into the instruction store of a machine, and lets others go.

    Only programs that it has brought itself go; what others load into the store is left alone.

    Parameters
    ----------
    store : ProgramStore
        That of the machine's driver.
    half_life : float
        Uses after which a program is worth half: small for least recently used, large for least frequently used.

    Attributes
    ----------
    hits, loads, evictions : int
        Programs that were there, that were loaded, that went.
    """

    def __init__(self, store: ProgramStore, half_life: float = HALF_LIFE):
        if not half_life > 0:
            raise InputError(f"half_life must be more than 0, not {half_life!r}")
        self.store, self.half_life = store, half_life
        self.hits = self.loads = self.evictions = 0
        self._now = 0
        self._residents: dict[int, _Resident] = {}
        self._bound: dict[int, frozenset[int]] = {}  # segments of each opcode

    def bring(self, program: Program) -> int:
        """The segment of a program, which is loaded if it is not there.

        Raises
        ------
        InputError
            There is no room: all other programs are bound or in use, or the program is too long.
        """
        return self._bring(program, frozenset())

    def bind(self, opcode: int, versions: Sequence[Version]) -> None:
        """Let an opcode run the first of some programs whose guard holds; they stay while they are bound.

        Raises
        ------
        InputError
            There is no room for all of them, or no such opcode; what is bound stays as it was.
        """
        segments: list[int] = []
        for version in versions:
            segments.append(self._bring(version.program, frozenset(segments)))
        each = zip(versions, segments, strict=True)
        self.store.bind(opcode, [Candidate(s, v.compare, v.selector, v.value) for v, s in each])
        self._bound[opcode] = frozenset(segments)

    def unbind(self, opcode: int) -> None:
        """Let an opcode run nothing; macro-instructions with it that wait in the ring would trap."""
        self.store.bind(opcode, [])
        self._bound.pop(opcode, None)

    def worth(self, segment: int) -> float:
        """What the program in a segment is worth now; infinite if this cache did not bring it."""
        resident = self._residents.get(segment)
        if resident is None or resident.program is not self.store.programs.get(segment):
            return math.inf
        return resident.worth * 0.5 ** ((self._now - resident.used) / self.half_life)

    def _bring(self, program: Program, keep: frozenset[int]) -> int:
        self._now += 1
        for segment, there in self.store.programs.items():
            if there is program or there.words == program.words:
                self.hits += 1
                self._use(segment)
                return segment
        for victim in self._victims(program, keep):
            self.store.unload(victim)
            del self._residents[victim]
            self.evictions += 1
        segment = self.store.load(program, dma=True)
        self.loads += 1
        self._residents[segment] = _Resident(self.store.programs[segment], 1.0, self._now)
        return segment

    def _use(self, segment: int) -> None:
        worth = self.worth(segment)
        if worth < math.inf:
            self._residents[segment] = _Resident(self.store.programs[segment], worth + 1.0, self._now)

    def _victims(self, program: Program, keep: frozenset[int]) -> list[int]:
        """Segments that have to go so that a program fits: of all choices that which is worth least."""
        length, config = len(program.words), self.store.config
        there = {s: (self.store.base(s), len(p.words)) for s, p in self.store.programs.items()}
        prices = {segment: self._price(segment, keep) for segment in there}
        choices = []
        for start in sorted({0, *(base + size for base, size in there.values())}):
            if start + length <= config.wis_words:
                over = [
                    s for s, (base, size) in there.items() if base < start + length and start < base + size
                ]
                choices.append(over)
        if len(there) == config.segments:  # a gap is not enough: there must be a segment too
            cheapest = min(prices, key=lambda segment: prices[segment])
            choices = [choice or [cheapest] for choice in choices]
        best = min(choices, key=lambda choice: sum(prices[s] for s in choice), default=None)
        if best is None or math.isinf(sum(prices[s] for s in best)):
            raise InputError(
                f"program {program.name!r} of {length} words finds no room in the instruction store of "
                f"{config.wis_words} words and {config.segments} segments beside the programs that are bound or in use"
            )
        return best

    def _price(self, segment: int, keep: frozenset[int]) -> float:
        """What is lost with a segment; infinite if it must stay."""
        stays = segment in keep or any(segment in segments for segments in self._bound.values())
        return math.inf if stays or self.store.in_use(segment) else self.worth(segment)
