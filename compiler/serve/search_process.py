"""Who proposes candidates to a machine that serves: a search in a process of its own."""

import multiprocessing
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Self, TypeVar

from compiler.serve.search_worker import Begin, Changed, SearchFinding, SearchJob, SearchWorker
from hw.errors import MlaError

#: What a search is asked to do: to begin, to begin again after a change, to try a candidate.
Order = Begin | Changed | None
_END = "end"
T = TypeVar("T")
#: Seconds that a process has to end by itself, and once it has been told to leave what it is at.
_BRIEF_S, _PATIENCE_S = 2, 20


class LostError(MlaError):
    """The search has ended: its process was killed, or it failed."""


class Proposer(ABC):
    """Takes orders, and has findings some time later, in the same order.

    Attributes
    ----------
    waiting : int
        Orders without an answer.
    """

    waiting: int = 0

    @abstractmethod
    def order(self, what: Order) -> None:
        """Ask for something; LostError if nobody is there."""

    @abstractmethod
    def findings(self, *, wait: bool = False) -> list[SearchFinding]:
        """What has been found since the last call; `wait`: after all that was asked for. LostError as above."""

    @abstractmethod
    def close(self) -> None:
        """End it; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class SearchProcess(Proposer):
    """Searches in a process of its own, which may be killed at any time."""

    def __init__(self, job: SearchJob):
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(job, theirs), daemon=True, name="mla search")
        self.process.start()
        theirs.close()
        self._why: str | None = None

    def order(self, what: Order) -> None:
        """Send it."""
        self._talk(lambda: self._connection.send(what))
        self.waiting += 1

    def findings(self, *, wait: bool = False) -> list[SearchFinding]:
        """Receive what is there."""
        out: list[SearchFinding] = []
        while self.waiting and (wait or self._talk(self._connection.poll)):
            answer = self._talk(self._connection.recv)
            self.waiting -= 1
            if isinstance(answer, str):
                raise LostError(answer)
            out += answer
        return out

    def close(self) -> None:
        """Tell the process to end; it leaves what takes longer, such as a question to somebody else, or is killed."""
        with suppress(OSError):
            self._connection.send(_END)
            self._connection.close()
        self.process.join(_BRIEF_S)
        self.process.terminate()
        self.process.join(_PATIENCE_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def _talk(self, what: Callable[[], T]) -> T:
        try:
            return what()
        except (EOFError, OSError) as error:
            raise LostError("the process that searches has ended") from error


def _work(job: SearchJob, connection: Connection) -> None:
    """Carry out orders until there are no more, or nobody is there who gives any."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who serves: that one ends this one
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # unwinds it, so that its simulators close
    searcher = SearchWorker(job)
    try:
        with suppress(EOFError, OSError):
            while (order := connection.recv()) != _END:
                try:
                    answer: list[SearchFinding] | str = _carry_out(searcher, order)
                except MlaError as error:
                    answer = str(error)
                connection.send(answer)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        searcher.close()


def _carry_out(searcher: SearchWorker, order: Order) -> list[SearchFinding]:
    """What comes of an order."""
    if isinstance(order, Begin):
        return searcher.begin(order.dram, order.schedule)
    if isinstance(order, Changed):
        return searcher.adapt(order)
    return [searcher.trial()]
