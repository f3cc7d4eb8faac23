"""Who measures: this process, several of its own, or a Dask cluster."""

import logging
import multiprocessing
import pickle
import signal
import sys
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from compiler.cache.digest import version
from compiler.profile.measurement import Measurement, Rejected, Result
from compiler.tuning.measure.runner import MeasureOrder, MeasureRunner, MeasureSubject
from compiler.util.progress import building
from hw.errors import InputError, MlaError, WorkError, shown

if TYPE_CHECKING:
    from distributed import Client, Future

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


#: Seconds in which a scheduler must answer, and have a worker; those without any worker until a search is given up.
_ANSWER_S, _EMPTY_S = 10, 60
#: Seconds from one look at the cluster to the next, while nothing is heard of it.
_LOOK_S = 2.0


class DaskCluster(WorkerGroup):
    """The workers of a Dask cluster. What a worker was at when it died, another one does again.

    A cluster is trusted as this machine is: whoever can reach its scheduler can have it run anything.

    Parameters
    ----------
    subject : Subject
        What is measured.
    address : str
        The scheduler's, such as tcp://192.0.2.7:8786.
    count : int or None
        Workers to use at most; None: all that are there at first.

    Raises
    ------
    InputError
        The address is none, or workers have other sources of this program.
    WorkError
        The package `distributed` is missing, the scheduler cannot be reached, or it has no workers.
    """

    def __init__(self, subject: MeasureSubject, address: str, count: int | None = None):
        self.address = address
        self._client = _connected(address)
        try:
            names = self._names()
            self._check(len(names))
            self.count = min(len(names), count or len(names))
            self._bench = self._client.submit(_bench, pickle.dumps(subject), pure=False)
        except BaseException:
            self.close()
            raise

    def results(self, orders: Sequence[MeasureOrder]) -> Iterator[tuple[int, Result]]:
        """As they come."""
        finished: SimpleQueue[Future] = SimpleQueue()
        names = self._names()
        futures = {
            # Any other worker will do, but without a name all orders go to the one that has the bench already.
            self._client.submit(
                _measure,
                self._bench,
                order,
                _about(),
                pure=False,
                workers=[names[place % len(names)]],
                allow_other_workers=True,
            ): place
            for place, order in enumerate(orders)
        }
        for future in futures:
            future.add_done_callback(finished.put)
        try:
            for _ in orders:
                future = self._next(finished)
                yield futures[future], self._result(future)
        finally:
            self._client.cancel(list(futures))

    def close(self) -> None:
        """Leave the cluster: its workers close their machines."""
        self._client.close(timeout=_ANSWER_S)

    def _next(self, finished: "SimpleQueue[Future]") -> "Future":
        """An order that is done."""
        empty: float | None = None
        while True:
            try:
                return finished.get(timeout=_LOOK_S)
            except Empty:
                if self._client.status == "closed":
                    raise self._gone() from None
                empty = None if self._client.nthreads() else empty or monotonic()
                if empty is not None and monotonic() - empty > _EMPTY_S:
                    raise WorkError(
                        f"the cluster {self.address} has had no worker for {_EMPTY_S} s"
                    ) from None

    def _result(self, future: "Future") -> Result:
        from distributed import KilledWorker

        try:
            answer = future.result()
        except KilledWorker:
            raise WorkError(f"workers of the cluster {self.address} die of measuring one schedule") from None
        except CancelledError:
            raise self._gone() from None
        if not isinstance(answer, Measurement | Rejected):
            raise WorkError(f"the cluster {self.address} gives answers of type {type(answer).__name__}")
        return answer

    def _gone(self) -> WorkError:
        return WorkError(f"the scheduler of the cluster {self.address} has gone")

    def _names(self) -> list[str]:
        """Addresses of the workers, at least one."""
        try:
            self._client.wait_for_workers(1, timeout=_ANSWER_S)
        except TimeoutError:
            raise WorkError(f"the cluster {self.address} has no workers") from None
        workers: dict[str, int] = self._client.nthreads()  # pyright: ignore[reportAssignmentType]: not awaited
        return sorted(workers)

    def _check(self, count: int) -> None:
        """All workers must do what this process would."""
        try:
            others: dict[str, Any] = self._client.run(_about)  # pyright: ignore[reportAssignmentType]: not awaited
        except (ImportError, AttributeError, pickle.PickleError) as error:
            raise InputError(
                f"--cluster: workers of {self.address} lack this program ({error}): install the same there"
            ) from None
        wrong = [name for name, about in others.items() if about != _about()]
        if wrong:
            raise InputError(
                f"--cluster: {len(wrong)} of {count} workers of {self.address} ({wrong[0]} ...) have other sources of "
                "this program, other libraries or another Python: install the same there"
            )


def _connected(address: str) -> "Client":
    """A client of a scheduler."""
    try:
        from distributed import Client
    except ModuleNotFoundError as error:
        if error.name not in ("distributed", "dask"):
            raise
        raise WorkError(
            "--cluster needs the package distributed, which is missing: make setup EXTRAS=cluster"
        ) from None
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL)  # what goes wrong is told in one line
    warnings.filterwarnings("ignore", module="distributed")
    try:
        return Client(address, timeout=_ANSWER_S, set_as_default=False)
    except (ValueError, TypeError):
        raise InputError(f"--cluster: an address is like tcp://HOST:8786, not {shown(address)}") from None
    except OSError:
        raise WorkError(f"the scheduler of the cluster {address} does not answer") from None


def _about() -> tuple[Any, ...]:
    """What must be the same everywhere."""
    return (*sys.version_info[:2], version())


def _bench(subject: bytes) -> MeasureRunner:
    """In a worker: what is measured. It stays as long as the client does; its machine ends with it."""
    return MeasureRunner(pickle.loads(subject))


def _measure(bench: MeasureRunner, order: MeasureOrder, about: tuple[Any, ...]) -> Result:
    """In a worker: carry out an order."""
    if about != _about():
        raise WorkError("a worker that has joined the cluster has other sources of this program")
    return bench.measure(order)
