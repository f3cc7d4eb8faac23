"""Views of the compiler's stages agree with the execution on the machine."""

from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pytest

from compiler.api import compile
from compiler.commands.commands import cycles
from compiler.cost.energy import MAC_PJ, PJ_PER_BYTE
from compiler.initial_schedule.initial import estimates
from compiler.ir.graph import Graph
from compiler.options import DramTiming
from compiler.pipeline import CompilationTrace
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.run_report import run_samples
from compiler.runtime.session import dram_bytes
from compiler.visualize.stages import STAGES, view_of
from compiler.visualize.view import KINDS as NODES
from compiler.visualize.view import View
from cosim.golden import GoldenDevice
from hw.errors import InputError
from hw.isa.enums import Unit
from scripts.networks.digits import MODEL
from tests.support.compute_graphs import KINDS, RandomDraft
from tests.support.graphs import Draft


def mixed() -> Graph:
    """Return a graph of several convolutions, a branch and a concatenation, with a host operator in the middle."""
    draft = Draft(np.random.default_rng(5))
    window: dict[str, Any] = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    x = draft.input((1, 10, 9, 12))
    a = draft.node(
        "conv2d", [x, draft.constant((20, 3, 3, 12))], (1, 10, 9, 20), scale=30.0, groups=1, **window
    )
    b = draft.node("depthwise_conv2d", [a, draft.constant((3, 3, 20))], (1, 10, 9, 20), scale=400.0, **window)
    c = draft.node("mul", [b, a], a.shape, scale=9000.0)
    square = {"kernel": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0)}
    pooled = draft.node("max_pool2d", [c], (1, 5, 4, 20), like=c, **square)
    host = draft.node(
        "conv2d",
        [pooled, draft.constant((4, 1, 1, 20))],
        (1, 5, 4, 4),
        dtype="int16",
        scale=2.0,
        groups=1,
        strides=(1, 1),
        pads=(0, 0, 0, 0),
        dilations=(1, 1),
    )
    back = draft.node("requantize", [host], host.shape, scale=3.0)
    d = draft.node(
        "concat", [back, draft.node("tanh", [back], back.shape, like=back)], (1, 5, 4, 8), like=back, axis=3
    )
    return draft.graph.finish([d.name, a.name])


@pytest.fixture(scope="module", params=["digits", "mixed"])
def record(request: pytest.FixtureRequest) -> CompilationTrace:
    made = CompilationTrace()
    compile(MODEL if request.param == "digits" else mixed(), "n8", record=made)
    return made


def total(view: View, unit: str, memory: str, *, written: bool, of: str = "bytes") -> float:
    """Return the sum of an edge attribute (by default bytes) over a unit's reads from, or writes to, a memory."""
    found = 0
    for source, target, edge in view.edges(data=True):
        worker, buffer = (source, target) if written else (target, source)
        if view.nodes[worker]["kind"] == unit and view.nodes[buffer].get("memory") == memory:
            found += edge[of]
    return found


def counts_of(network: CompiledNetwork, sample: dict[str, np.ndarray]) -> dict[str, int]:
    """Return the golden model's counters, summed over all tags."""
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        counts = run_samples(device, network, [sample], lambda _: None).counts
    return {name: sum(row[name] for row in counts.values()) for name in next(iter(counts.values()))}


def test_bytes_and_products_equal_the_machine_s_counters(record: CompilationTrace) -> None:
    network, view = record.network, view_of(record, "scheduled")
    assert network is not None
    rng, n = np.random.default_rng(1), record.config.n
    sample = {t.name: rng.integers(-9, 9, t.shape).astype(t.dtype) for t in network.inputs}
    counted = counts_of(network, sample)
    assert total(view, "load", "dram", written=False) == counted["load_bytes"] > 0
    assert total(view, "store", "dram", written=True) == counted["store_bytes"] > 0
    assert total(view, "matrix", "acc", written=True) == counted["acc_writes"] * 4 * n > 0
    products = sum(data.get("pj", 0) for _, data in view.nodes(data=True))
    assert products == pytest.approx(counted["macs_issued"] * MAC_PJ, abs=0.05 * len(view))


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_of_every_kind_of_layer(kind: str) -> None:
    chance, made = RandomDraft(7), CompilationTrace()
    y = KINDS[kind][0](chance)
    network = compile(chance.graph.finish([y.name]), "n4", record=made)
    counted, view = counts_of(network, chance.random_inputs()), view_of(made, "scheduled")
    assert total(view, "load", "dram", written=False) == counted["load_bytes"]
    assert total(view, "store", "dram", written=True) == counted["store_bytes"]
    assert total(view, "matrix", "acc", written=True) == counted["acc_writes"] * 4 * 4


def test_energy_of_an_edge_is_that_of_its_memory(record: CompilationTrace) -> None:
    view = view_of(record, "scheduled")
    for source, target, edge in view.edges(data=True):
        if "memory" not in view.nodes[source] and "memory" not in view.nodes[target]:
            continue
        if {"host"} & {view.nodes[end]["kind"] for end in (source, target)}:
            continue
        buffer = source if "memory" in view.nodes[source] else target
        price = PJ_PER_BYTE.get(view.nodes[buffer]["memory"], 0)
        assert edge["pj"] == pytest.approx(edge["bytes"] * price, abs=0.06)


def test_cycles_of_layers_equal_the_schedule_s_estimates(record: CompilationTrace) -> None:
    view = view_of(record, "layers")
    for stream in record.streams:
        for name, (taken, _) in estimates(record.config, stream.lowered).items():
            assert view.nodes[name]["cycles"] == round(taken)


def test_edges_have_the_bytes_of_their_tensors(record: CompilationTrace) -> None:
    graph, view = record.graphs["quantized"], view_of(record, "quantized")
    for source, target, edge in view.edges(data=True):
        assert edge["bytes"] == graph.tensors[edge["tensor"]].bytes, (source, target)
    assert {key for key, data in view.nodes(data=True) if data["kind"] == "operator"} == graph.nodes.keys()


def test_every_buffer_is_within_its_memory(record: CompilationTrace) -> None:
    view = view_of(record, "placed")
    placed = [data for _, data in view.nodes(data=True) if "starts" in data]
    assert {data["memory"] for data in placed} >= {"sp", "acc", "slot"}
    for data in placed:
        capacity, _ = view.graph["memories"][data["memory"]]
        for start, first, last in zip(data["starts"], data["first"], data["last"], strict=True):
            assert 0 <= start <= capacity - data["size"]
            assert first <= last


def test_commands_begin_after_their_predecessors(record: CompilationTrace) -> None:
    view = view_of(record, "timeline")
    assert nx.is_directed_acyclic_graph(view)
    for source, target in view.edges():
        assert view.nodes[source]["end"] <= view.nodes[target]["begin"]
    busiest: dict[str, int] = {}
    for _, data in view.nodes(data=True):
        busiest[data["kind"]] = busiest.get(data["kind"], 0) + data["cycles"]
    loads = sum(data["kind"] == "load" for _, data in view.nodes(data=True))
    assert (
        max(busiest.values()) <= view.graph["cycles"] <= sum(busiest.values()) + loads * record.dram.latency
    )


def test_a_slower_memory_takes_longer(record: CompilationTrace) -> None:
    """No LOAD transfers data before the latency has passed, and a slower memory takes more cycles."""
    totals = []
    for latency in (1, 100, 400):
        view = view_of(replace(record, dram=DramTiming(latency)), "timeline")
        (stream,) = record.streams
        for number, command in enumerate(stream.commands):
            if command.unit == Unit.LOAD and cycles(command, record.config):  # not a fill
                assert view.nodes[str(number)]["begin"] >= latency
        totals.append(view.graph["cycles"])
    assert totals[0] < totals[1] and totals[1] + 200 <= totals[2]
    half = view_of(replace(record, dram=DramTiming(100, record.config.n // 2)), "timeline")
    assert half.graph["cycles"] > totals[1]


def test_timeline_orders_accesses_to_the_same_bytes(record: CompilationTrace) -> None:
    """The timeline has semaphores from LOAD to MATRIX and FUSE, from MATRIX to FUSE, and from FUSE to STORE."""
    view = view_of(record, "timeline")
    pairs = {
        (view.nodes[a]["kind"], view.nodes[b]["kind"])
        for a, b, edge in view.edges(data=True)
        if edge["tensor"] == "semaphore"
    }
    assert {("load", "matrix"), ("matrix", "fuse"), ("load", "fuse"), ("fuse", "store")} <= pairs


@pytest.mark.parametrize("stage", STAGES)
def test_common_attributes_of_all_stages(record: CompilationTrace, stage: str) -> None:
    view = view_of(record, stage)
    assert (view.graph["stage"], len(view) > 0) == (stage, True)
    for key, data in view.nodes(data=True):
        assert data["kind"] in NODES, key
        assert data["label"] and isinstance(data["text"], list)
    for _, _, edge in view.edges(data=True):
        assert {"tensor", "bytes", "cycles", "pj"} <= edge.keys()


def test_view_of_programs(record: CompilationTrace) -> None:
    view = view_of(record, "programs")
    kinds = {data["kind"] for _, data in view.nodes(data=True)}
    assert record.network is not None
    assert kinds == ({"program", "host"} if record.network.host else {"program"})
    words = sum(data.get("words", 0) for _, data in view.nodes(data=True))
    assert words == sum(len(p.words) for code in record.network.codes for p in code.programs)


def test_unknown_stage_is_rejected(record: CompilationTrace) -> None:
    with pytest.raises(InputError, match=r"stage must be one of imported, .*timeline, not 'drawn'"):
        view_of(record, "drawn")
