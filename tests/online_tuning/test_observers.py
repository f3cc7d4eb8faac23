"""Tests of the output of serving: progress, summary, report, chart, and the distribution of cycles by cause."""

import io
import json
from contextlib import redirect_stderr
from statistics import median
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from compiler.initial_schedule.initial import naive_schedule
from compiler.ir.graph import Graph
from compiler.online_tuning.observers import ServingHistory, ServingProgress, in_words
from compiler.online_tuning.search_worker import SearchJob
from compiler.online_tuning.serve import Serving, open_machine, serve
from compiler.serving.request import Request, RequestSource
from compiler.util.progress import ProgressTask
from compiler.visualize.charts import draw_serving
from hw.config import load_target
from hw.isa.counters import CAUSES
from tests.online_tuning.small_servers import Model
from tests.support.small_network import OPTIONS

REQUESTS, FROM = 40, 16
EVENTS = [
    {"event": "reload", "request": 5, "why": "first", "trial": 0, "measured_cycles": 3000},
    {"event": "kept", "request": 8, "cycles": 3001},
    {"event": "rejected", "kind": "trial", "trial": 1, "reason": "3 cycles, no improvement on 2"},
    {"event": "reload", "request": 9, "why": "trial", "trial": 2, "proposer": "hpm", "measured_cycles": 2900},
    {"event": "rollback", "request": 10, "reason": "<wrong>"},
    {"event": "drift", "request": 11, "usual_cycles": 3000.0, "cycles": 4000},
    {"event": "conditions", "request": 12, "latency": 100, "bytes_per_cycle": 4.0},
    {"event": "left out", "request": 12, "generator": "own", "reason": "propose failed: KeyError"},
    {"event": "search lost", "request": 13, "reason": "gone"},
]


def request_result(version: int, cycles: int) -> Any:
    """Return a result with only the attributes that progress and history read."""
    served = SimpleNamespace(number=version)
    result: Any = SimpleNamespace(cycles=cycles, batch_size=1, version=served, time=None)
    return result


@pytest.fixture(scope="module")
def tuned(graph: Graph) -> tuple[ServingHistory, str]:
    """Return the history and progress output of a slow version that is improved while it serves."""
    config = load_target("n4")
    model = Model(graph, config)
    plain = model.prepared.network(naive_schedule(model.prepared.lowered(())))
    serving = Serving(
        plain,
        model.prepared.options.dram,
        SearchJob(graph, config, OPTIONS, "random"),
        trials_per_request=1,
        adapt_from=FROM,
    )
    history, out, task = (
        ServingHistory(clocked=True),
        io.StringIO(),
        ProgressTask("serving", REQUESTS, "requests"),
    )
    with open_machine(serving) as device, redirect_stderr(out):
        requests = RequestSource(Request(model.inputs(number)) for number in range(REQUESTS))
        status = serve(serving, device, requests, [history, ServingProgress(task, clocked=True)])
    assert status == 0
    return history, out.getvalue() + task.describe(3.0)


def test_static_compiler_s_programs_are_proposed_first(tuned: tuple[ServingHistory, str]) -> None:
    history, _ = tuned
    reloads = [event for event in history.events if event["event"] == "reload"]
    assert reloads[0]["why"] == "first" and FROM <= reloads[0]["request"] <= FROM + 2
    assert len(history.cycles) == len(history.versions) == REQUESTS
    assert history.last is not None and history.first is not None and history.last < history.first
    assert history.summary(adapted=True).startswith(f"{REQUESTS} requests; ")
    assert "; 1 reload; " in history.summary(adapted=True) or len(reloads) > 1


def test_windows_attribute_cycles_to_causes(tuned: tuple[ServingHistory, str]) -> None:
    history, _ = tuned
    first, last = history.windows[0], history.windows[-1]
    assert first.version == 0 and last.version in history.versions[FROM:]
    for window in (first, last):
        assert set(window.where) == set(CAUSES) and window.requests >= 8
        taken = [c for c, v in zip(history.cycles, history.versions, strict=True) if v == window.version]
        assert window.cycles == pytest.approx(median(taken), rel=0.05)
        assert sum(window.layers.values()) == sum(window.where.values()) - window.where["idle"]
    assert {name for names in first.layers for name in names} >= {n for names in last.layers for n in names}


def test_report_chart_and_progress(tuned: tuple[ServingHistory, str]) -> None:
    history, out = tuned
    document = json.loads(json.dumps(history.document()))
    assert document["requests"] == REQUESTS and document["reloads"] == history.count("reload")
    picture = draw_serving("small", history.cycles, history.events)
    ElementTree.fromstring(picture)
    assert picture.count(">reload at ") == history.count("reload")
    lines = out.splitlines()
    assert lines[-1].startswith("serving: 40 of 40 requests, 3 s, "), out
    assert f"mla: {in_words(next(e for e in history.events if e['event'] == 'reload'))}" in lines


def test_decisions_are_described_and_drawn() -> None:
    picture = draw_serving("<net>", [3000] * 20, EVENTS)
    texts = [each.text for each in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]
    for event in EVENTS:
        words = in_words(event)
        assert (words in texts) == (event["event"] not in ("kept", "rejected")), words
    assert "&lt;net&gt;" in draw_serving("<net>", [], [])


def test_progress_counts_requests_and_logs_decisions(capsys: pytest.CaptureFixture[str]) -> None:
    task = ProgressTask("serving", unit="images")
    progress = ServingProgress(task, clocked=True, note=lambda: "all right")
    for event in EVENTS[:5]:
        progress.event(event)
    for number in range(3):
        progress.result(request_result(2, 3000 + number))
    shown = task.describe(7.0)
    assert shown.startswith(
        "serving: 3 images, 7 s, all right, 3,002 cycles, 2 reloads, 1 rollback, reload at 9"
    )
    assert capsys.readouterr().err.splitlines() == [
        f"mla: {in_words(e)}" for e in EVENTS[:5] if e["event"] != "rejected"
    ]


def test_device_without_a_clock() -> None:
    history, task = ServingHistory(clocked=False), ProgressTask("serving", 40, "requests")
    progress = ServingProgress(task, clocked=False)
    for _ in range(40):
        history.result(request_result(0, 0))
        progress.result(request_result(0, 0))
    assert history.summary(adapted=False) == "40 requests" and history.document()["cycles"] is None
    assert task.describe(1.0) == "serving: 40 of 40 requests, 1 s"
