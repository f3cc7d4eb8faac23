"""Answers about a layer's schedule that wait for their turn."""

from collections.abc import Callable, Iterator, Sequence
from math import inf

from compiler.llm.generate.requests import Schedules
from compiler.llm.generate.reranker import CostReranker
from compiler.schedule.schedule import LayerSchedule

Answers = Iterator[Sequence[str]]


class CandidatePool:
    """Answers that were drawn and not proposed yet.

    Parameters
    ----------
    request : Schedules
        The question.
    draw : callable
        Gives new answers to it, the likeliest first.
    ranking : Ranking or None
        Says what is proposed first; None: the likeliest.
    proposed : set of str
        Digests of networks that were proposed: those of answers that are taken are added.
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
        """Draw more answers if there are fewer than `least`."""
        if len(self._waiting) < least:
            for words in self._draw():
                self._waiting.setdefault(self.request.meaning(words), words)

    def best(self, count: int | None = None, least: float = -inf) -> Answers:
        """Take answers that can be compiled, to programs that were not proposed, the most promising first.

        Parameters
        ----------
        count : int or None
            At most; None: all.
        least : float
            The part of the network's cycles that an answer promises to save, at least.
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
        """The most promising one, and what it promises."""
        schedules, request = list(self._waiting), self.request
        if self._ranking is None:
            return schedules[0], inf
        promises = self._ranking.promises(request.task, request.about, schedules)
        best = max(range(len(schedules)), key=lambda number: promises[number].gain)
        return schedules[best], promises[best].gain
