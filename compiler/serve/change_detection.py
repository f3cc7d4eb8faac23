"""Notices that a network takes other cycles than it did: a sequential test on each of its programs."""

from collections import defaultdict
from dataclasses import dataclass
from statistics import median

from compiler.server.request import RequestResult

#: Requests that say what is usual, and what it was at the beginning, should it change before it is known.
_USUAL, _BEGINNING = 6, 3
#: They differ by no more of their cycles, unless so many requests have been looked at: then they always do.
_STEADY, _LONG = 0.02, 20
#: Of the usual cycles of a request: deviations that do not count, their sum at which something has changed, and the
#: most that one request adds to it: rare disturbances, however great, are no change.
_SLACK, _ENOUGH, _MOST = 0.005, 0.04, 0.012
#: Requests behind one that make a difference.
_BEHIND = 2
#: Deviations that do not count either, as often as what is usual spreads.
_SPREADS = 3


@dataclass(frozen=True)
class DetectedChange:
    """Cycles have changed.

    Parameters
    ----------
    program : str
        The one that changed most.
    usual, now : float
        Its cycles in a request.
    requests : int
        How many the test took since its sums were at zero.
    """

    program: str
    usual: float
    now: float
    requests: int


class ChangeTest:
    """Cumulative sums (CUSUM) of how far the cycles of each program are from what is usual, up and down.

    A lasting change of one per cent of a request's cycles in any one program is noticed within nine requests, a
    great one after four. What is usual are the medians of the first requests.
    """

    def __init__(self) -> None:
        self._first: list[dict[str, int]] = []
        self._usual: dict[str, float] = {}
        self._slack: dict[str, float] = {}
        self._sums: dict[tuple[str, int], tuple[float, int]] = defaultdict(lambda: (0.0, 0))

    @property
    def cycles(self) -> float:
        """Usual ones of a request."""
        return sum(self._usual.values())

    @property
    def suspicious(self) -> bool:
        """Whether a request before was odd enough that the next ones must tell whether something has changed."""
        return any(total > _MOST / 2 for total, _ in self._sums.values())

    def take(self, result: RequestResult) -> DetectedChange | None:
        """Look at a request; whether something has changed. Those that loads of programs disturbed say nothing."""
        if result.disturbed or not result.macros:
            return None
        taken = _by_program(result)
        if not self._usual:
            self._first.append(taken)
            return self._settle() if len(self._first) >= _USUAL else None
        found: DetectedChange | None = None
        for program, usual in self._usual.items():
            off = (taken.get(program, 0) - usual) / self.cycles
            for sign in (1, -1):
                total, since = self._sums[program, sign]
                total += min(sign * off - self._slack[program], _MOST)
                total, since = (total, since + 1) if total > 0 else (0.0, 0)
                self._sums[program, sign] = total, since
                if total > _ENOUGH and (
                    found is None or abs(found.now - found.usual) < abs(off) * self.cycles
                ):
                    found = DetectedChange(program, usual, taken.get(program, 0), since)
        return found

    def _settle(self) -> DetectedChange | None:
        """Know what is usual, unless cycles are just changing; if they have, that is a drift."""
        last = self._first[-_USUAL:]
        totals = [sum(each.values()) for each in last]
        whole = median(totals)
        if max(totals) - min(totals) > _STEADY * whole and len(self._first) < _LONG:
            return None
        for program in {name for each in last for name in each}:
            values = [each.get(program, 0) for each in last]
            self._usual[program] = median(values)
            spread = median(abs(value - self._usual[program]) for value in values) / whole
            self._slack[program] = _SLACK + _SPREADS * spread
        early = [sum(each.values()) for each in self._first[:_BEGINNING]]
        first, steady = median(early), max(early) - min(early) <= _STEADY * whole
        if steady and len(self._first) < _LONG and abs(first - whole) > _ENOUGH * whole:
            return DetectedChange("all", first, whole, len(self._first))
        return None


class ChangeDetector:
    """Drift tests of a version: one for requests with none behind them, with one, and with more.

    Where memory is slow, reading the ring for the next request takes cycles from the one on its way.
    """

    def __init__(self) -> None:
        self._tests: dict[int, ChangeTest] = defaultdict(ChangeTest)

    @property
    def suspicious(self) -> bool:
        """Whether something may have changed."""
        return any(test.suspicious for test in self._tests.values())

    def take(self, result: RequestResult) -> DetectedChange | None:
        """Look at a request; whether something has changed."""
        return self._tests[min(result.behind, _BEHIND)].take(result)


def _by_program(result: RequestResult) -> dict[str, int]:
    """Cycles of a request by program."""
    out: dict[str, int] = defaultdict(int)
    for macro in result.macros:
        out[macro.program] += macro.cycles
    return dict(out)
