"""Parallel execution of work items in several processes."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from multiprocessing.sharedctypes import Synchronized
from typing import Any, TypeVar

Item = TypeVar("Item")


def run_parallel(work: Callable[..., None], items: Sequence[Item], workers: int, *more: Any) -> int:
    """Call a function for all items, in parallel processes.

    Parameters
    ----------
    work : callable
        Called with an item and `more`; must be a module-level function, which the processes can import.
    items : sequence
        Work items, started in this order.
    workers : int
        Number of parallel processes; with 1, the calling process executes all items. If the calling process dies, the
        others stop after their current item.
    *more : object
        Further arguments of `work` for every item.

    Returns
    -------
    int
        0, or the exit status of a process that failed.
    """
    if workers == 1:
        for item in items:
            work(item, *more)
        return 0
    spawn = multiprocessing.get_context("spawn")
    next_item = spawn.Value("i", 0)
    processes = [
        spawn.Process(target=_worker, args=(work, items, next_item, os.getpid(), more))
        for _ in range(workers)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return max((process.exitcode or 0 for process in processes), key=abs)


def _worker(
    work: Callable[..., None], items: Sequence, next_item: "Synchronized[int]", parent: int, more: tuple
) -> None:
    """Process items until none is left."""
    while os.getppid() == parent:
        with next_item.get_lock():
            at, next_item.value = next_item.value, next_item.value + 1
        if at >= len(items):
            return
        work(items[at], *more)
