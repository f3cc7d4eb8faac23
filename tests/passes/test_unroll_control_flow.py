"""Control flow is checked, resolved if it is constant, and otherwise decided by the host and run on the accelerator."""

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.graph import Graph, GraphError, Node
from compiler.ir.tensor import Tensor
from compiler.passes import simplify
from compiler.passes.control_flow import MAX_UNROLLED_ITERATIONS, MAX_UNROLLED_NODES
from compiler.passes.redundant_nodes import name_apart
from compiler.reference import evaluate
from compiler.reference.control import MAX_ITERATIONS
from compiler.runtime.package.writer import read_package, to_bytes
from compiler.runtime.session import Session, dram_bytes
from compiler.runtime.validation import validate_network
from cosim.golden import GoldenDevice
from hw.errors import InputError, WorkError
from tests.support.control_graphs import body, choice, constant, loop, row, rows

LONG = MAX_UNROLLED_ITERATIONS + 8


def test_text_of_an_if() -> None:
    assert str(choice()).splitlines()[4:] == [
        ") {",
        "    %z: int8[1, 16] * 0.1 @ 3 = if(%p, %x, %y)  ; choose",
        "        then(",
        "            %a: int8[1, 16] * 0.1 @ 3",
        "            %b: int8[1, 16] * 0.1 @ 3",
        "        ) {",
        "            %z: int8[1, 16] * 0.1 @ 3 = add(%a, %b)  ; compute",
        "            return %z",
        "        }",
        "        else(",
        "            %a: int8[1, 16] * 0.1 @ 3",
        "            %b: int8[1, 16] * 0.1 @ 3",
        "        ) {",
        "            %z: int8[1, 16] * 0.1 @ 3 = mul(%a, %b)  ; compute",
        "            return %z",
        "        }",
        "    return %z",
        "}",
    ]


def rejection_of_changed(graph: Graph, **parts: object) -> str:
    """Return the message with which a copy of a graph is rejected if parts of its last node are changed."""
    *_, node = graph
    made = Graph("changed")
    for name, tensor in graph.tensors.items():
        (made.add_input if name in graph.inputs else made.add_tensor)(tensor)
    made.add_tensor(row("other", 7))
    made.add_tensor(Tensor("float", (1, 16), "float32"))
    with pytest.raises(GraphError) as caught:
        made.add_node(replace(node, **parts))  # type: ignore[arg-type]
    return str(caught.value)


def test_invalid_branches_are_rejected() -> None:
    graph = choice()
    good, _ = graph.nodes["choose"].bodies
    for name, wrong in (("float", Tensor("z", (1, 16), "float32")), ("short", Tensor("z", (16,), "int8"))):
        other = Graph(name)
        other.add_input(row("a"))
        other.add_input(row("b"))
        other.add_tensor(replace(wrong, data=np.zeros(wrong.shape, wrong.dtype)))
        assert rejection_of_changed(graph, bodies=(good, other.finish(["z"]))) == (
            "node 'choose' (if): output 0 of its subgraph 'else': 'z' must be int8[1, 16] * 0.1 @ 3, not "
            f"{wrong.dtype}{list(wrong.shape)}"
        )
    assert "its condition 'x' must be one bool, not int8[1, 16]" in rejection_of_changed(
        graph, inputs=("x", "x", "y")
    )
    assert "operand of its subgraph 'then': there must be 1, not 2" in rejection_of_changed(
        graph, inputs=("p", "x")
    )
    assert "if has 2 subgraphs, not 1" in rejection_of_changed(graph, bodies=(good,))


def test_invalid_loops_are_rejected() -> None:
    graph = loop(5, 5)
    given = graph.nodes["again"].attributes
    for parts, message in (
        ({"inputs": ("m", "c", "s0", "x", "w")}, "its condition 'm' must be one bool, not int64[]"),
        ({"inputs": ("c", "w", "s0", "x", "w")}, "its trip count 'w' must be one int64, not int8[1, 16]"),
        (
            {"inputs": ("c", "m", "x", "x", "w")},
            "state 0 going into its subgraph: 's' must be int8[5, 1, 16]",
        ),
        ({"inputs": ("c", "m", "s0", "s0", "w")}, "scanned operand 0: 'x_t' must be a slice of int8[1, 16]"),
        ({"outputs": ("ys", "y")}, "state 0 as an output: 'ys' must be int8[1, 16]"),
        (
            {"attributes": given | {"stacked": (0,)}},
            "stacked must be a tuple of 1 (forward) and -1 (backward)",
        ),
        ({"attributes": given | {"states": 2, "scanned": ()}}, "must have 4 operands and 3 outputs"),
        ({"bodies": (body(stacked=False),)}, "its subgraph must have 4 inputs and 3 outputs"),
    ):
        assert message in rejection_of_changed(graph, **parts)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("length", [1, 4, MAX_UNROLLED_ITERATIONS, LONG])
def test_loops_equal_their_definition(length: int, sign: int) -> None:
    """Loops, unrolled or not, have the results that their definition requires, on the golden model."""
    graph = loop(length, length, sign=sign)
    inputs = rows(length, s0=0, x=length, w=0)
    wanted = evaluate(graph, inputs)
    network = compile(graph, "n4")
    assert network.graph is not None
    long = length > MAX_UNROLLED_ITERATIONS
    assert [node.op for node in network.graph].count("loop") == long
    assert [each.op for each in network.host] == ["loop"] * long
    found = network(**inputs)
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)


def test_few_iterations_of_many_nodes_stay_a_loop() -> None:
    """A loop with few iterations is not unrolled if this would give too many nodes."""
    inside = Graph("body")
    for tensor in (Tensor("i", (), "int64"), row("s"), row("x_t"), row("w")):
        inside.add_input(tensor)
    inside.add_tensor(constant("go", True))
    last, count = "s", MAX_UNROLLED_NODES // 4 + 1
    for number in range(count):
        inside.add_tensor(row(f"s{number}"))
        inside.add_node(Node(f"n{number}", "add", (last, "x_t"), (f"s{number}",)))
        last = f"s{number}"
    inside.finish(["go", last])
    assert [node.op for node in simplify(loop(3, 3, inside))].count("add") == 3 * count
    assert [node.op for node in simplify(loop(4, 4, inside))] == ["loop"]


@pytest.mark.parametrize("taken", [True, False])
def test_branches(taken: bool) -> None:
    graph = choice()
    inputs = {"p": np.array(taken), **rows(1, x=0, y=0)}
    network = compile(graph, "n4")
    assert np.array_equal(network(**inputs)["z"], evaluate(graph, inputs)["z"])
    assert [info.nodes for info in network.infos] == [("compute",), ("choose/compute",)]


def test_equal_names_in_subgraphs_are_made_unique() -> None:
    names = [node.name for _, node in name_apart(choice()).walk()]
    assert len(set(names)) == len(names)


def test_unused_values_are_removed() -> None:
    """Unused stacked outputs and unused operands of a loop are removed, and constants move into subgraphs."""
    graph = loop(LONG, LONG)
    made = Graph("less")
    for name in graph.inputs:
        made.add_input(graph.tensors[name]) if name != "w" else None
    made.add_tensor(replace(graph.tensors["w"], data=np.ones((1, 16), np.int8)))
    for name in ("c", "m", "y", "ys"):
        made.add_tensor(graph.tensors[name])
    made.add_node(graph.nodes["again"])
    (node,) = simplify(made.finish(["y"]))
    assert (node.inputs, node.outputs) == (("c", "m", "s0", "x"), ("y",))
    assert node.attributes["stacked"] == ()
    assert node.bodies[0].tensors["w"].constant


def endless() -> Graph:
    """Return a graph with an endless loop."""
    inside = body(stacked=False)
    graph = loop(1, MAX_ITERATIONS * 2, inside)
    made = Graph("endless")
    for name in ("s0", "w"):
        made.add_input(graph.tensors[name])
    for tensor in (constant("c", True), constant("m", (1 << 63) - 1), row("y")):
        made.add_tensor(tensor)
    attributes = {"states": 1, "scanned": (), "stacked": ()}
    made.add_node(Node("again", "loop", ("c", "m", "s0", "w", "w"), ("y",), attributes, (inside,)))
    return made.finish(["y"])


def test_endless_loops_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.reference.control.MAX_ITERATIONS", 1234)
    message = "loop 'again' does not end: the loops of a model may take 1,234 iterations for a sample"
    with pytest.raises(WorkError, match=message):
        evaluate(endless(), rows(1, s0=0, w=0))


def test_endless_loops_are_stopped_on_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endless loop is stopped at the limit of iterations, which applies to each sample separately."""
    monkeypatch.setattr("compiler.reference.control.MAX_ITERATIONS", 50)
    network = compile(endless(), "n4")
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        session = Session(device, network)
        for _ in range(2):
            with pytest.raises(WorkError, match=r"loop 'again' does not end: .* 50 iterations"):
                session.run(rows(1, s0=0, w=0))
        assert session.runs == [100]


def test_a_loop_must_fill_its_stacks() -> None:
    with pytest.raises(
        WorkError, match="loop 'again' ended after 3 iterations, but its output 'ys' takes a slice"
    ):
        evaluate(loop(5, 3), rows(1, s0=0, x=5, w=0))
    with pytest.raises(WorkError, match="loop 'again' runs past the 5 slices of its scanned input"):
        evaluate(loop(5, 6), rows(1, s0=0, x=5, w=0))


@pytest.mark.parametrize("graph", [loop(LONG, LONG), choice()], ids=["loop", "if"])
def test_packages(tmp_path: Path, graph: Graph) -> None:
    """A package preserves subgraphs with their stages, constants and lower bounds, and gives the same results."""
    network = compile(graph, "n4")
    path = tmp_path / "network.mla"
    path.write_bytes(to_bytes(network))
    again = read_package(path)
    assert to_bytes(again) == to_bytes(network)
    assert len(validate_network(again)) == len(network.codes) > 0
    inputs = {name: array for name, array in rows(2, s0=0, x=LONG, w=0, y=0).items() if name in graph.inputs}
    if "p" in graph.inputs:
        inputs = {"p": np.array(True), **rows(2, x=0, y=0)}
    found, wanted = again(**inputs), network(**inputs)
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)


def test_damaged_packages(tmp_path: Path) -> None:
    """Inconsistent subgraphs in a file give a message when the file is read, not a traceback later."""
    path = tmp_path / "network.mla"
    path.write_bytes(to_bytes(compile(loop(LONG, LONG), "n4")))
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    deep = b'{"format": ' + b"[" * 100_000
    for before, after, message in (
        (b'"states": 1', b'"states": 9', "must have 12 operands and 10 outputs"),
        (b'"states": 1', b'"states": -1', "states must be an integer, not negative"),
        (
            b'"op": "loop",\n    "attr',
            b'"op": "conv2d",\n    "attr',
            "'conv2d' is not a complete control-flow",
        ),
        (b'"scanned": [', b'"scan": [', "'loop' is not a complete control-flow operator"),
        (b'"name": "x_t"', b'"name": "x_u"', "no stage computes 'x_t'"),
        (members["manifest.json"], deep, "RecursionError"),
    ):
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data.replace(before, after, 1))
        with pytest.raises(InputError, match=f"damaged compiled network: .*{message}"):
            read_package(path)


def test_strict_rejects_control_flow_on_the_host() -> None:
    with pytest.raises(
        InputError, match=r"choose \(if\): the host executes control flow; the accelerator runs"
    ):
        compile(choice(), "n4", strict=True)
    assert not compile(loop(3, 3), "n4", strict=True).host
