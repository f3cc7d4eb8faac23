"""What decides about a new version: the first requests that it carries out."""

from collections import deque
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from compiler.cost.roofline import bus_rate
from compiler.options import DramTiming
from compiler.profile.measurement import Rejected
from compiler.profile.measurement import Result as Found
from compiler.runtime.compiled import CompiledNetwork
from compiler.schedule.schedule import Schedule
from compiler.serve.change_detection import ChangeDetector
from compiler.server.request import RequestResult
from compiler.server.versions import Version

#: A new version's first requests, whose outputs are compared with the reference and whose cycles decide about it.
PROBATION = 4
#: What a version may take more than was measured.
_TOLERANCE = 0.03
#: A version that takes so many times as long is not given a second request.
_HOPELESS = 2.0
#: Requests that say what is usual.
_RECENT = 8
#: Requests that a version must serve, after another one was rolled back to it, before the next may take its place: that
#: other one may have been slow because conditions have changed, and only what serves for some time shows that.
_REST = 4


@dataclass(eq=False)
class CanaryRequest:
    """A version, what it was measured to take, and what it takes."""

    version: Version
    schedule: Schedule
    measured: int | None
    drift: ChangeDetector = field(default_factory=ChangeDetector)
    count: int = 0
    rest: int = 0
    _clean: deque[int] = field(default_factory=lambda: deque(maxlen=_RECENT))
    _all: deque[int] = field(default_factory=lambda: deque(maxlen=_RECENT))

    @property
    def usual(self) -> float | None:
        """Cycles of a request, as far as they are known; those during loads of programs only if there are no others."""
        taken = self._clean or self._all
        return median(taken) if taken else None

    @property
    def settled(self) -> bool:
        """Whether another version may take its place: it is known what it takes, and that this has not changed."""
        return not self.rest and not self.drift.suspicious

    def returned(self) -> None:
        """A version that had taken its place has been rolled back."""
        self.rest = _REST

    def take(self, result: RequestResult) -> None:
        """Take note of a request's cycles."""
        self.count += 1
        self.rest = max(self.rest - 1, 0)
        self._all.append(result.cycles)
        if not result.disturbed:
            self._clean.append(result.cycles)

    def forget(self) -> None:
        """Conditions have changed."""
        self._clean.clear()
        self._all.clear()
        self.measured, self.drift = None, ChangeDetector()


def reject_reason(found: Found) -> str | None:
    """Why what came of a trial must not be brought in; None if it may."""
    if isinstance(found, Rejected):
        return f"{found.stage}: {found.reason}"
    if not found.exact:
        return "its outputs are wrong"
    few = f"{found.cycles} cycles are fewer than the {found.floor} that the work takes"
    return None if found.believable else few


def canary_failure(
    result: RequestResult,
    served: CanaryRequest,
    before: CanaryRequest,
    reference: CompiledNetwork,
    dram: DramTiming | None,
) -> tuple[str | None, bool]:
    """What is wrong with a version on probation, and whether its outputs must not be used.

    Parameters
    ----------
    result : Result
        A request that it carried out.
    served, before : Served
        It, and what it has replaced.
    reference : Network
        What outputs are compared with.
    dram : Dram or None
        The memory; None on a machine without a clock.
    """
    wrong = wrong_outputs(result, reference)
    if wrong is None and dram is not None:
        wrong = below_roofline(result, dram)
        return wrong or too_slow(result, served, before), wrong is not None
    return wrong, wrong is not None


def wrong_outputs(result: RequestResult, reference: CompiledNetwork) -> str | None:
    """Whether outputs are not those of a reference, on the golden model."""
    expected = reference(**result.inputs)
    if all(np.array_equal(result.outputs[name], array) for name, array in expected.items()):
        return None
    return f"the outputs of request {result.index} are wrong"


def below_roofline(result: RequestResult, dram: DramTiming) -> str | None:
    """Whether a request took fewer cycles than its work does on any machine of this size."""
    network = result.version.network
    rate = bus_rate(network.config, dram.bytes_per_cycle)
    floor = network.work(result.runs).cycles(network.config, rate)
    if result.cycles >= floor:
        return None
    return f"{result.cycles} cycles are fewer than the {floor} that the work takes"


def too_slow(result: RequestResult, served: CanaryRequest, before: CanaryRequest) -> str | None:
    """Whether a version takes longer than it was measured to, or than the one before it."""
    assert served.measured is not None
    scale = before.usual / before.measured if before.usual and before.measured else 1.0
    expected = served.measured * scale
    if result.cycles > _HOPELESS * expected and not result.disturbed:
        return f"request {result.index} took {result.cycles} cycles, not {expected:.0f} as measured"
    if served.count < PROBATION or served.usual is None:
        return None
    if served.usual > expected * (1 + _TOLERANCE):
        return f"{served.usual:.0f} cycles a request, not {expected:.0f} as measured"
    if before.usual is not None and served.usual > before.usual:
        return f"{served.usual:.0f} cycles a request, before it was {before.usual:.0f}"
    return None
