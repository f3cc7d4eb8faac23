"""Pool of devices that execute work items concurrently."""

import os
import queue
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Generic, Self, TypeVar

from cosim.device import Device
from hw.errors import InputError

AnyDevice = TypeVar("AnyDevice", bound=Device)
Item = TypeVar("Item")
Result = TypeVar("Result")


class DevicePool(Generic[AnyDevice]):
    """Pool of `count` devices, which remain open until the end of the pool's `with` block.

    Each simulator is a separate process, so one waiting thread per device suffices to keep a core busy.

    Parameters
    ----------
    open_device : Callable
        Function that opens one device; it is called `count` times.
    count : int or None
        Number of devices; None for the number of cores available to this process.

    Attributes
    ----------
    devices : list
        All devices of the pool.
    """

    def __init__(self, open_device: Callable[[], AnyDevice], count: int | None = None) -> None:
        count = len(os.sched_getaffinity(0)) if count is None else count
        if count < 1:
            raise InputError(f"count must be at least 1, not {count!r}")
        self.devices: list[AnyDevice] = []
        with ExitStack() as stack:
            for _ in range(count):
                device = open_device()
                stack.callback(device.close)
                self.devices.append(device)
            self._stack = stack.pop_all()
        self._free: queue.SimpleQueue[AnyDevice] = queue.SimpleQueue()
        for device in self.devices:
            self._free.put(device)

    def map(self, work: Callable[[AnyDevice, Item], Result], items: Iterable[Item]) -> list[Result]:
        """Call `work(device, item)` for each item on any free device; return the results in the order of the items.

        An exception cancels the calls that have not started, and is raised when the running calls have ended.
        """
        threads = ThreadPoolExecutor(len(self.devices), thread_name_prefix="device")
        try:
            futures: list[Future[Result]] = [threads.submit(self._one, work, item) for item in items]
            return [future.result() for future in futures]
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            threads.shutdown()

    def close(self) -> None:
        """Close all devices; a second call has no effect."""
        self._stack.close()

    def _one(self, work: Callable[[AnyDevice, Item], Result], item: Item) -> Result:
        device = self._free.get()
        try:
            return work(device, item)
        finally:
            self._free.put(device)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
