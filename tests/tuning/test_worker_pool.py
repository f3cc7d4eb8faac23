"""Measurements by several processes, some of which die."""

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


def various(measurer: Measurer, count: int) -> list[Schedule]:
    """Different schedules of a network; the last one is none."""
    first = measurer.first.schedule
    names = list(first.layers)
    out = [
        replace(first, layers=first.layers | {names[0]: replace(first.layers[names[0]], rows=number + 1)})
        for number in range(count - 1)
    ]
    return [*out, replace(first, layers={})]


@pytest.fixture(scope="module")
def crew(measurer: Measurer) -> Iterator[WorkerPool]:
    subject = MeasureSubject(measurer.prepared, measurer.first, measurer.conditions, 0)
    with WorkerPool(subject, 2) as made:
        yield made


def orders(schedules: list[Schedule]) -> list[MeasureOrder]:
    return [MeasureOrder(number, schedule, None) for number, schedule in enumerate(schedules)]


def test_processes_measure_what_this_one_does(measurer: Measurer, crew: WorkerPool) -> None:
    schedules = various(measurer, 6)
    found = dict(crew.results(orders(schedules)))
    assert [found[place] for place in range(6)] == measurer.measure(schedules)
    assert isinstance(found[0], Measurement) and isinstance(found[5], Rejected)


@pytest.mark.parametrize("when", ["idle", "at work"])
def test_what_a_killed_process_was_at_is_done_again(measurer: Measurer, crew: WorkerPool, when: str) -> None:
    schedules = various(measurer, 6)
    expected = dict(crew.results(orders(schedules)))
    pids = [worker.process.pid or 0 for worker in crew._workers]
    if when == "idle":
        os.kill(pids[0], signal.SIGKILL)
    results = crew.results(orders(schedules))
    found = dict([next(results)])
    if when == "at work":
        (busy, *_) = [worker.process for worker in crew._workers if worker.place is not None]
        busy.kill()
    found |= dict(results)
    assert found == expected
    assert [worker.process.pid for worker in crew._workers] != pids and len(crew._workers) == 2


def test_an_order_that_every_process_dies_of_is_given_up(
    measurer: Measurer, crew: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dead(worker_pool._Worker):
        def send(self, place: int, order: MeasureOrder) -> None:
            super().send(place, order)
            self.process.kill()

    crew.close()
    monkeypatch.setattr(worker_pool, "_Worker", Dead)
    with pytest.raises(WorkError, match="3 processes that measured the same schedule have died"):
        list(crew.results(orders(various(measurer, 2))))
    assert all(worker.place is None for worker in crew._workers), "some are still at what was given up"
    crew.close()  # those that started in place of dead ones would be killed as well


def test_a_killed_simulator_is_replaced(measurer: Measurer) -> None:
    bench = MeasureRunner(MeasureSubject(measurer.prepared, measurer.first, measurer.conditions, 0))
    order = MeasureOrder(0, measurer.first.schedule, None)
    before = bench.measure(order)
    assert bench._device is not None
    os.kill(bench._device.pid, signal.SIGKILL)
    assert bench.measure(order) == before
    bench.close()


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


def test_nothing_is_left_of_a_killed_search(tmp_path: Path) -> None:
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


def test_devices_are_counted(graph: Graph) -> None:
    with pytest.raises(InputError, match="devices must be at least 1, not 0"):
        Measurer(graph, HardwareProfile(load_target("n4")), OPTIONS, devices=0)
