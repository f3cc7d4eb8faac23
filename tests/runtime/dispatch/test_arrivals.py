"""Requests that arrive at given times: batches of those that have arrived, latencies and throughput."""

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.graph import Graph
from scripts.study_batching import CLOCK, by_phase, phases, served
from tests.cli.conftest import mla
from tests.support.graphs import Draft
from tests.support.seeds import random_seed

__all__ = ["mla"]

SIZES = (1, 2, 4, 8)


def draft() -> Draft:
    """Return a network whose weights take more time than its samples."""
    made = Draft(np.random.default_rng(31))
    x = made.input((1, 64))
    for _ in range(2):
        x = made.node("dense", [x, made.constant((64, 64))], (1, 64), scale=20.0)
    made.graph.outputs = [x.name]
    return made


def test_batches_chosen_on_line(rtl_seed: int) -> None:
    """In each phase, throughput and the 99th percentile of the latency are within 10% of the best fixed batch size."""
    made, rng = draft(), random.Random(rtl_seed)
    graph: Graph = made.graph
    one = compile(graph, "n4")
    network = compile(graph, "n4", batches=SIZES)
    parts = phases(rng, one.floor.cycles(one.config) * 1.2 / (CLOCK * 1e3))
    arrivals = [arrival for part in parts for arrival in part.arrivals]
    samples = [made.random_inputs() for _ in arrivals]
    results = served(network, samples, arrivals)
    for sample, arrival, result in zip(samples, arrivals, results, strict=True):
        np.testing.assert_equal(result.outputs, one(**sample))
        assert result.time and result.time.arrival_ms == arrival <= result.time.start_ms
        assert result.time.finish_ms > result.time.start_ms
    assert [result.index for result in results] == list(range(len(arrivals)))
    runs = sorted({(each.time.start_ms, each.time.finish_ms) for each in results if each.time})
    assert all(before[1] <= after[0] + 1e-9 for before, after in itertools.pairwise(runs))
    assert {result.batch_size for result in results} >= {1, 8}
    fixed = [by_phase(served(compile(graph, "n4", batch=size), samples, arrivals), parts) for size in SIZES]
    for mine, *others in zip(by_phase(results, parts), *fixed, strict=True):
        assert mine.rate >= 0.9 * max(each.rate for each in others)
        assert mine.p99 <= min(each.p99 for each in others) / 0.9


@pytest.fixture
def rtl_seed() -> int:
    return random_seed()


def test_arrivals_on_the_command_line(mla, tmp_path: Path) -> None:
    from scripts.networks.digits import MODEL

    times, out, report = tmp_path / "times.txt", tmp_path / "lines", tmp_path / "report.json"
    times.write_text("0 0.5\n0.5 40\n")
    options = ("--target", "n4", "--no-db", "--clock", "10", "--out", out, "--json", report)
    result = mla("serve", MODEL, *options, "--batches", "1,2", "--arrivals", times)
    assert result.status == 0 and "requests per second" in result.err, result.err
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["time"]["arrival_ms"] for line in lines] == [0.0, 0.5, 0.5, 40.0]
    assert [line["together"] for line in lines] == [1, 2, 2, 1]
    assert lines[3]["time"]["start_ms"] == 40.0
    assert lines[3]["time"]["finish_ms"] == pytest.approx(40 + lines[3]["cycles"] / 1e4, abs=0.05)
    latency = json.loads(report.read_text())["latency"]
    assert latency["max_ms"] == max(line["time"]["finish_ms"] - line["time"]["arrival_ms"] for line in lines)
    result = mla("serve", MODEL, *options, "--interval", "20", "--requests", "3")
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["time"]["start_ms"] for line in lines] == [0.0, 20.0, 40.0]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("0 1 x", (), "time 3 must be a number of milliseconds, not less than the one before, not 'x'"),
        ("0 2 1", (), "time 3 must be a number"),
        ("-1", (), "time 1 must be a number"),
        ("nan", (), "time 1 must be a number"),
        ("0 1", ("--requests", "3"), "has 2 times for 3 requests"),
        ("", (), "has 0 times for 1 request"),
        ("0", ("--device", "golden"), "--arrivals needs --device rtl"),
        ("0", ("--interval", "1"), "not allowed with argument"),
    ],
)
def test_errors(mla, tmp_path: Path, text: str, options: tuple[str, ...], message: str) -> None:
    from scripts.networks.digits import MODEL

    times = tmp_path / "times.txt"
    times.write_text(text)
    result = mla("serve", MODEL, "--target", "n4", "--arrivals", times, *options)
    assert result.status == 2 and message in result.err.splitlines()[-1], result.err
