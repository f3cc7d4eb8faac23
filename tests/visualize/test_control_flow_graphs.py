"""In views of models with control flow, subgraphs lie between the start and the end of their control node."""

import networkx as nx
import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Quantization, Tensor
from compiler.pipeline import CompilationTrace
from compiler.visualize.formats import FORMATS
from compiler.visualize.stages import STAGES, view_of

MEANING = Quantization.per_tensor(0.05, 3)


def image(name: str) -> Tensor:
    return Tensor(name, (1, 6, 5, 8), "int8", MEANING)


def unary(op: str, x: str, y: str, graph: Graph) -> None:
    graph.add_tensor(image(y))
    graph.add_node(Node(f"{op} {y}", op, (x,), (y,)))


def body(op: str) -> Graph:
    graph = Graph(op)
    graph.add_input(image("inner x"))
    unary(op, "inner x", "inner y", graph)
    return graph.finish(["inner y"])


def branching() -> Graph:
    """Return a graph with an If between two other nodes."""
    graph = Graph("branching")
    graph.add_input(Tensor("condition", (), "bool"))
    graph.add_input(image("x"))
    unary("silu", "x", "a", graph)
    graph.add_tensor(image("b"))
    graph.add_node(Node("choice", "if", ("condition", "a"), ("b",), {}, (body("tanh"), body("sigmoid"))))
    unary("softplus", "b", "c", graph)
    return graph.finish(["c"])


def looping() -> Graph:
    """Return a graph with a loop whose trip count is an input."""
    inner = Graph("inner")
    inner.add_input(Tensor("i", (), "int64"))
    inner.add_input(image("state"))
    inner.add_tensor(Tensor("go on", (), "bool", None, np.array(True)))
    unary("mish", "state", "next", inner)
    inner.finish(["go on", "next"])
    graph = Graph("looping")
    graph.add_input(Tensor("times", (), "int64"))
    graph.add_input(image("x"))
    graph.add_tensor(Tensor("true", (), "bool", None, np.array(True)))
    graph.add_tensor(image("y"))
    attributes = {"states": 1, "scanned": (), "stacked": ()}
    graph.add_node(Node("choice", "loop", ("true", "times", "x"), ("y",), attributes, (inner,)))
    unary("silu", "y", "z", graph)
    return graph.finish(["z"])


@pytest.fixture(scope="module", params=[branching, looping])
def record(request: pytest.FixtureRequest) -> CompilationTrace:
    made = CompilationTrace()
    compile(request.param(), "n8", record=made)
    return made


@pytest.mark.parametrize("stage", ["imported", "quantized", "partitioned", "layers", "programs"])
def test_subgraphs_are_inside_their_control_node(record: CompilationTrace, stage: str) -> None:
    view = view_of(record, stage)
    forward = nx.DiGraph([(a, b) for a, b, edge in view.edges(data=True) if not edge.get("back")])
    assert nx.is_directed_acyclic_graph(forward)
    kinds = dict(view.nodes(data="kind"))
    assert [key for key, kind in kinds.items() if kind == "control"] == ["choice", "choice end"]
    inside = nx.descendants(forward, "choice") & nx.ancestors(forward, "choice end")
    inner = {
        node.op
        for graph, node in record.graphs["quantized"].walk()
        if graph is not record.graphs["quantized"]
    }
    if stage == "programs":
        assert len(inside) == len(inner)
    else:
        assert {view.nodes[key].get("op") or view.nodes[key]["ops"][0] for key in inside} == inner


def test_loop_has_a_back_edge(record: CompilationTrace) -> None:
    view = view_of(record, "quantized")
    back = [(a, b) for a, b, edge in view.edges(data=True) if edge.get("back")]
    assert back == ([("choice end", "choice")] if record.graphs["quantized"].name == "looping" else [])


def test_host_and_chip_meet_in_dram(record: CompilationTrace) -> None:
    view = view_of(record, "scheduled")
    around = nx.all_neighbors(view, "choice")
    assert {view.nodes[key]["memory"] for key in around} == {"dram"}
    loaded = {a for a, b in view.edges() if view.nodes[b]["kind"] == "load"}
    stored = {b for a, b in view.edges() if view.nodes[a]["kind"] == "store"}
    assert any(b in loaded for b in view.successors("choice"))
    assert any(a in stored for a in view.predecessors("choice"))


@pytest.mark.parametrize("form", FORMATS)
def test_every_stage_in_every_format(record: CompilationTrace, form: str) -> None:
    for stage in STAGES:
        assert FORMATS[form](view_of(record, stage))
