"""Answers about a layer's schedule that wait for their turn."""

from collections.abc import Callable, Iterator, Sequence
from math import inf

from compiler.llm.ranking import Ranking
from compiler.llm.request import Schedules
from compiler.schedule.schedule import LayerSchedule

Answers = Iterator[Sequence[str]]


class Pool:
    """Answers that were drawn and not proposed yet, no two of which come to the same programs.

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
        self, request: Schedules, draw: Callable[[], Answers], ranking: Ranking | None, proposed: set[str]
    ):
        self.request, self._draw, self._ranking, self._proposed = request, draw, ranking, proposed
        self._waiting: dict[str, tuple[LayerSchedule, Sequence[str]]] = {}

    def fill(self, least: int) -> None:
        """Draw more answers if there are fewer than `least`."""
        if len(self._waiting) < least:
            for words in self._draw():
                digest = self.request.digest(words)
                if digest is not None and digest not in self._proposed:
                    self._waiting.setdefault(digest, (self.request.meaning(words), words))

    def best(self, count: int | None = None, least: float = -inf) -> Answers:
        """Take answers, the most promising first.

        Parameters
        ----------
        count : int or None
            At most; None: all.
        least : float
            The part of the network's cycles that an answer promises to save, at least.
        """
        taken = 0
        while self._waiting and (count is None or taken < count):
            digest, gain = self._first()
            if gain < least:
                return
            taken += 1
            self._proposed.add(digest)
            yield self._waiting.pop(digest)[1]

    def _first(self) -> tuple[str, float]:
        """The most promising one, and what it promises."""
        digests, request = list(self._waiting), self.request
        if self._ranking is None:
            return digests[0], inf
        schedules = [schedule for schedule, _ in self._waiting.values()]
        promises = self._ranking.promises(request.task, request.about, schedules)
        best = max(range(len(digests)), key=lambda number: promises[number].gain)
        return digests[best], promises[best].gain
