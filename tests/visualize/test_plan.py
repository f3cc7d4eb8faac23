"""Plans of programs that follow the data: profiles, costs and decisions, with expectations from other sources."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import networkx as nx
import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization, Tensor
from compiler.online_tuning.serve import Audits, Serving
from compiler.options import DEFAULT_DRAM
from compiler.pipeline import CompilationTrace
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import Session, dram_bytes
from compiler.serving.request import Request
from compiler.serving.reuse import ReusingServer
from compiler.serving.server import Server
from compiler.visualize.formats import FORMATS
from compiler.visualize.plan import DispatchPlan, PlanRequest, Variant, plan_of, plan_view, profile_of
from compiler.visualize.svg import text_width, wrapped
from compiler.visualize.view import KINDS, View
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.errors import InputError
from tests.runtime.dispatch.hostile_streams import several_lengths, two_stages
from tests.runtime.dispatch.test_cascade import BUDGET
from tests.runtime.dispatch.test_regions import conv
from tests.runtime.dispatch.test_reuse import dense_layers, drawn, open_server
from tests.support.classifiers import classifier, samples_of_classes
from tests.support.graphs import Draft
from tests.support.sequence_models import TOKENS

Arrays = dict[str, np.ndarray]
#: Largest number of cycles from the doorbell to the start of a program, and from its end to the interrupt.
AROUND = 200


def planned(
    graph: Graph,
    requests: Sequence[Arrays],
    *,
    device: str = "golden",
    others: Sequence[Any] = (),
    target: str = "n4",
    **options: Any,
) -> DispatchPlan:
    """Return the plan for a graph compiled with options of dispatch."""
    record = CompilationTrace()
    usual = compile(graph, target, record=record)
    made = compile(graph, target, **options) if options else None
    reuse = made if "reuse" in options else None
    audits = Audits(made) if made is not None and "accuracy_budget" in options else None
    network = made if made is not None and reuse is None and audits is None else usual
    serving = Serving(network, DEFAULT_DRAM, reusing=reuse, audits=audits)
    given = [Request(each) for each in requests]
    zeros = {tensor.name: np.zeros(tensor.shape, tensor.dtype) for tensor in network.sample}
    sample = requests[0] if requests else zeros
    return plan_of(PlanRequest(record, serving, made, str(options), given, sample, others, device))


def by_name(plan: DispatchPlan) -> dict[str, Variant]:
    """Return the variants by name."""
    return {each.name: each for each in plan.variants}


def drawn_plan(plan: DispatchPlan) -> View:
    """Return the view of a plan after drawing it; it has no cycles."""
    view = plan_view(plan)
    assert nx.is_directed_acyclic_graph(view)
    for form in FORMATS.values():
        assert form(view)
    return view


def counts(plan: DispatchPlan) -> Counter[str]:
    """Return the number of requests that were served by each variant."""
    found: Counter[str] = Counter()
    for each in plan.decisions:
        found[each.variant] += each.requests
    return found


def test_profile_of_an_image() -> None:
    """The image has six pixels of two channels; values are counted by hand."""
    tensor = Tensor("x", (1, 2, 3, 2), "int8", Quantization.per_tensor(1.0, 7))
    first = np.full((1, 2, 3, 2), 7, np.int8)
    second = first.copy()
    second[0, 0, 0, 1], second[0, 1, 1, 0] = -3, 100  # two of six pixels, in a rectangle of four
    third = second.copy()
    third[0, 0, 0, 1] = 7  # one pixel
    found = profile_of(tensor, [first, second, second, third, first])
    assert (found.shapes, found.dtype, found.low, found.high) == (((1, 2, 3, 2),), "int8", -3, 100)
    assert found.zeros == pytest.approx((12 + 10 + 10 + 11 + 12) / 60)
    assert (found.repeated, found.distinct) == (1, 3)
    assert found.changed == pytest.approx((2 + 1 + 1) / 6 / 3)
    assert found.rectangle == pytest.approx((4 + 1 + 1) / 6 / 3)


def test_profile_of_lengths_and_real_numbers() -> None:
    tensor = Tensor("x", (3, 2), "float32")
    samples = [np.zeros((rows, 2), np.float32) for rows in (1, 3, 3)] + [np.full((3, 2), -0.0, np.float32)]
    found = profile_of(tensor, samples)
    # -0.0 is zero, but its bytes differ from those of 0.0, so that it is no repetition.
    assert (found.shapes, found.zeros, found.repeated, found.distinct) == (((1, 2), (3, 2)), 1.0, 1, 3)
    assert found.changed is None


def test_every_second_sample_repeats(rng: np.random.Generator) -> None:
    """Decisions are those of a server that is driven directly; cycles are those that a session measures."""
    graph = dense_layers(rng)
    requests = [each for _ in range(6) for each in [drawn(graph, rng)] * 2]
    plan = planned(graph, requests, device="rtl", reuse=True)
    assert plan.guards == {"reused": 6, "computed": 6}
    network, usual = compile(graph, "n4", reuse=True), compile(graph, "n4")
    with open_server(usual, network, rtl=True) as device:
        server = Server(device, usual)
        reusing = ReusingServer(server, server.add(network)[0])
        results = []
        for inputs in requests:
            reusing.submit(Request(inputs))
            results += reusing.results()
        results += reusing.results(wait=True)
    assert counts(plan) == Counter(result.variant for result in results)
    assert Counter({(d.variant, d.why): d.requests for d in plan.decisions}) == Counter(
        (result.variant, result.why) for result in results
    )
    served = np.mean([result.cycles + result.delay for result in results])
    assert plan.served_cycles == pytest.approx(served, rel=0.05)
    variants = by_name(plan)
    for compiled, names in ((usual, ["usual"]), (network, ["computed", "reused"])):
        with RtlDevice(compiled.config, dram_bytes(compiled)) as device:
            session = Session(device, compiled)
            for name in names:
                _, cycles = session.measure(requests[0])
                mine = variants[name].cycles
                assert mine is not None and mine <= cycles <= mine + AROUND
                assert mine == sum(each or 0 for _, each in variants[name].programs)
    shares = {name: count / len(requests) for name, count in counts(plan).items()}
    expected = sum(share * (variants[name].cycles or 0) for name, share in shares.items())
    assert plan.expected(lambda each: each.cycles) == pytest.approx(expected)
    assert plan.served_cycles == pytest.approx(expected, rel=0.1)
    assert {each.layer for each in variants["reused"].pruned} == {info.name for info in usual.infos}
    assert not any(each.computed for each in variants["reused"].pruned) and not variants["computed"].pruned


def test_constant_tensors(rng: np.random.Generator) -> None:
    graph = dense_layers(rng)
    (name,) = graph.inputs
    tensor = graph.tensors[name]
    zeros = {name: np.full(tensor.shape, tensor.quantization.zero_point[0], np.int8)}  # type: ignore[union-attr]
    almost = {name: zeros[name].copy()}
    almost[name][0, -1] ^= 1
    plan = planned(graph, [*[zeros] * 5, almost], skip=name)
    assert plan.guards == {"zeros": 5, "not zeros": 1} == dict(counts(plan))
    assert plan.profile[0].repeated == 4 and plan.profile[0].zeros == pytest.approx(1 - 1 / 64 / 6)
    assert (
        plan.served_cycles is plan.expected(lambda each: each.cycles) is None
    )  # the golden model has no clock
    assert all(each.cycles is None and each.energy_uj is None for each in plan.variants)
    assert len(by_name(plan)["zeros"].pruned) == 3


def test_regions(rng: np.random.Generator) -> None:
    """A pixel in a corner is in the smallest windows; the multiply-accumulates of layers follow from the windows."""
    draft = Draft(rng)
    x = conv(draft, draft.input((1, 32, 32, 3)), 16)
    y = conv(draft, conv(draft, x, 16), 16)
    graph = draft.graph.finish([y.name])
    (name,) = graph.inputs
    first = drawn(graph, rng)
    corner = {name: first[name].copy()}
    corner[name][0, 0, 0, 0] ^= 1
    requests = [first, corner, corner, drawn(graph, rng)]
    plan = planned(graph, requests, target="n16", reuse="regions")
    windows = [each for each in by_name(plan) if each.endswith("pixels")]
    sizes = [tuple(map(int, each.removesuffix(" pixels").split(" x "))) for each in windows]
    whole, smallest = "32 x 32 pixels", min(sizes, key=lambda size: size[0] * size[1])
    assert plan.guards is not None and plan.guards[whole] == 2 and plan.guards["reused"] == 1
    assert sum(plan.guards.values()) == 4
    shrunk = by_name(plan)[f"{smallest[0]} x {smallest[1]} pixels"].pruned
    assert {each.layer for each in shrunk} == {layer.name for layer in plan.request.usual.layers}
    for number, each in enumerate(shrunk, 1):
        # A window grows by a pixel on each side in every layer; tiles may be larger.
        least = min(smallest[0] + number, 32) * min(smallest[1] + number, 32) / 32**2
        assert least <= each.computed < 1
    assert not by_name(plan)[whole].pruned
    view = drawn_plan(plan)
    assert set(view.successors("dispatch")) == {f"program {each.name}" for each in plan.variants[1:]}


def test_cascade() -> None:
    graph = classifier(np.random.default_rng(3))
    options: dict[str, Any] = {
        "calibration": samples_of_classes(graph, 100, 1),
        "accuracy_budget": BUDGET,
    }
    requests = samples_of_classes(graph, 12, 2)
    plan = planned(graph, requests, **options)
    network = compile(graph, "n4", **options)
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        session = Session(device, network)
        for sample in requests:
            session.run(sample)
        (taken,) = session.taken
    assert plan.guards == {"accepted": taken[0], "exact": taken[1]} and 0 < taken[0] < 12
    assert sum(counts(plan).values()) == 12 and counts(plan)["exact"] == taken[1]
    (part,) = (part for code in network.codes for part in code.parts if part.instead)
    assert by_name(plan)["accepted"].guard == str(part.instead[0].guard)
    layers = {info.name for info in compile(graph, "n4").infos}
    assert {each.layer for each in by_name(plan)["accepted"].pruned} == layers
    drawn_plan(plan)


def test_lengths(tmp_path: Path, rng: np.random.Generator) -> None:
    """Rows of a product that are beyond the length are not computed."""
    network, _ = several_lengths(tmp_path)
    record = CompilationTrace()
    compile(tmp_path / "rows.onnx", "n16", sizes={TOKENS: 40}, record=record)
    assert network.lengths is not None
    used = [3, 40, 17, 3, 16]
    requests = [Request({"x": rng.integers(-128, 128, (rows, 24)).astype(np.int8)}) for rows in used]
    serving = Serving(network, DEFAULT_DRAM)
    plan = plan_of(PlanRequest(record, serving, network, "--size", requests, {}, (), "golden"))
    assert [each.name for each in plan.variants] == ["usual", *(f"{TOKENS} {n}" for n in (3, 16, 17, 40))]
    assert counts(plan) == Counter(f"{TOKENS} {rows}" for rows in used) and plan.guards is None
    assert plan.profile[0].shapes == tuple((rows, 24) for rows in dict.fromkeys(used))
    shares = {each.name: [layer.computed for layer in each.pruned] for each in plan.variants}
    # Products are computed for whole rows of the array, of which there are 16.
    assert shares[f"{TOKENS} 40"] == shares["usual"] == []
    drawn_plan(plan)
    assert shares[f"{TOKENS} 3"][0] <= shares[f"{TOKENS} 16"][0] < shares[f"{TOKENS} 17"][0] < 1


def test_batches(rng: np.random.Generator) -> None:
    graph = dense_layers(rng)
    plan = planned(graph, [drawn(graph, rng) for _ in range(9)], batches=(1, 4))
    assert [each.samples for each in plan.variants] == [1, 1, 4] and plan.guards is None
    assert sum(counts(plan).values()) == 9 and counts(plan).keys() <= {"batch of 1", "batch of 4"}
    drawn_plan(plan)


def test_host_between_two_stages(rng: np.random.Generator) -> None:
    """Each stage has its own comparison; that of the second one reads what the host makes."""
    graph, host = two_stages(rng)
    first, second = drawn(graph, rng), drawn(graph, rng)
    other = graph.inputs[1]
    requests = [first, first, {**first, other: second[other]}]
    record = CompilationTrace()
    usual = compile(graph, "n4", host=host, record=record)
    made = compile(graph, "n4", host=host, reuse=True)
    given = [Request(each) for each in requests]
    serving = Serving(usual, DEFAULT_DRAM, reusing=made)
    plan = plan_of(PlanRequest(record, serving, made, "--reuse", given, first, (), "golden"))
    assert plan.guards == {"computed": 1, "reused": 1, "reused and computed": 1} == dict(counts(plan))
    view = drawn_plan(plan)
    (comparison,) = (key for key in view if key.startswith("stage 1 program comparison"))
    assert set(view.predecessors(comparison)) == {f"in {other}", host[0], "stage 1 copies"}


def test_no_input(rng: np.random.Generator) -> None:
    plan = planned(dense_layers(rng), [], reuse=True)
    assert plan.document()["input"] == "no input given" and plan.document()["variants"][0]["share"] is None
    assert (plan.profile, plan.guards, plan.decisions, plan.shares) == ((), None, (), {})
    assert any("no input given" in line for line in plan.lines())


def test_strategies(rng: np.random.Generator) -> None:
    """A strategy is rejected by the compiler's message, or if it is expected to cost cycles."""
    graph = dense_layers(rng)

    def rejected() -> CompiledNetwork:
        raise InputError("reuse: not today")

    others = [
        ("--first", lambda: compile(graph, "n4", reuse=True)),
        ("--second", rejected),
        ("--third", lambda: compile(graph, "n4", batches=(1, 2))),
    ]
    samples = [drawn(graph, rng) for _ in range(4)]
    different = planned(graph, samples, others=others, device="rtl").strategies
    assert [each.state for each in different] == ["chosen", "rejected", "rejected", "possible"]
    assert different[2].reason == "not today" and different[1].guards == {"reused": 0, "computed": 4}
    (_, equal, *_) = planned(graph, samples[:1] * 4, others=others[:1], device="rtl").strategies
    assert equal.state == "possible" and equal.guards == {"reused": 3, "computed": 1}


@pytest.fixture(scope="module")
def reused() -> DispatchPlan:
    rng = np.random.default_rng(0)
    graph = dense_layers(rng)
    return planned(graph, [each for _ in range(3) for each in [drawn(graph, rng)] * 2], reuse=True)


@pytest.mark.parametrize("form", FORMATS)
def test_formats(reused: DispatchPlan, form: str) -> None:
    view = plan_view(reused)
    assert nx.is_directed_acyclic_graph(view)
    assert {data["kind"] for _, data in view.nodes(data=True)} <= KINDS.keys()
    text = FORMATS[form](view)
    if form == "json":
        document = json.loads(text)
        assert document["graph"]["plan"] == json.loads(json.dumps(reused.document()))
        assert nx.utils.graphs_equal(
            nx.node_link_graph({k: v for k, v in document.items() if k != "schema_version"}, edges="edges"),
            view,
        )
    elif form == "svg":
        root = ElementTree.fromstring(text)
        texts = [each for each in root.iter() if each.tag.endswith("text") and not each.get("text-anchor")]
        for each in texts:
            x, y, size = (float(each.get(name, "nan")) for name in ("x", "y", "font-size"))
            assert x + text_width(each.text or "", size) <= float(root.get("width", "0")) + 1
            assert y <= float(root.get("height", "0"))
        shown = " ".join(each.text or "" for each in texts)
        assert all(word in shown for line in reused.lines() for word in line.split())
    else:
        assert "comparison with the previous inputs" in text and "%fuse_zeros == 64" in text


def test_long_lines_are_wrapped() -> None:
    text = "a few words and averyveryverylongword that follow each other"
    lines = wrapped(text, 60, 10)
    assert " ".join(lines) == text and len(lines) > 3
    assert all(text_width(line, 10) <= 60 or " " not in line for line in lines)


def test_edges(reused: DispatchPlan) -> None:
    """The comparison reads the input and its copy; the short program reads the copy of the output and writes it."""
    view = plan_view(reused)
    (comparison,) = (key for key in view if "comparison" in key)
    (short,) = (key for key in view if key.endswith("of the same inputs"))
    (name,) = reused.request.record.graphs["reduced"].inputs
    assert {source: edge["bytes"] for source, _, edge in view.in_edges(comparison, data=True)} == {
        f"in {name}": 64,
        "copies": 64,
    }
    (out,) = view.successors(short)
    assert view.nodes[out]["kind"] == "output" and view.in_degree(short) == 2
    assert sum(edge["bytes"] for _, _, edge in view.in_edges(short, data=True)) == 64
