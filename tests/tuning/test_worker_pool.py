"""Measurements by a process pool are correct, even if processes die."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compiler.ir.graph import Graph
from compiler.profile.measurement import HardwareProfile, Measurement, Rejected
from compiler.schedule.schedule import Schedule
from compiler.tuning.measure import worker_pool
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.measure.runner import MeasureOrder, MeasureRunner, MeasureSubject
from compiler.tuning.measure.worker_pool import WorkerPool
from hw.config import load_target
from hw.errors import InputError, WorkError
from tests.support.small_network import HERE, OPTIONS


def distinct_schedules(measurer: Measurer, count: int) -> list[Schedule]:
    """Return different schedules of a network; the last of them is invalid."""
    first = measurer.first.schedule
    names = list(first.layers)
    out = [
        replace(first, layers=first.layers | {names[0]: replace(first.layers[names[0]], rows=number + 1)})
        for number in range(count - 1)
    ]
    return [*out, replace(first, layers={})]


@pytest.fixture(scope="module")
def pool(measurer: Measurer) -> Iterator[WorkerPool]:
    subject = MeasureSubject(measurer.prepared, measurer.first, measurer.conditions, 0)
    with WorkerPool(subject, 2) as made:
        yield made


def orders(schedules: list[Schedule]) -> list[MeasureOrder]:
    return [MeasureOrder(number, schedule, None) for number, schedule in enumerate(schedules)]


def test_pool_results_equal_local_results(measurer: Measurer, pool: WorkerPool) -> None:
    schedules = distinct_schedules(measurer, 6)
    found = dict(pool.results(orders(schedules)))
    assert [found[index] for index in range(6)] == measurer.measure(schedules)
    assert isinstance(found[0], Measurement) and isinstance(found[5], Rejected)


@pytest.mark.parametrize("when", ["idle", "busy"])
def test_order_of_a_killed_process_is_repeated(measurer: Measurer, pool: WorkerPool, when: str) -> None:
    schedules = distinct_schedules(measurer, 6)
    expected = dict(pool.results(orders(schedules)))
    pids = [worker.process.pid or 0 for worker in pool._workers]
    if when == "idle":
        os.kill(pids[0], signal.SIGKILL)
    results = pool.results(orders(schedules))
    found = dict([next(results)])
    if when == "busy":
        (active, *_) = [worker.process for worker in pool._workers if worker.index is not None]
        active.kill()
    found |= dict(results)
    assert found == expected
    assert [worker.process.pid for worker in pool._workers] != pids and len(pool._workers) == 2


def test_order_that_kills_every_process_fails(
    measurer: Measurer, pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dead(worker_pool._Worker):
        def send(self, index: int, order: MeasureOrder) -> None:
            super().send(index, order)
            self.process.kill()

    pool.close()
    monkeypatch.setattr(worker_pool, "_Worker", Dead)
    with pytest.raises(WorkError, match="3 processes that measured the same schedule have died"):
        list(pool.results(orders(distinct_schedules(measurer, 2))))
    assert all(worker.index is None for worker in pool._workers), (
        "some workers are still busy with the failed order"
    )
    pool.close()  # the processes that replace dead ones would be killed too


def test_killed_simulator_is_replaced(measurer: Measurer) -> None:
    runner = MeasureRunner(MeasureSubject(measurer.prepared, measurer.first, measurer.conditions, 0))
    order = MeasureOrder(0, measurer.first.schedule, None)
    before = runner.measure(order)
    assert runner._device is not None
    os.kill(runner._device.pid, signal.SIGKILL)
    assert runner.measure(order) == before
    runner.close()


_ENDLESS = """
import sys
from compiler.profile.measurement import HardwareProfile
from compiler.tuning.measure.measurer import Measurer
from hw.config import load_target
from tests.support.small_network import OPTIONS, two_convolutions

if __name__ == "__main__":
    with Measurer(two_convolutions(), HardwareProfile(load_target("n4")), OPTIONS, 2) as measurer:
        while True:
            measurer.measure([measurer.first.schedule] * 2)
            print(*(worker.process.pid for worker in measurer._workers._workers), flush=True)
"""


def test_killed_search_leaves_no_processes(tmp_path: Path) -> None:
    script = tmp_path / "endless.py"
    script.write_text(_ENDLESS)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, env=HERE) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        process.kill()
    assert len(pids) == 2
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_device_count_must_be_positive(graph: Graph) -> None:
    with pytest.raises(InputError, match="devices must be at least 1, not 0"):
        Measurer(graph, HardwareProfile(load_target("n4")), OPTIONS, devices=0)
