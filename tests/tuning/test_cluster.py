"""Measurements by workers of a Dask cluster are correct, even if workers die."""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from distributed import Client, LocalCluster

from compiler.ir.graph import Graph
from compiler.tuning.measure import worker_pool as module
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.measure.runner import MeasureOrder, MeasureSubject
from compiler.tuning.measure.worker_pool import DaskCluster
from hw.errors import InputError, WorkError
from scripts.networks.digits import MODEL
from tests.tuning.test_worker_pool import distinct_schedules, orders

pytest.importorskip("distributed", reason="the extra `cluster` is not installed: make setup EXTRAS=cluster")


@pytest.fixture(scope="module")
def local() -> Iterator[Any]:
    """Yield a cluster of two workers on this machine."""
    made: Any = LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        silence_logs=logging.CRITICAL,
    )
    with made:
        yield made


@pytest.fixture(scope="module")
def subject(measurer: Measurer) -> MeasureSubject:
    return MeasureSubject(measurer.prepared, measurer.first, measurer.conditions, 0)


def simulators(local: LocalCluster) -> int:
    """Return the number of child processes of the workers."""
    with Client(local.scheduler_address) as client:
        counts: Any = client.run(lambda: len(psutil.Process().children()))
    return sum(counts.values())


def test_cluster_results_equal_local_results(
    local: LocalCluster, subject: MeasureSubject, measurer: Measurer
) -> None:
    schedules = distinct_schedules(measurer, 6)
    with DaskCluster(subject, local.scheduler_address) as cluster:
        assert cluster.count == 2
        found = dict(cluster.results(orders(schedules)))
        assert 1 <= simulators(local) <= 2  # a worker that starts late may have no work left
    assert [found[index] for index in range(6)] == measurer.measure(schedules)
    deadline = time.monotonic() + 30
    while simulators(local):  # the simulators end with the search
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_order_of_a_killed_worker_is_repeated_by_another(
    local: LocalCluster, subject: MeasureSubject, measurer: Measurer
) -> None:
    schedules = distinct_schedules(measurer, 8)
    with (
        DaskCluster(subject, local.scheduler_address, 1) as cluster,
        Client(local.scheduler_address) as client,
    ):
        assert cluster.count == 1
        pids: Any = client.run(os.getpid)
        results = cluster.results(orders(schedules))
        found = dict([next(results)])
        os.kill(next(iter(pids.values())), signal.SIGKILL)
        found |= dict(results)
    assert [found[index] for index in range(8)] == measurer.measure(schedules)


def test_worker_with_different_sources_is_rejected(
    local: LocalCluster, subject: MeasureSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DaskCluster(subject, local.scheduler_address) as cluster:
        monkeypatch.setattr(module, "version", lambda: "of another day")
        with pytest.raises(InputError, match=r"workers of tcp://.* have different sources of this program"):
            DaskCluster(subject, local.scheduler_address)
        order = MeasureOrder(0, subject.first.schedule, None)
        with pytest.raises(WorkError, match="a worker that joined the cluster has different sources"):
            list(cluster.results([order]))


def test_bad_addresses_are_reported(subject: MeasureSubject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RESPONSE_TIMEOUT_S", 1)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(WorkError, match=f"the scheduler of the cluster {address} does not respond"):
            DaskCluster(subject, address)
    for address in ("", "luck://here", "tcp://here:there"):
        with pytest.raises(InputError, match="an address must have the form tcp://HOST:8786"):
            DaskCluster(subject, address)


@pytest.fixture
def empty() -> Iterator[str]:
    """Yield the address of a scheduler without workers that runs in a separate process."""
    command = (sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0")
    with subprocess.Popen(
        [*command, "--no-dashboard"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        yield next(word for line in process.stderr for word in line.split() if word.startswith("tcp://"))
        process.kill()


def test_cluster_without_workers_is_reported(
    empty: str, subject: MeasureSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RESPONSE_TIMEOUT_S", 2)
    with pytest.raises(WorkError, match="has no workers"):
        DaskCluster(subject, empty)


def test_cluster_option_of_the_command_line(local: LocalCluster, graph: Graph) -> None:
    command = [
        sys.executable,
        "-m",
        "compiler.cli.main",
        "tune",
        MODEL,
        "--trials",
        "2",
        "--target",
        "n4",
        "--no-cache",
        "--method",
        "random",
        "--cluster",
        local.scheduler_address,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "\n2 trials (" in done.stdout, done.stderr
