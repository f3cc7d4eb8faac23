"""Who proposes candidates to a machine that serves: in the same process, in step, or in one of its own."""

import multiprocessing
import signal
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Self, TypeVar

from compiler.schedule.dram import Dram
from compiler.serve.searcher import Changed, Finding, Job, Searcher
from hw.errors import MlaError

#: What a search is asked to do: to begin under some conditions, to begin again after a change, to try a candidate.
Order = Dram | Changed | None
_END = "end"
T = TypeVar("T")
_PATIENCE_S = 20


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
    def findings(self, *, wait: bool = False) -> list[Finding]:
        """What has been found since the last call; `wait`: after all that was asked for. LostError as above."""

    @abstractmethod
    def close(self) -> None:
        """End it; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def carry_out(searcher: Searcher, order: Order) -> list[Finding]:
    """What comes of an order."""
    if isinstance(order, Dram):
        return searcher.begin(order)
    if isinstance(order, Changed):
        return searcher.adapt(order)
    return [searcher.trial()]


class InStep(Proposer):
    """Searches in this process, when its findings are asked for: runs that repeat exactly."""

    def __init__(self, job: Job):
        self._searcher = Searcher(job)
        self._orders: deque[Order] = deque()

    def order(self, what: Order) -> None:
        """Remember it."""
        self._orders.append(what)
        self.waiting += 1

    def findings(self, *, wait: bool = False) -> list[Finding]:
        """Carry all out."""
        out: list[Finding] = []
        while self._orders:
            self.waiting -= 1
            try:
                out += carry_out(self._searcher, self._orders.popleft())
            except MlaError as error:
                raise LostError(str(error)) from error
        return out

    def close(self) -> None:
        """Close its simulators."""
        self._searcher.close()


class Beside(Proposer):
    """Searches in a process of its own, which may be killed at any time."""

    def __init__(self, job: Job):
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

    def findings(self, *, wait: bool = False) -> list[Finding]:
        """Receive what is there."""
        out: list[Finding] = []
        while self.waiting and (wait or self._talk(self._connection.poll)):
            answer = self._talk(self._connection.recv)
            self.waiting -= 1
            if isinstance(answer, str):
                raise LostError(answer)
            out += answer
        return out

    def close(self) -> None:
        """Tell the process to end; one that does not is killed."""
        with suppress(OSError):
            self._connection.send(_END)
            self._connection.close()
        self.process.join(_PATIENCE_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def _talk(self, what: Callable[[], T]) -> T:
        try:
            return what()
        except (EOFError, OSError) as error:
            raise LostError("the process that searches has ended") from error


def _work(job: Job, connection: Connection) -> None:
    """Carry out orders until there are no more, or nobody is there who gives any."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who serves: that one ends this one
    searcher = Searcher(job)
    try:
        with suppress(EOFError, OSError):
            while (order := connection.recv()) != _END:
                try:
                    answer: list[Finding] | str = carry_out(searcher, order)
                except MlaError as error:
                    answer = str(error)
                connection.send(answer)
    finally:
        searcher.close()
