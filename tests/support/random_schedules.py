"""Check of a network under schedules, some of which may need too much memory."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from compiler.api import compile
from compiler.ir.graph import Graph
from compiler.runtime.session import Session, dram_bytes
from compiler.schedule.schedule import Schedule
from cosim.golden import GoldenDevice
from hw.errors import InputError


def check_schedules(
    graph: Graph, target: str, schedules: Iterable[Schedule], x: NDArray, wanted: NDArray
) -> None:
    """Check that the golden model computes `y` from `x` under each schedule that fits, and that one does."""
    ran = 0
    for schedule in schedules:
        try:
            made = compile(graph, target, schedule=schedule)
        except InputError as error:
            assert "fit" in str(error)
            continue
        with GoldenDevice(made.config, dram_bytes(made)) as device:
            assert np.array_equal(Session(device, made).run({"x": x})["y"], wanted), schedule.layers
        ran += 1
    assert ran
