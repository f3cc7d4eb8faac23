"""Who measures: this process, or several of its own."""

import multiprocessing
import signal
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Self

from compiler.profile.measurement import Result
from compiler.tuning.measure.runner import MeasureOrder, MeasureRunner, MeasureSubject
from compiler.util.progress import building
from hw.errors import MlaError, WorkError

#: Processes that may die of one order.
_ATTEMPTS = 3


class WorkerGroup(ABC):
    """Carry out orders, some at a time.

    Attributes
    ----------
    count : int
        Orders carried out at the same time.
    """

    count: int = 1

    @abstractmethod
    def results(self, orders: Sequence[MeasureOrder]) -> Iterator[tuple[int, Result]]:
        """What came of each, with its place among them, as soon as it is there.

        Raises
        ------
        WorkError
            Simulators or processes die again and again, or a disk is full.
        """

    def prepare(self) -> None:  # noqa: B027
        """Build what they need, and show the progress of that; workers on other machines build it themselves."""

    @abstractmethod
    def close(self) -> None:
        """End them; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class LocalWorker(WorkerGroup):
    """The process that asks, with one machine."""

    def __init__(self, subject: MeasureSubject):
        self._bench = MeasureRunner(subject)

    def results(self, orders: Sequence[MeasureOrder]) -> Iterator[tuple[int, Result]]:
        """One after the other."""
        for place, order in enumerate(orders):
            yield place, self._bench.measure(order)

    def close(self) -> None:
        """Close the machine."""
        self._bench.close()


class _Worker:
    """A process with a bench, and what it is at."""

    def __init__(self, subject: MeasureSubject):
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), daemon=True, name="mla measure")
        self.process.start()
        theirs.close()
        self.place: int | None = None
        self._subject: MeasureSubject | None = subject

    def send(self, place: int, order: MeasureOrder) -> None:
        """Give it something to do; that it has died shows when its answer is asked for."""
        self.place = place
        with suppress(OSError):
            if self._subject is not None:
                self.connection.send(self._subject)
                self._subject = None
            self.connection.send(order)

    def answer(self) -> tuple[int, Result | None]:
        """Which order it was at and what came of it; None if the process has died."""
        place, self.place = self.place, None
        assert place is not None
        try:
            answer = self.connection.recv()
        except (EOFError, OSError):
            return place, None
        if isinstance(answer, str):
            raise WorkError(answer)
        return place, answer

    def close(self) -> None:
        """End it, whatever it is at: its simulator ends with it."""
        self.process.kill()
        self.process.join()
        self.connection.close()


class WorkerPool(WorkerGroup):
    """Processes of this one, each with a machine; one that dies is replaced, and its order carried out again.

    Compiling and proving take longer than simulating small networks, and threads would do that one after the other.

    Parameters
    ----------
    subject : Subject
        What is measured.
    count : int
        How many; they start with the first orders.
    """

    def __init__(self, subject: MeasureSubject, count: int):
        self.subject, self.count = subject, count
        self._workers: list[_Worker] = []

    def prepare(self) -> None:
        """Build the simulator here: what the processes write does not reach the terminal in order."""
        from cosim.rtl.rtl_device import simulator_of

        simulator_of(self.subject.conditions.config, monitor=building)

    def results(self, orders: Sequence[MeasureOrder]) -> Iterator[tuple[int, Result]]:
        """As they come."""
        waiting, deaths = deque(range(len(orders))), [0] * len(orders)
        while len(self._workers) < min(self.count, len(orders)):
            self._workers.append(_Worker(self.subject))
        try:
            while waiting or any(worker.place is not None for worker in self._workers):
                for worker in self._workers:
                    if waiting and worker.place is None:
                        place = waiting.popleft()
                        worker.send(place, orders[place])
                for worker in self._ready():
                    place, answer = worker.answer()
                    if answer is not None:
                        yield place, answer
                        continue
                    self._replace(worker)
                    deaths[place] += 1
                    if deaths[place] == _ATTEMPTS:
                        raise WorkError(f"{_ATTEMPTS} processes that measured the same schedule have died")
                    waiting.append(place)
        finally:
            if any(worker.place is not None for worker in self._workers):
                self.close()  # nobody will ask for their answers

    def close(self) -> None:
        """End all."""
        while self._workers:
            self._workers.pop().close()

    def _ready(self) -> list[_Worker]:
        """Those that have an answer, once there is one, or have died."""
        busy = {worker.connection: worker for worker in self._workers if worker.place is not None}
        return [busy[each] for each in wait(list(busy)) if isinstance(each, Connection)]

    def _replace(self, worker: _Worker) -> None:
        worker.close()
        self._workers.remove(worker)
        self._workers.append(_Worker(self.subject))


def _work(connection: Connection) -> None:
    """Carry out orders until nobody is there who gives any."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who measures: that one ends this one
    with suppress(EOFError, OSError):
        bench = MeasureRunner(connection.recv())
        while True:
            order = connection.recv()
            try:
                answer: Result | str = bench.measure(order)
            except MlaError as error:
                answer = str(error)
            connection.send(answer)
