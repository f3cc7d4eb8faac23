"""Control flow is checked, resolved if it is constant, and otherwise decided by the host and run on the accelerator."""

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.graph import Graph, GraphError, Node
from compiler.ir.tensor import Tensor
from compiler.options import DEFAULT_HOST_COSTS
from compiler.passes import simplify
from compiler.passes.control_flow import MAX_UNROLLED_ITERATIONS
from compiler.passes.loop_unrolling import LoopCosts, StepCost
from compiler.passes.redundant_nodes import name_apart
from compiler.reference import evaluate
from compiler.reference.control import MAX_ITERATIONS
from compiler.runtime.package_writer import read_package, to_bytes
from compiler.runtime.session import Session, dram_bytes
from compiler.runtime.validation import validate_network
from cosim.golden import GoldenDevice
from hw.errors import InputError, WorkError
from tests.support.control_graphs import body, choice, constant, loop, row, rows, unrolled

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
@pytest.mark.parametrize("length", [2, 5, 7, 10])
@pytest.mark.parametrize("extra", [0, 3])
def test_loops_unrolled_by_any_factor_equal_their_definition(length: int, extra: int, sign: int) -> None:
    """All factors give equal results, also for remaining steps and for scanned tensors that are longer."""
    graph = loop(length, length, sign=sign, scanned=length + extra)
    inputs = rows(length, s0=0, x=length + extra, w=0)
    wanted = evaluate(graph, inputs)
    for factor in (*range(length + 2), 100):
        made = unrolled(graph, factor)
        found = evaluate(made, inputs)
        assert all(np.array_equal(found[name], wanted[name]) for name in wanted), factor
        trips = [made.tensors[node.inputs[1]].data for node in made if node.op == "loop"]
        full = not 0 < factor <= length // 2
        assert trips == ([] if full else [length // factor, 1][: 1 + (length % factor > 0)])


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("length", [4, LONG])
@pytest.mark.parametrize("factor", [None, 1, 3, 0])
def test_unrolled_loops_run_on_the_accelerator(length: int, sign: int, factor: int | None) -> None:
    """The golden model's results equal the definition of the loop, whichever factor is chosen."""
    graph = loop(length, length, sign=sign)
    inputs = rows(length, s0=0, x=length, w=0)
    wanted = evaluate(graph, inputs)
    network = compile(graph, "n4", unroll=factor)
    loops = [each.op for each in network.host].count("loop")
    assert loops == {None: length == LONG, 1: 1, 3: 2 * (length == LONG), 0: 0}[factor]
    assert [each.name for each in network.rewritten] == ["unroll_loops"]
    found = network(**inputs)
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)


def counting(limit: int, *, used: bool) -> Graph:
    """Return a graph with a loop that counts in steps of two up to a limit; if `used`, it adds the count to a row."""
    inside = Graph("body")
    for tensor in (Tensor("i", (), "int64"), Tensor("n", (), "int64"), Tensor("s", (4,), "int64")):
        inside.add_input(tensor)
    inside.add_tensor(constant("limit", limit))
    inside.add_tensor(constant("two", 2))
    for tensor in (Tensor("m", (), "int64"), Tensor("go", (), "bool"), Tensor("t", (4,), "int64")):
        inside.add_tensor(tensor)
    inside.add_node(Node("count", "add", ("n", "two"), ("m",)))
    inside.add_node(Node("test", "less", ("m", "limit"), ("go",)))
    inside.add_node(Node("sum", "add", ("s", "n" if used else "s"), ("t",)))
    inside.finish(["go", "m", "t"])
    graph = Graph("counting")
    graph.add_input(Tensor("s0", (4,), "int64"))
    for tensor in (constant("c", True), constant("most", (1 << 62)), constant("n0", 0)):
        graph.add_tensor(tensor)
    for tensor in (Tensor("last", (), "int64"), Tensor("y", (4,), "int64")):
        graph.add_tensor(tensor)
    attributes = {"states": 2, "scanned": (), "stacked": ()}
    graph.add_node(Node("again", "loop", ("c", "most", "n0", "s0"), ("last", "y"), attributes, (inside,)))
    return graph.finish(["last", "y"])


@pytest.mark.parametrize("used", [False, True])
def test_counters(used: bool) -> None:
    """A counter that nothing but the condition reads disappears, and so does the condition."""
    graph, inputs = counting(13, used=used), {"s0": np.arange(4)}
    wanted = evaluate(graph, inputs)
    for factor in (1, 2, 3, 0):
        made = unrolled(graph, factor)
        found = evaluate(made, inputs)
        assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
        loops = [node for node in made if node.op == "loop"]
        assert [node.attributes["states"] for node in loops] == [1 + used] * (0, 1, 2, 2)[factor]
        assert not any(node.op == "less" for _, node in made.walk())


def test_iteration_numbers() -> None:
    """A body that reads the number of the iteration receives that of the original loop."""
    inside = Graph("body")
    for tensor in (Tensor("i", (), "int64"), Tensor("s", (), "int64")):
        inside.add_input(tensor)
    inside.add_tensor(constant("go", True))
    for name, terms in (("a", ("s", "s")), ("b", ("a", "i"))):
        inside.add_tensor(Tensor(name, (), "int64"))
        inside.add_node(Node(f"make {name}", "add", terms, (name,)))
    inside.finish(["go", "b", "b"])
    graph = Graph("numbers")
    graph.add_input(Tensor("s0", (), "int64"))
    for tensor in (
        constant("c", True),
        constant("m", 11),
        Tensor("y", (), "int64"),
        Tensor("ys", (11,), "int64"),
    ):
        graph.add_tensor(tensor)
    attributes = {"states": 1, "scanned": (), "stacked": (-1,)}
    graph.add_node(Node("again", "loop", ("c", "m", "s0"), ("y", "ys"), attributes, (inside,)))
    graph.finish(["y", "ys"])
    wanted = evaluate(graph, {"s0": np.array(5)})
    for factor in (1, 2, 3, 4, 5, 0):
        found = evaluate(unrolled(graph, factor), {"s0": np.array(5)})
        assert all(np.array_equal(found[name], wanted[name]) for name in wanted)


def test_loops_with_an_unknown_number_of_iterations_remain() -> None:
    graph = loop(3, 3)
    made = Graph("unknown")
    for name, tensor in graph.tensors.items():
        dynamic = name in (*graph.inputs, "m")
        (made.add_input if dynamic else made.add_tensor)(
            replace(tensor, data=None) if name == "m" else tensor
        )
    made.add_node(graph.nodes["again"])
    made.finish(["y", "ys"])
    assert unrolled(made, 2) is made
    with pytest.raises(
        InputError, match="loop 'again' cannot be unrolled: its number of iterations is not known"
    ):
        compile(made, "n4", unroll={"again": 2})
    with pytest.raises(InputError, match=r"'looped' has no loop 'agin' to unroll \(did you mean again\?\)"):
        compile(graph, "n4", unroll={"agin": 2})
    with pytest.raises(InputError, match=r"cannot be unrolled by 30,000: .* the limit is 16,384"):
        compile(loop(30_000, 30_000), "n4", unroll=0)
    for wrong in (-1, {"again": True}, {"again": "2"}, "2"):
        with pytest.raises(InputError, match="unroll must"):
            compile(graph, "n4", unroll=wrong)  # type: ignore[arg-type]


def test_costs_decide_how_far_loops_are_unrolled() -> None:
    """More host time favors larger factors, a small instruction store smaller ones; near ties go to small programs."""
    one, two = StepCost(1000, 0, 1, 10), StepCost(2000, 0, 1, 20)
    costs = LoopCosts(60, one, two, DEFAULT_HOST_COSTS, 8192)
    assert costs.microseconds(1) == 60 * (10 + 50) and costs.microseconds(20) == 3 * (200 + 50)
    assert costs.words_of(20) == 20 * 10 * 29
    assert costs.best(1000) == 20  # 28 steps fill the store
    assert costs.best(16) == 15
    assert replace(costs, words=1 << 20).best(1000) == 60
    assert replace(costs, words=512).best(1000) == 30  # all programs are loaded for each sample in any case
    slow = replace(DEFAULT_HOST_COSTS, stage=5000.0)
    assert replace(costs, costs=slow).best(1000) == 60
    apart = replace(costs, two=StepCost(2000, 0, 2, 20))  # the host acts between any two steps
    assert apart.best(1000) == 1
    assert "unrolled by 20: 3 iterations instead of 60; estimated 750 us at 100 MHz" in costs.text(20)


def test_loops_that_the_host_may_not_execute_are_unrolled_fully() -> None:
    graph = loop(LONG, LONG)
    assert not compile(graph, "n4", strict=True).host
    inputs = rows(1, s0=0, x=LONG, w=0)
    found, wanted = compile(graph, "n4", disable=["unroll_loops"]), evaluate(graph, inputs)
    assert [each.op for each in found.host] == ["loop"] and not found.rewritten
    assert all(np.array_equal(found(**inputs)[name], wanted[name]) for name in wanted)


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


def test_stages_have_a_limit_of_operands() -> None:
    """A model with more inputs and outputs than a macro-instruction has operands is rejected."""
    graph = Graph("wide")
    graph.add_input(row("x", 60))
    for number in range(60):
        graph.add_tensor(replace(row(f"y{number}"), shape=(1, 1, 16)))
        spans = {"starts": (number, 0, 0), "sizes": (1, 1, 16), "steps": (1, 1, 1)}
        graph.add_node(Node(f"cut{number}", "slice", ("x",), (f"y{number}",), spans))
    graph.finish([f"y{number}" for number in range(60)])
    with pytest.raises(
        InputError, match=r"'wide' has a stage .* with 61 inputs and outputs; the limit is 47"
    ):
        compile(graph, "n4")
