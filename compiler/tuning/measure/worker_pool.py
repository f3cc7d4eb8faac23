"""Workers that measure schedules: this process, a pool of processes, or a Dask cluster."""

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

#: Maximum number of processes that may die while measuring the same schedule.
_MAX_ATTEMPTS = 3


class WorkerGroup(ABC):
    """Workers that execute measurement orders, several at a time.

    Attributes
    ----------
    count : int
        Maximum number of orders executed concurrently.
    """

    count: int = 1

    @abstractmethod
    def results(self, orders: Sequence[MeasureOrder]) -> Iterator[tuple[int, Result]]:
        """Yield the index and the result of each order as soon as the result is available.

        Raises
        ------
        WorkError
            Simulators or worker processes crash repeatedly, or a disk is full.
        """

    def prepare(self) -> None:  # noqa: B027
        """Build the simulator before the first order and show the progress; by default, do nothing."""

    @abstractmethod
    def close(self) -> None:
        """End the workers; this method may be called repeatedly."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class LocalWorker(WorkerGroup):
    """Worker in the calling process, with one simulated machine."""

    def __init__(self, subject: MeasureSubject):
        self._runner = MeasureRunner(subject)

    def results(self, orders: Sequence[MeasureOrder]) -> Iterator[tuple[int, Result]]:
        """Yield the results in the order of `orders`."""
        for index, order in enumerate(orders):
            yield index, self._runner.measure(order)

    def close(self) -> None:
        """Close the simulated machine."""
        self._runner.close()


class _Worker:
    """Worker process with a measurement runner, and the index of the order that it executes."""

    def __init__(self, subject: MeasureSubject):
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), daemon=True, name="mla measure")
        self.process.start()
        theirs.close()
        self.index: int | None = None
        self._subject: MeasureSubject | None = subject

    def send(self, index: int, order: MeasureOrder) -> None:
        """Send an order to the process; if the process has died, `answer` detects this."""
        self.index = index
        with suppress(OSError):
            if self._subject is not None:
                self.connection.send(self._subject)
                self._subject = None
            self.connection.send(order)

    def answer(self) -> tuple[int, Result | None]:
        """Return the index and the result of the current order; the result is None if the process has died."""
        index, self.index = self.index, None
        assert index is not None
        try:
            answer = self.connection.recv()
        except (EOFError, OSError):
            return index, None
        if isinstance(answer, str):
            raise WorkError(answer)
        return index, answer

    def close(self) -> None:
        """Kill the process, even if it is busy; its simulator then ends as well."""
        self.process.kill()
        self.process.join()
        self.connection.close()


class WorkerPool(WorkerGroup):
    """Pool of child processes, each with a simulated machine.

    A process that dies is replaced, and its order is repeated. Processes are used because compiling and validating
    take longer than simulating small networks, and threads would execute them one at a time.

    Parameters
    ----------
    subject : MeasureSubject
        Model and conditions to measure.
    count : int
        Maximum number of processes, which are started when the first orders arrive.
    """

    def __init__(self, subject: MeasureSubject, count: int):
        self.subject, self.count = subject, count
        self._workers: list[_Worker] = []

    def prepare(self) -> None:
        """Build the simulator in this process, since progress messages of several child processes would interleave."""
        from cosim.rtl.rtl_device import simulator_of

        simulator_of(self.subject.conditions.config, monitor=building)

    def results(self, orders: Sequence[MeasureOrder]) -> Iterator[tuple[int, Result]]:
        """Yield results in order of completion."""
        waiting, deaths = deque(range(len(orders))), [0] * len(orders)
        while len(self._workers) < min(self.count, len(orders)):
            self._workers.append(_Worker(self.subject))
        try:
            while waiting or any(worker.index is not None for worker in self._workers):
                for worker in self._workers:
                    if waiting and worker.index is None:
                        index = waiting.popleft()
                        worker.send(index, orders[index])
                for worker in self._ready():
                    index, answer = worker.answer()
                    if answer is not None:
                        yield index, answer
                        continue
                    self._replace(worker)
                    deaths[index] += 1
                    if deaths[index] == _MAX_ATTEMPTS:
                        raise WorkError(
                            f"{_MAX_ATTEMPTS} processes that measured the same schedule have died"
                        )
                    waiting.append(index)
        finally:
            if any(worker.index is not None for worker in self._workers):
                self.close()  # answers of busy workers would never be read

    def close(self) -> None:
        """Kill all worker processes."""
        while self._workers:
            self._workers.pop().close()

    def _ready(self) -> list[_Worker]:
        """Wait until a worker has an answer or has died; return all such workers."""
        busy = {worker.connection: worker for worker in self._workers if worker.index is not None}
        return [busy[each] for each in wait(list(busy)) if isinstance(each, Connection)]

    def _replace(self, worker: _Worker) -> None:
        worker.close()
        self._workers.remove(worker)
        self._workers.append(_Worker(self.subject))


def _work(connection: Connection) -> None:
    """Execute the orders that arrive on a connection until the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C and kills this one
    with suppress(EOFError, OSError):
        runner = MeasureRunner(connection.recv())
        while True:
            order = connection.recv()
            try:
                answer: Result | str = runner.measure(order)
            except MlaError as error:
                answer = str(error)
            connection.send(answer)


#: Seconds within which the scheduler must respond and have a worker.
_RESPONSE_TIMEOUT_S = 10
#: Seconds without any worker after which a measurement fails.
_NO_WORKER_TIMEOUT_S = 60
#: Seconds between checks of the cluster while no result arrives.
_POLL_S = 2.0


class DaskCluster(WorkerGroup):
    """Workers of a Dask cluster.

    If a worker dies, another worker repeats its order. The cluster is trusted like this machine: any client of its
    scheduler can run arbitrary code on it.

    Parameters
    ----------
    subject : MeasureSubject
        Model and conditions to measure.
    address : str
        Address of the scheduler, such as tcp://192.0.2.7:8786.
    count : int or None
        Maximum number of workers to use; None: all workers that are connected when this object is created.

    Raises
    ------
    InputError
        The address is malformed, or workers have other versions of this program, its libraries or Python.
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
            self._runner = self._client.submit(_make_runner, pickle.dumps(subject), pure=False)
        except BaseException:
            self.close()
            raise

    def results(self, orders: Sequence[MeasureOrder]) -> Iterator[tuple[int, Result]]:
        """Yield results in order of completion."""
        finished: SimpleQueue[Future] = SimpleQueue()
        names = self._names()
        futures = {
            # Any worker is acceptable, but without a preferred one all orders go to the worker that already has the
            # runner.
            self._client.submit(
                _measure,
                self._runner,
                order,
                _fingerprint(),
                pure=False,
                workers=[names[index % len(names)]],
                allow_other_workers=True,
            ): index
            for index, order in enumerate(orders)
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
        """Disconnect from the cluster; its workers close their machines."""
        self._client.close(timeout=_RESPONSE_TIMEOUT_S)

    def _next(self, finished: "SimpleQueue[Future]") -> "Future":
        """Wait until an order is finished and return its future."""
        empty: float | None = None
        while True:
            try:
                return finished.get(timeout=_POLL_S)
            except Empty:
                if self._client.status == "closed":
                    raise self._disconnected() from None
                empty = None if self._client.nthreads() else empty or monotonic()
                if empty is not None and monotonic() - empty > _NO_WORKER_TIMEOUT_S:
                    raise WorkError(
                        f"the cluster {self.address} has had no worker for {_NO_WORKER_TIMEOUT_S} s"
                    ) from None

    def _result(self, future: "Future") -> Result:
        from distributed import KilledWorker

        try:
            answer = future.result()
        except KilledWorker:
            raise WorkError(
                f"several workers of the cluster {self.address} died while measuring the same schedule"
            ) from None
        except CancelledError:
            raise self._disconnected() from None
        if not isinstance(answer, Measurement | Rejected):
            raise WorkError(f"the cluster {self.address} returned a result of type {type(answer).__name__}")
        return answer

    def _disconnected(self) -> WorkError:
        return WorkError(f"the connection to the scheduler of the cluster {self.address} was closed")

    def _names(self) -> list[str]:
        """Return the addresses of the connected workers; wait until there is at least one."""
        try:
            self._client.wait_for_workers(1, timeout=_RESPONSE_TIMEOUT_S)
        except TimeoutError:
            raise WorkError(f"the cluster {self.address} has no workers") from None
        workers: dict[str, int] = self._client.nthreads()  # pyright: ignore[reportAssignmentType]: not awaited
        return sorted(workers)

    def _check(self, count: int) -> None:
        """Raise InputError unless all workers run the same sources, libraries and Python as this process."""
        try:
            others: dict[str, Any] = self._client.run(_fingerprint)  # pyright: ignore[reportAssignmentType]: not awaited
        except (ImportError, AttributeError, pickle.PickleError) as error:
            raise InputError(
                f"--cluster: workers of {self.address} lack this program ({error}): install the same version there"
            ) from None
        wrong = [name for name, fingerprint in others.items() if fingerprint != _fingerprint()]
        if wrong:
            raise InputError(
                f"--cluster: {len(wrong)} of {count} workers of {self.address} ({wrong[0]} ...) have different "
                "sources of this program, libraries or Python: install the same versions there"
            )


def _connected(address: str) -> "Client":
    """Connect to a scheduler."""
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
            logging.getLogger(name).setLevel(logging.CRITICAL)  # errors are reported in one line instead
    warnings.filterwarnings("ignore", module="distributed")
    try:
        _check_address(address)
        return Client(address, timeout=_RESPONSE_TIMEOUT_S, set_as_default=False)
    except (ValueError, TypeError):
        raise InputError(
            f"--cluster: an address must have the form tcp://HOST:8786, not {shown(address)}"
        ) from None
    except OSError:
        raise WorkError(f"the scheduler of the cluster {address} does not respond") from None


def _check_address(address: str) -> None:
    """Raise ValueError unless an address has the form HOST:PORT, with or without a known scheme.

    `Client` rejects a malformed address only when it connects, and then takes a while to clean up.
    """
    from distributed.comm.addressing import get_address_host_port, parse_address

    if parse_address(address)[0] == "inproc":  # a cluster in this process has no host and port
        return
    host, port = get_address_host_port(address)
    if not host or " " in host or not 0 < int(port) < 1 << 16:
        raise ValueError(address)


def _fingerprint() -> tuple[Any, ...]:
    """Return the versions of Python, the sources and the libraries, which must be equal on all workers."""
    return (*sys.version_info[:2], version())


def _make_runner(subject: bytes) -> MeasureRunner:
    """Create a runner on a worker; it exists as long as the client holds a reference to it."""
    return MeasureRunner(pickle.loads(subject))


def _measure(runner: MeasureRunner, order: MeasureOrder, fingerprint: tuple[Any, ...]) -> Result:
    """Execute an order on a worker."""
    if fingerprint != _fingerprint():
        raise WorkError("a worker that joined the cluster has different sources of this program")
    return runner.measure(order)
