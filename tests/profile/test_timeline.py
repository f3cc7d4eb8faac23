"""Recordings converted to spans, traces and HTML pages have the values that were worked out by hand."""

import json
import re
from html import escape
from html.parser import HTMLParser
from typing import Any

import numpy as np

from compiler.profile.counters import MEANINGS, THROTTLED
from compiler.profile.perfetto_trace import Span, spans, trace_json
from compiler.visualize.profile_page import joined, page
from compiler.visualize.svg import CAUSE_COLOURS, OKABE_ITO, hue
from cosim.rtl.abi import BEATS, EVENT, Recording
from hw.isa.counters import CAUSES
from hw.isa.enums import Unit

LOAD, STORE = 1 << Unit.LOAD, 1 << Unit.STORE
RETIRED, ENTERED, HALTED = 4, 1 << 8, 1 << 9


def tagged(load: int = 0, program: int = 0) -> int:
    """Return a word with the tag of LOAD's next command and the tag of the program."""
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
    Span("programs", 7, 0, 30),
    Span("load", 7, 10, 31),
    Span("load", 9, 31, 42),
    Span("store", 0, 41, 51),
]


def test_overlapping_commands_are_attributed_to_the_oldest():
    assert spans(RECORDING) == SPANS


def test_empty_recording_has_no_spans():
    assert spans(Recording(np.array([], EVENT), np.array([], BEATS))) == []


def test_trace_has_every_span_and_the_bus():
    trace = json.loads(trace_json(RECORDING, {7: "conv", 9: "pool"}, row_bytes=16))["traceEvents"]
    work = [event for event in trace if event["ph"] == "X"]
    assert [(e["name"], e["cat"], e["args"]["cycle"], e["args"]["cycles"]) for e in work] == [
        ("conv", "programs", 0, 30),
        ("conv", "load", 10, 21),
        ("pool", "load", 31, 11),
        ("tag 0", "store", 41, 10),
    ]
    names = {e["tid"]: e["args"]["name"] for e in trace if e["name"] == "thread_name"}
    assert all(names[event["tid"]] == event["cat"] for event in work)
    # Cycles 768..1023 and 1024..1279 are windows 3 and 4; the first event was in cycle 1000.
    bus = [event for event in trace if event["ph"] == "C"]
    assert [(e["ts"], e["args"]) for e in bus] == [
        (0.0, {"read": 0.0, "written": 9 / 16}),
        (0.024, {"read": 2.0, "written": 8.0}),
    ]


def test_trace_states_its_time_unit():
    trace = json.loads(trace_json(RECORDING, {7: "conv", 9: "pool"}, row_bytes=16))
    assert trace["otherData"] == {"time_unit": "1 ns of this trace is 1 clock cycle of the simulated chip"}
    (process,) = (e for e in trace["traceEvents"] if e["name"] == "process_name")
    assert "1 ns = 1 cycle" in process["args"]["name"]


def test_invisible_gaps_are_closed_in_crowded_charts():
    crowd = [Span("load", 1, 2 * n, 2 * n + 1) for n in range(5000)]
    assert joined(crowd, 10_000) == [Span("load", 1, 0, 9999)]
    assert joined(crowd[:10], 20) == crowd[:10]


class _Checker(HTMLParser):
    """HTML parser that fails on unbalanced tags and collects the page's text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def layer_of(name: str, tag: int, useful: int, wait_bus: int, **more: object) -> dict[str, Any]:
    """Return an entry of a report."""
    where = dict.fromkeys(CAUSES, 0) | {"useful": useful, "wait_bus": wait_bus}
    return {
        "names": [name],
        "ops": ["conv2d"],
        "tag": tag,
        "cycles": useful + wait_bus,
        "floor_cycles": 40,
        "utilization": 0.5,
        "bound": "compute",
        "where": where,
    } | more


def document_of(*layers: dict[str, Any], model: str = "net.tflite") -> dict[str, Any]:
    """Return a report with the given layers."""
    cycles = sum(layer["cycles"] for layer in layers)
    return {
        "model": model,
        "target": "n16",
        "samples": 1,
        "cycles": cycles,
        "cycles_per_sample": cycles,
        "utilization": 0.5,
        "floor_cycles": 40,
        "floor_layerwise_cycles": 41,
        "energy_uj": 1.5,
        "host_ops": [],
        "inferences_per_second": None,
        "dram": {"latency": 100, "bytes_per_cycle": 16},
        "layers": layers,
        "where": {cause: sum(layer["where"][cause] for layer in layers) for cause in CAUSES},
    }


def test_page_is_well_formed_and_escapes_names():
    checker = _Checker()
    text = page(document_of(layer_of("<conv>\"'&", 7, 40, 11), model="a<b"), SPANS)
    checker.feed(text)
    assert checker.open == [] and "a<b on n16" in checker.text and "<conv>\"'&" in checker.text
    assert "cycles 10 to 31" in checker.text
    assert "<conv>" not in text and 'title="&lt;conv&gt;&#34;&#39;&amp;"' in text


def test_page_names_the_model_without_its_folder():
    text = page(document_of(layer_of("conv", 7, 40, 11), model="/home/somebody/models/net.tflite"), SPANS)
    assert "<title>net.tflite on n16</title>" in text and "somebody" not in text


def test_bars_of_all_layers_have_the_same_scale():
    text = page(document_of(layer_of("long", 7, 60, 40), layer_of("short", 9, 5, 5)), SPANS)
    _, whole, long, short = text.split('<div class="bar">')
    assert [re.findall(r"width:([\d.]+)%", bar.split("</div>")[0]) for bar in (whole, long, short)] == [
        ["59.091", "40.909"],
        ["60.000", "40.000"],
        ["5.000", "5.000"],
    ]
    assert "90.9%" in text and "9.1%" in text  # shares of the cycles of all layers


def test_page_explains_causes_overlap_and_depthwise_floors():
    plain = page(document_of(layer_of("conv", 7, 40, 11)), SPANS)
    assert "Layers overlap" in plain and "depthwise" not in plain
    for cause, meaning in MEANINGS.items():
        assert (escape(meaning) in plain) == (cause in ("useful", "wait_bus")), cause
    assert "depthwise convolutions" in page(
        document_of(layer_of("dw", 7, 40, 11, ops=["depthwise_conv2d"])), SPANS
    )
    assert "depthwise" not in page(
        document_of(layer_of("dw", 7, 30, 10, ops=["depthwise_conv2d"])), SPANS
    )  # the layer has no cycles above its floor of 40
    # A layer to which no cycles are attributed needs no explanation of a cause.
    assert "<td>compute</td>" in plain
    assert "<td>compute</td>" not in page(
        document_of(layer_of("conv", 7, 40, 11, bound="bus"), layer_of("hidden", 9, 0, 0)), SPANS
    )


def test_page_has_milliseconds_and_memory_if_known():
    document = document_of(layer_of("conv", 7, 40, 10))
    assert '<th class="n">ms</th>' not in page(document, SPANS)
    document["inferences_per_second"] = 900.0  # differs from the rate of single batches
    text = page(document, SPANS, clock_hz=50e3, memory={"DRAM": 4096})
    assert '<th class="n">ms</th>' in text and '<td class="n">1.000</td>' in text
    assert "<dd>1.000 ms</dd>" in text and "<dt>samples per second</dt><dd>900.0</dd>" in text
    assert "<dt>DRAM in use</dt><dd>4,096 bytes</dd>" in text


def test_page_has_the_number_of_host_nodes():
    document = document_of(layer_of("conv", 7, 40, 10))
    assert "<dt>nodes on the host</dt><dd>0</dd>" in page(document, SPANS)
    document["host_ops"] = [{"node": "a", "op": "softmax", "reason": ""}] * 2
    assert "<dt>nodes on the host</dt><dd>2</dd>" in page(document, SPANS)


def test_page_supports_phones_and_dark_mode_and_has_a_key():
    text = page(document_of(layer_of("conv", 7, 40, 11), layer_of("pool", 9, 1, 0)), SPANS)
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
    assert "@media (prefers-color-scheme: dark)" in text
    assert text.count('<div class="scroll">') == 2  # the table and the timeline
    _, key = text.split('<ul class="layers">')
    for number, name in enumerate(("conv", "pool")):
        colour = hue(number)[0]
        assert f'<span class="swatch" style="background:{colour}"></span>{name}</li>' in key
        assert f'fill="{colour}"' in text


def test_every_cause_has_a_meaning_and_a_colour_of_its_own():
    assert tuple(MEANINGS) == (*CAUSES, THROTTLED) == tuple(CAUSE_COLOURS)
    assert len(set(CAUSE_COLOURS.values())) == len(MEANINGS) and CAUSE_COLOURS[THROTTLED] == "#000000"
    counted = [
        c
        for cause, c in CAUSE_COLOURS.items()
        if cause not in ("wait_activations", "wait_accumulator", THROTTLED)
    ]
    assert set(counted) == {*OKABE_ITO.values(), "#c9c9c9"}
