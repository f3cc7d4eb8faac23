"""Audits of a cascade: a share of the requests is also computed exactly, and the loss is bounded statistically."""

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from compiler.serving.request import Request, RequestResult
from compiler.serving.server import Server
from compiler.serving.versions import Version

#: Variant of a request that was also computed exactly.
AUDITED = "audited"
#: Mean cost of the audits of many requests, as a fraction of the cycles of a request.
_MAX_COST = 0.02
#: Expected number of the first requests that are audited; the share of later ones falls with their number.
_FIRST_AUDITS = 2.0
#: Number of recent requests of each kind whose mean gives the typical cycles.
_RECENT_REQUESTS = 64
#: Probability that a one-sided bound is ever wrong.
_ALPHA = 0.05
#: Ratios of the alternatives to a hypothesis that the wealth is divided among: for a lower and an upper bound.
_ABOVE, _BELOW = (1.5, 2.0, 4.0, 8.0, 16.0, 32.0), (0.0, 0.125, 0.25, 0.5, 0.75)
#: Number of bisection steps for a bound.
_STEPS = 50


def log_wealth(changed: int, audited: int, share: float, ratios: tuple[float, ...]) -> float:
    """Return the logarithm of the wealth of a gambler who bets against a share of changed labels.

    The wealth is the mean of likelihood ratios of Bernoulli distributions, with the share times each ratio as the
    alternative. If each label changes with a probability of at most `share` (for ratios above 1; at least for ratios
    below 1), given all earlier ones, the wealth is a nonnegative supermartingale that starts at 1. By Ville's
    inequality, the probability that it ever reaches 1 / alpha is at most alpha.

    Parameters
    ----------
    changed, audited : int
        Number of changed labels, and of audited requests.
    share : float
        Hypothesis, between 0 and 1.
    ratios : tuple of float
        All above 1, or all below.
    """
    terms = []
    for ratio in ratios:
        other = min(share * ratio, 1.0)
        factor = min(ratio, 1 / share)
        terms.append(_times(changed, factor) + _times(audited - changed, (1 - other) / (1 - share)))
    top = max(terms)
    if math.isinf(top):
        return top
    return top + math.log(sum(math.exp(each - top) for each in terms) / len(terms))


def _times(count: int, factor: float) -> float:
    """Return the logarithm of a power, where 0 ** 0 is 1."""
    return 0.0 if not count else count * math.log(factor) if factor > 0 else -math.inf


@dataclass
class LossBound:
    """Confidence sequence for the share of changed labels, which holds for all numbers of audits at the same time.

    Both bounds are those of a test by betting (Waudby-Smith and Ramdas, "Estimating means of bounded random variables
    by betting", 2024): the shares against which the wealth of `log_wealth` has not reached 1 / alpha. Each bound is
    wrong at any time with a probability of at most 5%.

    Attributes
    ----------
    audited, changed : int
        Number of audited requests, and of those among them whose label is not that of the exact network.
    """

    audited: int = 0
    changed: int = 0

    def add(self, *, changed: bool) -> None:
        """Add an audited request."""
        self.audited += 1
        self.changed += changed

    def exceeds(self, share: float) -> bool:
        """Return True if the lower bound is at least a share."""
        return log_wealth(self.changed, self.audited, share, _ABOVE) >= -math.log(_ALPHA)

    @property
    def lower(self) -> float:
        """Lower bound of the share of changed labels."""
        return self._bisected(_ABOVE, 0.0, 1.0)

    @property
    def upper(self) -> float:
        """Upper bound of the share of changed labels."""
        return self._bisected(_BELOW, 1.0, 0.0)

    def _bisected(self, ratios: tuple[float, ...], refuted: float, possible: float) -> float:
        """Return the bound between a share that is refuted (or an end) and one that is not: wealth is monotonic."""
        for _ in range(_STEPS):
            middle = (refuted + possible) / 2
            if log_wealth(self.changed, self.audited, middle, ratios) >= -math.log(_ALPHA):
                refuted = middle
            else:
                possible = middle
        return refuted

    def document(self) -> dict[str, Any]:
        """Return the counts and bounds as JSON fields."""
        share = self.changed / self.audited if self.audited else None
        return {
            "audited": self.audited,
            "changed": self.changed,
            "share": share,
            "lower": round(self.lower, 6),
            "upper": round(self.upper, 6),
            "confidence": 1 - _ALPHA,
        }


@dataclass(eq=False)
class _Waiting:
    """Request whose result is not delivered yet.

    `audit` is True if it was chosen before it ran, and `changed` is the result of the audit.
    """

    index: int
    audit: bool
    result: RequestResult | None = None
    done: bool = False
    changed: bool = False


class AuditedServer:
    """Submits requests to a cascade, computes some of them exactly, too, and returns to exact results after a loss.

    Each request is chosen for an audit at random before it runs. If the cascade then accepts the narrow network's
    label, the exact version runs, too; the labels are compared, and the exact results are delivered. An audited request
    that the cascade has computed exactly counts as unchanged. The share of audits is at least 2 / (number of the
    request), and otherwise so that their mean cost is 2% of the cycles of a request.

    If the lower bound of the share of changed labels reaches the budget, all later requests run exactly.

    Parameters
    ----------
    server : Server
        Server of the exact version, which receives requests from this object only.
    cascade : Version or None
        Version of the same network that is a cascade; None to run exactly from the beginning.
    budget : float
        Largest share of requests whose label may differ.
    seed : int
        Seed of the choice of audits.
    violated : callable
        Called once with the index of the request and the bound if the budget is violated.
    reason : str
        Why there is no cascade.
    """

    def __init__(
        self,
        server: Server,
        cascade: Version | None,
        budget: float,
        seed: int = 0,
        violated: Callable[[int, LossBound], None] = lambda _index, _bound: None,
        reason: str = "",
    ):
        self.server, self.cascade, self.budget, self.violated = server, cascade, budget, violated
        self.bound, self.rolled_back = LossBound(), False
        self.submitted = self.fallbacks = self.accepted = 0
        self._reason = reason
        self._random = random.Random(seed)
        self._waiting: dict[int, _Waiting] = {}  # by the server's index
        self._order: deque[_Waiting] = deque()
        self._costs: deque[int] = deque(maxlen=_RECENT_REQUESTS)
        self._exact_costs: deque[int] = deque(maxlen=_RECENT_REQUESTS)
        self._accepting = cascade.network.alternatives if cascade else frozenset()

    def submit(self, request: Request) -> None:
        """Submit a request; block while there is no free slot.

        Raises
        ------
        InputError
            An input is missing or unknown, or its shape or type differs from the model's.
        """
        version = None if self.rolled_back else self.cascade
        index = self.server.submit(request.inputs, version=version)
        audit = version is not None and self._random.random() < self._share()
        waiting = _Waiting(self.submitted, audit)
        self.submitted += 1
        self._waiting[index] = waiting
        self._order.append(waiting)

    def results(self, *, wait: bool = False) -> list[RequestResult]:
        """Return the results since the last call, in order; with `wait`, block until all requests are complete."""
        while True:
            for result in self.server.results(wait=wait):
                self._take(result)
            if not wait or not self._waiting:
                break
        out = []
        while self._order and self._order[0].done:
            first = self._order.popleft()
            assert first.result is not None
            if first.audit:  # in order: which requests complete first depends on their results
                self._count(first.index, changed=first.changed)
            out.append(first.result)
        return out

    def document(self) -> dict[str, Any]:
        """Return the figures of the cascade and of the audits as JSON fields."""
        return {
            "budget": self.budget,
            "accepted": self.accepted,
            "fallbacks": self.fallbacks,
            "rolled_back": self.rolled_back,
            "exact_from_the_start": self._reason or None,
            **self.bound.document(),
        }

    def summary(self) -> str:
        """Return the figures of `document` as one line of text."""
        if self.cascade is None:
            return f"all requests exact: {self._reason}"
        bound = self.bound
        return (
            f"{self.accepted:,} labels accepted, {self.fallbacks:,} not; {bound.changed:,} of {bound.audited:,} "
            f"audited labels changed: {bound.lower:.2%} to {bound.upper:.2%} of all, budget {self.budget:.3%}"
            f"{', rolled back' if self.rolled_back else ''}"
        )

    def _share(self) -> float:
        """Return the probability with which the next request is audited."""
        cost = 1.0
        if self._costs and self._exact_costs and mean(self._costs):
            cost = mean(self._exact_costs) / mean(self._costs)
        return max(min(_MAX_COST / max(cost, _MAX_COST), 1.0), _FIRST_AUDITS / (self.submitted + 1))

    def _take(self, result: RequestResult) -> None:
        """Process a result of the server: of a request, or of the exact version for an audit."""
        waiting = self._waiting.pop(result.index)
        if waiting.result is not None:
            self._audited(waiting, waiting.result, result)
        elif result.version is not self.cascade:
            why = self._reason or "the budget was violated before"
            self._finish(waiting, replace(result, index=waiting.index, variant="usual", why=why))
        else:
            self._answered(waiting, replace(result, index=waiting.index))

    def _answered(self, waiting: _Waiting, result: RequestResult) -> None:
        """Process a result of the cascade, and start its audit."""
        accepted = any(macro.program in self._accepting for macro in result.macros)
        self.accepted += accepted
        self.fallbacks += not accepted
        self._costs.append(result.cycles)
        if not accepted:
            why = "the largest output of the narrow network is below the threshold"
            self._finish(waiting, replace(result, variant="exact: low confidence", why=why))
        elif not waiting.audit:
            why = "the largest output of the narrow network is not below the threshold"
            self._finish(waiting, replace(result, variant="narrow", why=why))
        else:
            waiting.result = result
            self._waiting[self.server.submit(result.inputs)] = waiting

    def _audited(self, waiting: _Waiting, narrow: RequestResult, exact: RequestResult) -> None:
        """Compare the labels of both networks, and deliver the exact results with the cycles of both."""
        self._exact_costs.append(exact.cycles)
        waiting.changed = _label(narrow) != _label(exact)
        result = replace(
            exact,
            index=waiting.index,
            macros=(*narrow.macros, *exact.macros),
            cycles=narrow.cycles + exact.cycles,
            delay=narrow.delay + exact.delay,
            disturbed=True,
            variant=AUDITED,
            why=f"also computed exactly, the label {'differs' if waiting.changed else 'is the same'}",
        )
        self._finish(waiting, result)

    def _count(self, index: int, *, changed: bool) -> None:
        self.bound.add(changed=changed)
        if not self.rolled_back and self.bound.exceeds(self.budget):
            self.rolled_back = True
            self.violated(index, self.bound)

    def _finish(self, waiting: _Waiting, result: RequestResult) -> None:
        waiting.result, waiting.done = result, True


def _label(result: RequestResult) -> int:
    """Return the index of the largest element of the only output."""
    (output,) = result.outputs.values()
    return int(output.argmax())
