"""Measurements on several machines, by Dask: its workers have benches as the processes of one machine do."""

import logging
import pickle
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any

from compiler.cache.digest import version
from compiler.profile.measurement import Measurement, Rejected, Result
from compiler.tuning.measure.runner import MeasureOrder, MeasureRunner, MeasureSubject
from compiler.tuning.measure.worker_pool import WorkerGroup
from hw.errors import InputError, WorkError, shown

if TYPE_CHECKING:
    from distributed import Client, Future

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
