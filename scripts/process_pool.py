"""Process pool: runs work items in parallel, each in its own process."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from multiprocessing.sharedctypes import Synchronized
from typing import Any, TypeVar

Item = TypeVar("Item")


def run_parallel(work: Callable[..., None], items: Sequence[Item], lanes: int, *more: Any) -> int:
    """Process all items in parallel.

    Parameters
    ----------
    work : callable
        Called with an item and `more`: a function of a module, since other processes import it.
    items : sequence
        Work items, started in this order.
    lanes : int
        Number of parallel processes; 1 uses this process itself. If this process dies, the others stop after their
        current item.
    *more : object
        Further arguments of `work` for every item.

    Returns
    -------
    int
        0, or the exit status of a process that failed.
    """
    if lanes == 1:
        for item in items:
            work(item, *more)
        return 0
    spawn = multiprocessing.get_context("spawn")
    place = spawn.Value("i", 0)
    processes = [
        spawn.Process(target=_lane, args=(work, items, place, os.getpid(), more)) for _ in range(lanes)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return max((process.exitcode or 0 for process in processes), key=abs)


def _lane(
    work: Callable[..., None], items: Sequence, place: "Synchronized[int]", parent: int, more: tuple
) -> None:
    """Process items until none is left."""
    while os.getppid() == parent:
        with place.get_lock():
            at, place.value = place.value, place.value + 1
        if at >= len(items):
            return
        work(items[at], *more)
