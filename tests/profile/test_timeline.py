"""Recordings as spans, as a trace and as a page; the numbers are worked out by hand."""

import json
from html.parser import HTMLParser

import numpy as np

from compiler.profile.page import joined, page
from compiler.profile.timeline import Span, spans
from compiler.profile.trace import trace_json
from cosim.rtl.records import BEATS, EVENT, Recording
from hw.isa.counters import CAUSES
from hw.isa.enums import Unit

LOAD, STORE = 1 << Unit.LOAD, 1 << Unit.STORE
RETIRED, ENTERED, HALTED = 4, 1 << 8, 1 << 9


def tagged(load: int = 0, program: int = 0) -> int:
    """Tags of LOAD's next command and of the program."""
    return load << 6 * Unit.LOAD | program << 24


RECORDING = Recording(
    np.array(
        [
            (1000, ENTERED, tagged(program=7)),
            (1010, LOAD, tagged(load=7)),
            (1014, LOAD, tagged(load=9)),
            (1030, LOAD << RETIRED | HALTED, 0),
            (1041, LOAD << RETIRED | STORE, 0),
            (1050, STORE << RETIRED, 0),
        ],
        EVENT,
    ),
    np.array([(0, 0)] * 3 + [(0, 9), (32, 128)], BEATS),
)
SPANS = [
    Span("programs", 7, 0, 30), Span("load", 7, 10, 31), Span("load", 9, 31, 42), Span("store", 0, 41, 51),
]  # fmt: skip


def test_overlapping_commands_count_for_the_oldest():
    assert spans(RECORDING) == SPANS


def test_nothing_recorded_is_no_span():
    assert spans(Recording(np.array([], EVENT), np.array([], BEATS))) == []


def test_trace_has_every_span_and_the_bus():
    trace = json.loads(trace_json(RECORDING, {7: "conv", 9: "pool"}, row_bytes=16))["traceEvents"]
    work = [event for event in trace if event["ph"] == "X"]
    assert [(e["name"], e["cat"], e["args"]["cycle"], e["args"]["cycles"]) for e in work] == [
        ("conv", "programs", 0, 30), ("conv", "load", 10, 21), ("pool", "load", 31, 11), ("tag 0", "store", 41, 10),
    ]  # fmt: skip
    names = {e["tid"]: e["args"]["name"] for e in trace if e["name"] == "thread_name"}
    assert all(names[event["tid"]] == event["cat"] for event in work)
    # Cycles 768..1023 and 1024..1279 are windows 3 and 4; the first event was in cycle 1000.
    bus = [event for event in trace if event["ph"] == "C"]
    assert [(e["ts"], e["args"]) for e in bus] == [
        (0.0, {"read": 0.0, "written": 9 / 16}), (0.024, {"read": 2.0, "written": 8.0}),
    ]  # fmt: skip


def test_gaps_nobody_sees_are_closed_in_crowded_pictures():
    crowd = [Span("load", 1, 2 * n, 2 * n + 1) for n in range(5000)]
    assert joined(crowd, 10_000) == [Span("load", 1, 0, 9999)]
    assert joined(crowd[:10], 20) == crowd[:10]


class _Checker(HTMLParser):
    """Fails on tags that are not closed in order; collects the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "rect", "path", "i"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("rect", "path", "i"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_page_is_well_formed_and_escapes_names():
    where = dict.fromkeys(CAUSES, 0) | {"useful": 40, "wait_bus": 11}
    layer = {
        "names": ["<conv>"], "tag": 7, "cycles": 51, "floor_cycles": 40, "utilization": 0.5, "bound": "compute",
        "where": where,
    }  # fmt: skip
    document = {
        "model": "a<b", "target": "n16", "samples": 1, "cycles": 51, "cycles_per_sample": 51, "utilization": 0.5,
        "floor_cycles": 40, "floor_layerwise_cycles": 41, "energy_uj": 1.5,
        "dram": {"latency": 100, "bytes_per_cycle": 16}, "where": where, "layers": [layer],
    }  # fmt: skip
    checker = _Checker()
    checker.feed(page(document, SPANS))
    assert checker.open == [] and "a<b on n16" in checker.text and "<conv>" in checker.text
    assert "cycles 10 to 31" in checker.text
