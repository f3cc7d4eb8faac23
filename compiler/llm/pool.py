"""Answers about a layer's schedule that wait for their turn."""

from collections.abc import Callable, Iterator, Sequence
from math import inf

from compiler.llm.ranking import Ranking
from compiler.llm.request import Schedules
from compiler.schedule.schedule import LayerSchedule

Answers = Iterator[Sequence[str]]


class Pool:
    """Answers that were drawn and not proposed yet.

    Parameters
    ----------
    request : Schedules
        The question.
    draw : callable
        Gives new answers to it, the likeliest first.
    ranking : Ranking or None
        Says what is proposed first; None: the likeliest.
    """

    def __init__(self, request: Schedules, draw: Callable[[], Answers], ranking: Ranking | None):
        self.request, self._draw, self._ranking = request, draw, ranking
        self._waiting: dict[LayerSchedule, Sequence[str]] = {}

    def fill(self) -> None:
        """Draw more answers."""
        self._waiting |= {self.request.meaning(words): words for words in self._draw()}

    def best(self, count: int | None = None, least: float = -inf) -> Answers:
        """Take answers, the most promising first.

        Parameters
        ----------
        count : int or None
            At most; None: all.
        least : float
            The part of the network's cycles that an answer promises to save, at least.
        """
        for _ in range(len(self._waiting) if count is None else min(count, len(self._waiting))):
            schedule, gain = self._first()
            if gain < least:
                return
            yield self._waiting.pop(schedule)

    def _first(self) -> tuple[LayerSchedule, float]:
        """The most promising one, and what it promises."""
        schedules, request = list(self._waiting), self.request
        if self._ranking is None:
            return schedules[0], inf
        promises = self._ranking.promises(request.task, request.about, schedules)
        best = max(range(len(schedules)), key=lambda number: promises[number].gain)
        return schedules[best], promises[best].gain
