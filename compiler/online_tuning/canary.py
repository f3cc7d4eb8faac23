"""Canary checks: the first requests of a new version decide whether it stays or is rolled back."""

from collections import deque
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from compiler.cost.roofline import bus_rate
from compiler.online_tuning.change_detection import ChangeDetector
from compiler.options import DramTiming
from compiler.profile.measurement import Rejected, Result
from compiler.runtime.compiled import CompiledNetwork, split_batch
from compiler.schedule.schedule import Schedule
from compiler.serving.request import RequestResult
from compiler.serving.versions import Version

#: Number of canary requests of a new version, whose outputs and cycles are checked.
CANARY_REQUESTS = 4
#: Tolerated excess over the measured cycles, as a fraction of them.
_TOLERANCE = 0.03
#: Ratio of observed to measured cycles above which a version is rolled back after one request.
_MAX_SLOWDOWN = 2.0
#: Number of recent requests whose median gives the typical cycles.
_RECENT_REQUESTS = 8
#: Number of requests that a version must serve after a rollback to it before it may be replaced again: the canary may
#: have been slow because conditions have changed, which is only detected in a version that serves for some time.
_COOLDOWN_REQUESTS = 4


@dataclass(eq=False)
class CanaryRequest:
    """Served version with its measured cycles and the cycles observed while serving."""

    version: Version
    schedule: Schedule
    measured: int | None
    drift: ChangeDetector = field(default_factory=ChangeDetector)
    count: int = 0
    cooldown: int = 0
    _clean: deque[int] = field(default_factory=lambda: deque(maxlen=_RECENT_REQUESTS))
    _all: deque[int] = field(default_factory=lambda: deque(maxlen=_RECENT_REQUESTS))

    @property
    def scale(self) -> float:
        """Ratio of the observed to the measured cycles; 1 if one of them is unknown."""
        return self.typical / self.measured if self.typical and self.measured else 1.0

    @property
    def typical(self) -> float | None:
        """Median cycles of recent requests; requests disturbed by program loads count only if there are no others."""
        cycles = self._clean or self._all
        return median(cycles) if cycles else None

    @property
    def settled(self) -> bool:
        """True if the version may be replaced: its cooldown is over, and its cycles show no sign of a change."""
        return not self.cooldown and not self.drift.suspicious

    def start_cooldown(self) -> None:
        """Start the cooldown after a rollback to this version."""
        self.cooldown = _COOLDOWN_REQUESTS

    def record(self, result: RequestResult) -> None:
        """Record the cycles of a request."""
        self.count += 1
        self.cooldown = max(self.cooldown - 1, 0)
        self._all.append(result.cycles)
        if not result.disturbed:
            self._clean.append(result.cycles)

    def reset(self) -> None:
        """Discard all measurements because conditions have changed."""
        self._clean.clear()
        self._all.clear()
        self.measured, self.drift = None, ChangeDetector()


def reject_reason(found: Result) -> str | None:
    """Return the reason why a measured schedule must not be deployed; None if it may be deployed."""
    if isinstance(found, Rejected):
        return f"{found.stage}: {found.reason}"
    if not found.exact:
        return "its outputs are wrong"
    if found.cycles < found.floor:
        return f"{found.cycles} cycles is below the lower bound of {found.floor} cycles"
    return None


def tuned_part(result: RequestResult, batch: int) -> RequestResult | None:
    """Return the result with the cycles of the programs that the search tunes; None if a request did not run them.

    Parameters
    ----------
    result : RequestResult
        Result of a completed request.
    batch : int
        Batch size of the tuned programs. In a network with one batch size, other programs are those whose guards skip
        work, and probes of tensors, which contain no layers.
    """
    network = result.version.network
    if network.smaller:
        return result if network.batch_for(result.batch_size) == batch else None
    if not network.alternatives.isdisjoint(macro.program for macro in result.macros):
        return None
    probes = {part.program.name for code in network.codes for part in code.parts if not part.layers}
    macros = tuple(macro for macro in result.macros if macro.program not in probes)
    if len(macros) == len(result.macros):
        return result
    return replace(result, macros=macros, cycles=sum(macro.cycles for macro in macros))


def canary_failure(
    result: RequestResult,
    served: CanaryRequest,
    before: CanaryRequest,
    reference: CompiledNetwork,
    dram: DramTiming | None,
) -> tuple[str | None, bool]:
    """Return a fault message or None for a canary version, and True if its outputs must be discarded.

    Parameters
    ----------
    result : RequestResult
        Completed request of the canary version.
    served, before : CanaryRequest
        Canary version, and the version that it replaced.
    reference : CompiledNetwork
        Network that computes the expected outputs on the golden model.
    dram : DramTiming or None
        Timing of the DRAM; None on a machine without a clock, or if other programs than the tuned ones ran.
    """
    wrong = wrong_outputs(result, reference)
    if wrong is None and dram is not None:
        wrong = below_roofline(result, dram)
        return wrong or too_slow(result, served, before), wrong is not None
    return wrong, wrong is not None


def wrong_outputs(result: RequestResult, reference: CompiledNetwork) -> str | None:
    """Return a fault message if outputs or states differ from the reference on the golden model, else None.

    Only the samples of a batch that are used are compared.
    """
    outputs, states = reference.step(result.inputs, result.states)
    expected, found = (split_batch(reference, each, result.batch_size) for each in (outputs, result.outputs))
    for what, pairs in (
        ("outputs", zip(expected, found, strict=True)),
        ("states", [(states, result.next_states)]),
    ):
        if not all(np.array_equal(own[name], array) for right, own in pairs for name, array in right.items()):
            return f"the {what} of request {result.index} are wrong"
    return None


def below_roofline(result: RequestResult, dram: DramTiming) -> str | None:
    """Return a fault message if a request took fewer cycles than the roofline allows, else None."""
    network = result.version.network
    rate = bus_rate(network.config, dram.bytes_per_cycle)
    variant = network.for_samples(result.batch_size)
    work = variant.floor if variant else network.work(result.runs)
    floor = work.cycles(network.config, rate)
    if result.cycles >= floor:
        return None
    return f"{result.cycles} cycles is below the lower bound of {floor} cycles"


def too_slow(result: RequestResult, served: CanaryRequest, before: CanaryRequest) -> str | None:
    """Return a fault message if a version is slower than measured or than its predecessor, else None."""
    assert served.measured is not None
    expected = served.measured * before.scale
    if result.cycles > _MAX_SLOWDOWN * expected and not result.disturbed:
        return f"request {result.index} took {result.cycles} cycles, measured {expected:.0f}"
    if served.count < CANARY_REQUESTS or served.typical is None:
        return None
    if served.typical > expected * (1 + _TOLERANCE):
        return f"{served.typical:.0f} cycles per request, measured {expected:.0f}"
    if before.typical is not None and served.typical > before.typical:
        return f"{served.typical:.0f} cycles per request, the replaced version took {before.typical:.0f}"
    return None
