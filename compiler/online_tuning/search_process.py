"""Client of a background search that runs in a separate process and proposes candidates to a server."""

import multiprocessing
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Self, TypeVar

from compiler.online_tuning.search_worker import (
    Begin,
    Changed,
    SearchFinding,
    SearchJob,
    SearchWorker,
    Withdrawn,
)
from hw.errors import MlaError, Terminated

#: Order to a search: begin, restart after a change, drop a schedule, or (None) try a candidate.
Order = Begin | Changed | Withdrawn | None
_END = "end"
#: Seconds without an order after which the process uses the time to retrain the cost model.
_IDLE_S = 1.0
T = TypeVar("T")
#: Seconds within which the process must exit after the end message, and after SIGTERM.
_EXIT_TIMEOUT_S, _TERMINATE_TIMEOUT_S = 2, 20
#: Seconds after which Terminated is raised again if Python has discarded it.
_RETRY_S = 0.01


class LostError(MlaError):
    """The search process was killed or has failed."""


class SearchClient(ABC):
    """Interface of a search that executes orders asynchronously, in the order of submission.

    Attributes
    ----------
    waiting : int
        Number of orders without a result.
    """

    waiting: int = 0

    @abstractmethod
    def submit(self, what: Order) -> None:
        """Submit an order; raise LostError if the search has ended unexpectedly."""

    @abstractmethod
    def findings(self, *, wait: bool = False) -> list[SearchFinding]:
        """Return the findings since the last call; with `wait`, block until all orders are complete.

        Raises
        ------
        LostError
            The search has ended unexpectedly.
        """

    @abstractmethod
    def close(self) -> None:
        """End the search; further calls have no effect."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class SearchProcess(SearchClient):
    """Search in a separate process, which may be killed at any time."""

    def __init__(self, job: SearchJob):
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(job, theirs), daemon=True, name="mla search")
        self.process.start()
        theirs.close()
        self._why: str | None = None

    def submit(self, what: Order) -> None:
        """Send an order to the process."""
        self._talk(lambda: self._connection.send(what))
        self.waiting += 1

    def findings(self, *, wait: bool = False) -> list[SearchFinding]:
        """Receive the available findings."""
        out: list[SearchFinding] = []
        while self.waiting and (wait or self._talk(self._connection.poll)):
            answer = self._talk(self._connection.recv)
            self.waiting -= 1
            if isinstance(answer, str):
                raise LostError(answer)
            out += answer
        return out

    def close(self) -> None:
        """End the process: send the end message, then SIGTERM, then SIGKILL."""
        with suppress(OSError):
            self._connection.send(_END)
            self._connection.close()
        self.process.join(_EXIT_TIMEOUT_S)
        self.process.terminate()
        self.process.join(_TERMINATE_TIMEOUT_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def _talk(self, what: Callable[[], T]) -> T:
        try:
            return what()
        except (EOFError, OSError) as error:
            raise LostError("the search process has ended unexpectedly") from error


def _terminate(*_: object) -> None:
    raise Terminated


def exit_on_sigterm() -> None:
    """Raise Terminated at SIGTERM, which unwinds the stack, so that the simulators close.

    Python discards an exception that is raised in a callback of the garbage collector or of an import; Terminated is
    then raised again a little later.
    """
    previous = sys.unraisablehook

    def again(unraisable: "sys.UnraisableHookArgs") -> None:
        if isinstance(unraisable.exc_value, Terminated):
            signal.setitimer(signal.ITIMER_REAL, _RETRY_S)
        else:
            previous(unraisable)

    sys.unraisablehook = again
    for each in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(each, _terminate)


def _work(job: SearchJob, connection: Connection) -> None:
    """Execute orders until the end message or until the connection closes."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is handled by the serving process, which ends this one
    exit_on_sigterm()
    searcher = SearchWorker(job)
    try:
        with suppress(EOFError, OSError):
            while True:
                if not connection.poll(_IDLE_S):
                    with suppress(MlaError):  # a lost database is reported with the next trial
                        searcher.retrain()
                if (order := connection.recv()) == _END:
                    break
                try:
                    answer: list[SearchFinding] | str = _execute(searcher, order)
                except MlaError as error:
                    answer = str(error)
                connection.send(answer)
                with suppress(MlaError):
                    searcher.learn_policy()
    finally:
        for each in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(each, signal.SIG_IGN)
        searcher.close()


def _execute(searcher: SearchWorker, order: Order) -> list[SearchFinding]:
    """Execute an order and return its findings."""
    if isinstance(order, Begin):
        return searcher.begin(order.dram, order.schedule)
    if isinstance(order, Changed):
        return searcher.adapt(order)
    if isinstance(order, Withdrawn):
        return searcher.withdraw(order.schedule)
    return searcher.trial()
