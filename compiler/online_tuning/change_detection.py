"""Change detection on the cycles of a served network: a CUSUM test for each program."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from compiler.serving.request import RequestResult

#: Number of requests that determine the baseline; minimum numbers of steady requests before and after a change that is
#: detected during the warm-up.
_BASELINE_REQUESTS, _STEADY_BEFORE, _STEADY_AFTER = 6, 2, 4
#: Maximum relative spread of baseline requests; number of requests after which any spread is accepted.
_MAX_SPREAD, _MAX_WARMUP_REQUESTS = 0.02, 20
#: Relative to the baseline cycles of a request: ignored deviation, threshold of the sum, and maximum contribution of
#: one request, which prevents a single large disturbance from being detected as a change.
_SLACK, _THRESHOLD, _MAX_STEP = 0.005, 0.04, 0.012
#: Ignored deviation from the expected cycles of a version that has no baseline yet.
_EXPECTATION_SLACK = 0.03
#: Initial sum of a test if another version shows that a change is likely: one request confirms it.
_PRIMED = _THRESHOLD - _MAX_STEP / 2
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
        self._last: dict[str, int] = {}
        self._sums: dict[tuple[str, int], tuple[float, int]] = defaultdict(lambda: (0.0, 0))

    @property
    def cycles(self) -> float:
        """Baseline cycles of a request."""
        return sum(self._usual.values())

    @property
    def has_baseline(self) -> bool:
        """True if the baseline has been set."""
        return bool(self._usual)

    @property
    def suspicious(self) -> bool:
        """True if recent requests deviate so much that more requests are needed to rule out a change."""
        if not self._usual:
            return not _steady([sum(each.values()) for each in self._first])
        return any(total > _MAX_STEP / 2 for total, _ in self._sums.values())

    def prime(self) -> DetectedChange | None:
        """Expect higher cycles; the parameters are those of `ChangeDetector.prime`."""
        if not self._usual and len(self._first) > _STEADY_BEFORE:
            totals = [sum(each.values()) for each in self._first]
            first = median(totals[:_STEADY_BEFORE])
            slow = _steady(totals[:_STEADY_BEFORE]) and totals[-1] > (1 + _THRESHOLD) * first
            return DetectedChange("all", first, totals[-1], 1) if slow else None
        found: DetectedChange | None = None
        for program, usual in self._usual.items():
            total, since = self._sums[program, 1]
            if total > _MAX_STEP / 2:
                found = DetectedChange(program, usual, self._last.get(program, 0), since)
            self._sums[program, 1] = max(total, _PRIMED), since
        return found

    def add(self, result: RequestResult) -> DetectedChange | None:
        """Add a request and return the detected change, or None; ignore requests disturbed by program loads."""
        if result.disturbed or not result.macros:
            return None
        cycles = _by_program(result)
        if not self._usual:
            self._first.append(cycles)
            return self._early_change() or self._set_baseline()
        found, self._last = None, cycles
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

    def _early_change(self) -> DetectedChange | None:
        """Return a change between the first requests and the last ones of the warm-up, or None."""
        totals = [sum(each.values()) for each in self._first]
        before, after = totals[:_STEADY_BEFORE], totals[-_STEADY_AFTER:]
        if len(totals) < _STEADY_BEFORE + _STEADY_AFTER or not (_steady(before) and _steady(after)):
            return None
        first, last = median(before), median(after)
        if abs(first - last) <= _THRESHOLD * last:
            return None
        count = next(
            number for number, total in enumerate(reversed(totals)) if abs(total - last) > _MAX_SPREAD * last
        )
        return DetectedChange("all", first, last, count)

    def _set_baseline(self) -> None:
        """Set the baseline once cycles are steady."""
        last = self._first[-_BASELINE_REQUESTS:]
        totals = [sum(each.values()) for each in last]
        if len(last) < _BASELINE_REQUESTS or (
            not _steady(totals) and len(self._first) < _MAX_WARMUP_REQUESTS
        ):
            return
        whole = median(totals)
        for program in {name for each in last for name in each}:
            values = [each.get(program, 0) for each in last]
            self._usual[program] = median(values)
            spread = median(abs(value - self._usual[program]) for value in values) / whole
            self._slack[program] = _SLACK + _SPREADS * spread


class ExpectationTest:
    """Two-sided CUSUM test on the cycles of a version without a baseline, relative to the expected cycles.

    Parameters
    ----------
    expected : float
        Cycles of a request that the measurement of the version and the requests of its predecessor let expect.
    """

    def __init__(self, expected: float):
        self.expected = expected
        self._sums = {1: 0.0, -1: 0.0}
        self._since = self._last = 0

    @property
    def suspicious(self) -> bool:
        """True if recent requests deviate so much that more requests are needed to rule out a change."""
        return max(self._sums.values()) > _MAX_STEP / 2

    def prime(self) -> DetectedChange | None:
        """Expect higher cycles; the parameters are those of `ChangeDetector.prime`."""
        found = self._change() if self._sums[1] > _MAX_STEP / 2 else None
        self._sums[1] = max(self._sums[1], _PRIMED)
        return found

    def add(self, result: RequestResult) -> DetectedChange | None:
        """Add a request and return the detected change, or None."""
        off = result.cycles / self.expected - 1
        for sign in self._sums:
            step = min(sign * off - _EXPECTATION_SLACK, _MAX_STEP)
            self._sums[sign] = max(self._sums[sign] + step, 0.0)
        self._since = self._since + 1 if any(self._sums.values()) else 0
        self._last = result.cycles
        return self._change() if max(self._sums.values()) > _THRESHOLD else None

    def _change(self) -> DetectedChange:
        return DetectedChange("all", self.expected, self._last, self._since)


class ChangeDetector:
    """Change tests of a version, one each for requests followed by zero, by one, and by more requests in flight.

    The tests are separate because, with slow memory, fetching the ring entries of the next request delays the current
    one. Until a test has a baseline, requests are compared with the expected cycles, if they are known.

    Parameters
    ----------
    expected : float or None
        Expected cycles of a request; None if unknown.
    """

    def __init__(self, expected: float | None = None) -> None:
        self._tests: dict[int, ChangeTest] = defaultdict(ChangeTest)
        self._expectation = ExpectationTest(expected) if expected else None

    @property
    def suspicious(self) -> bool:
        """True if any test needs more requests to rule out a change."""
        tests = [*self._tests.values(), *([self._expectation] if self._expectation else [])]
        return any(test.suspicious for test in tests)

    def prime(self) -> DetectedChange | None:
        """Expect higher cycles, because another version that was tried meanwhile has been slower than expected.

        The next request that takes more cycles than usual is then a change. Return the change if requests before have
        already taken more cycles than usual.
        """
        tests = [*self._tests.values(), *([self._expectation] if self._expectation else [])]
        return next(filter(None, [test.prime() for test in tests]), None)

    def add(self, result: RequestResult) -> DetectedChange | None:
        """Add a request and return the detected change, or None."""
        if result.disturbed or not result.macros:
            return None
        test = self._tests[min(result.queued_after, _MAX_QUEUED_AFTER)]
        found = test.add(result)
        if test.has_baseline:
            self._expectation = None
        elif found is None and self._expectation:
            found = self._expectation.add(result)
        return found


def _steady(totals: Sequence[int]) -> bool:
    """Return True if the cycles of requests differ by at most the spread that a baseline may have."""
    return not totals or max(totals) - min(totals) <= _MAX_SPREAD * median(totals)


def _by_program(result: RequestResult) -> dict[str, int]:
    """Return the cycles of a request by program name."""
    out: dict[str, int] = defaultdict(int)
    for macro in result.macros:
        out[macro.program] += macro.cycles
    return dict(out)
