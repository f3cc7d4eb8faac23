"""Queue of sampled schedules of a layer."""

from collections.abc import Callable, Iterator, Sequence
from math import inf

from compiler.llm.generate.requests import Schedules
from compiler.llm.generate.reranker import CostReranker
from compiler.schedule.schedule import LayerSchedule

Answers = Iterator[Sequence[str]]


class CandidatePool:
    """Sampled schedules of one layer that have not been proposed yet.

    Parameters
    ----------
    request : Schedules
        Request that the answers belong to.
    draw : callable
        Samples new answers to the request, most likely first.
    ranking : CostReranker or None
        Cost model that orders the proposals; None orders them by likelihood.
    proposed : set of str
        Digests of proposed networks; the digests of answers taken from the pool are added.
    """

    def __init__(
        self,
        request: Schedules,
        draw: Callable[[], Answers],
        ranking: CostReranker | None,
        proposed: set[str],
    ):
        self.request, self._draw, self._ranking, self._proposed = request, draw, ranking, proposed
        self._waiting: dict[LayerSchedule, Sequence[str]] = {}

    def fill(self, least: int) -> None:
        """Sample more answers if fewer than `least` are left."""
        if len(self._waiting) < least:
            for words in self._draw():
                self._waiting.setdefault(self.request.meaning(words), words)

    def best(self, count: int | None = None, least: float = -inf) -> Answers:
        """Yield compilable answers that lead to new programs, most promising first.

        Parameters
        ----------
        count : int or None
            Maximum number of answers; None for all.
        least : float
            Minimum predicted saving, as a fraction of the cycles of the network.
        """
        taken = 0
        while self._waiting and (count is None or taken < count):
            schedule, gain = self._first()
            if gain < least:
                return
            words = self._waiting.pop(schedule)
            digest = self.request.digest(schedule)
            if digest is not None and digest not in self._proposed:
                taken += 1
                self._proposed.add(digest)
                yield words

    def _first(self) -> tuple[LayerSchedule, float]:
        """Return the most promising schedule and its predicted saving."""
        schedules, request = list(self._waiting), self.request
        if self._ranking is None:
            return schedules[0], inf
        promises = self._ranking.promises(request.task, request.about, schedules)
        best = max(range(len(schedules)), key=lambda number: promises[number].gain)
        return schedules[best], promises[best].gain
