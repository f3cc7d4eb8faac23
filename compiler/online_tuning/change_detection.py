"""Change detection on the cycles of a served network: a CUSUM test for each program."""

from collections import defaultdict
from dataclasses import dataclass
from statistics import median

from compiler.serving.request import RequestResult

#: Number of requests that determine the baseline; number of first requests that are compared with it to detect a
#: change during the warm-up.
_BASELINE_REQUESTS, _EARLY_REQUESTS = 6, 3
#: Maximum relative spread of baseline requests; number of requests after which any spread is accepted.
_MAX_SPREAD, _MAX_WARMUP_REQUESTS = 0.02, 20
#: Relative to the baseline cycles of a request: ignored deviation, threshold of the sum, and maximum contribution of
#: one request, which prevents a single large disturbance from being detected as a change.
_SLACK, _THRESHOLD, _MAX_STEP = 0.005, 0.04, 0.012
#: Number of later requests in flight above which numbers are not distinguished.
_MAX_QUEUED_AFTER = 2
#: Multiple of the baseline's median absolute deviation that is also ignored.
_SPREADS = 3


@dataclass(frozen=True)
class DetectedChange:
    """Change in the cycles of a program.

    Parameters
    ----------
    program : str
        Name of the program that changed most; "all" for a change during the warm-up.
    usual, now : float
        Cycles of the program per request, before and after the change.
    requests : int
        Number of requests since the cumulative sum was last zero.
    """

    program: str
    usual: float
    now: float
    requests: int


class ChangeTest:
    """Two-sided CUSUM test on the cycles of each program.

    A lasting change in any program by one percent of a request's cycles is detected within nine requests, and a large
    change within four. The baseline is the median of the first requests.
    """

    def __init__(self) -> None:
        self._first: list[dict[str, int]] = []
        self._usual: dict[str, float] = {}
        self._slack: dict[str, float] = {}
        self._sums: dict[tuple[str, int], tuple[float, int]] = defaultdict(lambda: (0.0, 0))

    @property
    def cycles(self) -> float:
        """Baseline cycles of a request."""
        return sum(self._usual.values())

    @property
    def suspicious(self) -> bool:
        """True if recent requests deviate so much that more requests are needed to rule out a change."""
        return any(total > _MAX_STEP / 2 for total, _ in self._sums.values())

    def add(self, result: RequestResult) -> DetectedChange | None:
        """Add a request and return the detected change, or None; ignore requests disturbed by program loads."""
        if result.disturbed or not result.macros:
            return None
        cycles = _by_program(result)
        if not self._usual:
            self._first.append(cycles)
            return self._set_baseline() if len(self._first) >= _BASELINE_REQUESTS else None
        found: DetectedChange | None = None
        for program, usual in self._usual.items():
            off = (cycles.get(program, 0) - usual) / self.cycles
            for sign in (1, -1):
                total, since = self._sums[program, sign]
                total += min(sign * off - self._slack[program], _MAX_STEP)
                total, since = (total, since + 1) if total > 0 else (0.0, 0)
                self._sums[program, sign] = total, since
                if total > _THRESHOLD and (
                    found is None or abs(found.now - found.usual) < abs(off) * self.cycles
                ):
                    found = DetectedChange(program, usual, cycles.get(program, 0), since)
        return found

    def _set_baseline(self) -> DetectedChange | None:
        """Set the baseline once cycles are steady; return a change that occurred during the warm-up, or None."""
        last = self._first[-_BASELINE_REQUESTS:]
        totals = [sum(each.values()) for each in last]
        whole = median(totals)
        if max(totals) - min(totals) > _MAX_SPREAD * whole and len(self._first) < _MAX_WARMUP_REQUESTS:
            return None
        for program in {name for each in last for name in each}:
            values = [each.get(program, 0) for each in last]
            self._usual[program] = median(values)
            spread = median(abs(value - self._usual[program]) for value in values) / whole
            self._slack[program] = _SLACK + _SPREADS * spread
        early = [sum(each.values()) for each in self._first[:_EARLY_REQUESTS]]
        first, steady = median(early), max(early) - min(early) <= _MAX_SPREAD * whole
        if steady and len(self._first) < _MAX_WARMUP_REQUESTS and abs(first - whole) > _THRESHOLD * whole:
            return DetectedChange("all", first, whole, len(self._first))
        return None


class ChangeDetector:
    """Change tests of a version, one each for requests followed by zero, by one, and by more requests in flight.

    The tests are separate because, with slow memory, fetching the ring entries of the next request delays the current
    one.
    """

    def __init__(self) -> None:
        self._tests: dict[int, ChangeTest] = defaultdict(ChangeTest)

    @property
    def suspicious(self) -> bool:
        """True if any test needs more requests to rule out a change."""
        return any(test.suspicious for test in self._tests.values())

    def add(self, result: RequestResult) -> DetectedChange | None:
        """Add a request and return the detected change, or None."""
        return self._tests[min(result.queued_after, _MAX_QUEUED_AFTER)].add(result)


def _by_program(result: RequestResult) -> dict[str, int]:
    """Return the cycles of a request by program name."""
    out: dict[str, int] = defaultdict(int)
    for macro in result.macros:
        out[macro.program] += macro.cycles
    return dict(out)
