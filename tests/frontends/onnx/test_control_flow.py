"""ONNX models with If, Loop and Scan give the same results as onnxruntime, before and after all passes."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from compiler.ir.graph import Graph
from compiler.passes import simplify
from compiler.passes.control_flow import MAX_UNROLLED_ITERATIONS
from tests.support.control_graphs import unrolled
from tests.support.control_models import BOOL, COUNTED, FLOAT, INTEGER, branch, integer, subgraph
from tests.support.onnx_models import check, evaluated, model, node, reference

LONG = MAX_UNROLLED_ITERATIONS + 8
TRUE, ZERO = np.array(True), np.array(0, np.float32)


def random(*shape: int) -> np.ndarray:
    """Return seeded random float32 values."""
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def same(folder: Path, made: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> Graph:
    """Compare a model with onnxruntime before and after all passes, with loops unrolled by several factors.

    Returns the graph after the passes in which the loops are unrolled fully.
    """
    graph = simplify(check(folder, made, inputs))
    wanted = reference(made, inputs)
    for factor in (1, 2, 3, 0):
        full = unrolled(graph, factor)
        for each in (graph, full):
            got = evaluated(each, inputs)
            for name, array in wanted.items():
                np.testing.assert_allclose(got[name].astype(float), array.astype(float), rtol=0, atol=1e-4)
    return full


def count(graph: Graph, op: str) -> int:
    """Return the number of nodes of an operator, including those in subgraphs."""
    return sum(node.op == op for _, node in graph.walk())


def summed(op: str, limit: str) -> list[onnx.NodeProto]:
    """Return nodes that compare the sum of x with a constant."""
    return [node("ReduceSum", "x", "sum", keepdims=0), node(op, f"sum {limit}", "p")]


@pytest.mark.parametrize("sign", [1, -1])
def test_if_takes_either_branch(tmp_path: Path, sign: int) -> None:
    parts = {
        "then_branch": branch("t", node("Mul", "x two", "t")),
        "else_branch": branch("e", node("Add", "x w", "e")),
    }
    x = {"x": sign * np.abs(random(2, 3)), "w": random(3)}
    constants = {"zero": ZERO, "two": np.array(2, np.float32)}
    made = model(
        [*summed("Greater", "zero"), node("If", "p", "y", **parts), node("Relu", "y", "z")],
        x,
        ["z"],
        constants,
    )
    assert count(same(tmp_path, made, x), "if") == 1


@pytest.mark.parametrize("taken", [True, False])
def test_constant_condition_selects_a_branch(tmp_path: Path, taken: bool) -> None:
    """With a constant condition, the branch not taken may be invalid, as in the files of some exporters."""
    fits, other = branch("t", node("Mul", "x x", "t")), branch("e", node("Reshape", "x six", "e"))
    parts = (
        {"then_branch": fits, "else_branch": other} if taken else {"then_branch": other, "else_branch": fits}
    )
    x = {"x": random(2, 3)}
    made = model([node("If", "p", "y", **parts)], x, ["y"], {"p": np.array(taken), "six": np.array([6])})
    assert [each.op for each in same(tmp_path, made, x)] == ["mul"]


@pytest.mark.parametrize("sign", [1, -1])
def test_branches_without_computation(tmp_path: Path, sign: int) -> None:
    given = onnx.numpy_helper.from_array(random(2, 3))
    parts = {
        "then_branch": branch("t", node("Identity", "x", "t")),
        "else_branch": branch("e", node("Constant", "", "e", value=given)),
    }
    x = {"x": sign * np.abs(random(2, 3))}
    made = model([*summed("GreaterOrEqual", "zero"), node("If", "p", "y", **parts)], x, ["y"], {"zero": ZERO})
    same(tmp_path, made, x)


def counted(trips: int, *, stacked: bool = True) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a model with a loop of the given trip count whose body captures w, and the model's inputs."""
    nodes = [node("Add", "s w", "s2"), node("Mul", "s s2", "q"), node("Identity", "c", "c2")]
    ends = [("c2", BOOL), ("s2", FLOAT), ("q", FLOAT)][: 3 if stacked else 2]
    body = subgraph(nodes, [*COUNTED, ("s", FLOAT)], ends)
    x = {"x": random(2, 3), "w": random(3)}
    outputs = "y ys" if stacked else "y"
    made = model(
        [node("Loop", "trips - x", outputs, body=body)], x, outputs.split(), {"trips": integer(trips)}
    )
    return made, x


@pytest.mark.parametrize("trips", [1, 2, 3, 7, LONG])
def test_loops_are_unrolled(tmp_path: Path, trips: int) -> None:
    graph = same(tmp_path, *counted(trips))
    assert (count(graph, "loop"), count(graph, "add")) == (0, trips)


def test_no_iterations(tmp_path: Path) -> None:
    assert [each.op for each in same(tmp_path, *counted(0, stacked=False))] == ["reshape"]


@pytest.mark.parametrize("limit", [-1e9, 4.0, 1e9])
@pytest.mark.parametrize("trips", ["-", "trips"])
def test_early_exit(tmp_path: Path, limit: float, trips: str) -> None:
    """The condition that the body computes ends a loop, even if the loop has no initial condition."""
    nodes = [
        node("Add", "s w", "s2"),
        node("ReduceSum", "s2", "sum", keepdims=0),
        node("Less", "sum limit", "c2"),
    ]
    body = subgraph(nodes, [*COUNTED, ("s", FLOAT)], [("c2", BOOL), ("s2", FLOAT)])
    x = {"x": random(2, 3), "w": np.abs(random(3)) + 1}
    limit = min(limit, 1e4) if trips == "-" else limit
    constants = {"trips": integer(LONG), "limit": np.array(limit, np.float32), "true": TRUE}
    made = model([node("Loop", f"{trips} true x", "y", body=body)], x, ["y"], constants)
    assert count(same(tmp_path, made, x), "loop") == 1


@pytest.mark.parametrize("trips", [0, 1, 2, 50])
def test_computed_trip_count(tmp_path: Path, trips: int) -> None:
    nodes = [node("Add", "n n", "n2"), node("Less", "n2 limit", "c2"), node("Add", "s w", "s2")]
    body = subgraph(
        nodes, [*COUNTED, ("n", INTEGER), ("s", FLOAT)], [("c2", BOOL), ("n2", INTEGER), ("s2", FLOAT)]
    )
    x = {"x": random(2, 3), "w": random(3), "n0": integer(3), "trips": integer(trips)}
    constants = {"limit": integer(1000), "true": TRUE}
    same(tmp_path, model([node("Loop", "trips true n0 x", "n y", body=body)], x, ["n", "y"], constants), x)


def test_loop_with_a_known_counter_is_unrolled(tmp_path: Path) -> None:
    nodes = [node("Add", "n n", "n2"), node("Less", "n2 limit", "c2"), node("Add", "s w", "s2")]
    body = subgraph(
        nodes, [*COUNTED, ("n", INTEGER), ("s", FLOAT)], [("c2", BOOL), ("n2", INTEGER), ("s2", FLOAT)]
    )
    x = {"x": random(2, 3), "w": random(3)}
    constants = {"limit": integer(1000), "true": TRUE, "n0": integer(3)}
    graph = same(
        tmp_path, model([node("Loop", "- true n0 x", "n y", body=body)], x, ["n", "y"], constants), x
    )
    assert (count(graph, "loop"), count(graph, "add")) == (0, 9)


def test_condition_of_logical_operators(tmp_path: Path) -> None:
    nodes = [
        node("Add", "s w", "s2"),
        node("ReduceSum", "s2", "sum", keepdims=0),
        node("LessOrEqual", "sum limit", "a"),
        node("Not", "b", "nb"),
        node("And", "a nb", "c2"),
        node("Equal", "sum limit", "e"),
        node("Or", "e b", "b2"),
    ]
    body = subgraph(nodes, [*COUNTED, ("b", BOOL), ("s", FLOAT)], [("c2", BOOL), ("b2", BOOL), ("s2", FLOAT)])
    x = {"x": random(2, 3), "w": np.abs(random(3))}
    constants = {"limit": np.array(30, np.float32), "true": TRUE, "b0": np.array(False)}
    same(tmp_path, model([node("Loop", "- true b0 x", "b y", body=body)], x, ["b", "y"], constants), x)


@pytest.mark.parametrize(("outer", "inner"), [(3, 2), (3, LONG), (LONG, 3), (LONG, LONG)])
def test_nested_loops(tmp_path: Path, outer: int, inner: int) -> None:
    steps = [node("Add", "s w", "t"), node("Mul", "t half", "s2"), node("Identity", "c", "c2")]
    nested = subgraph(steps, [*COUNTED, ("s", FLOAT)], [("c2", BOOL), ("s2", FLOAT)])
    nodes = [node("Loop", "inner - so", "so2", body=nested), node("Identity", "co", "co2")]
    ins = [("io", INTEGER), ("co", BOOL), ("so", FLOAT)]
    body = subgraph(nodes, ins, [("co2", BOOL), ("so2", FLOAT)])
    x = {"x": random(2, 3), "w": random(3)}
    constants = {"outer": integer(outer), "inner": integer(inner), "half": np.array(0.5, np.float32)}
    graph = same(tmp_path, model([node("Loop", "outer - x", "y", body=body)], x, ["y"], constants), x)
    assert (count(graph, "loop"), count(graph, "mul")) == (0, outer * inner)


def test_branches_in_loops(tmp_path: Path) -> None:
    parts = {
        "then_branch": branch("a", node("Sub", "s w", "a")),
        "else_branch": branch("b", node("Add", "s w", "b")),
    }
    nodes = [
        node("ReduceSum", "s", "sum", keepdims=0),
        node("Greater", "sum zero", "p"),
        node("If", "p", "s2", **parts),
        node("Identity", "c", "c2"),
    ]
    body = subgraph(nodes, [*COUNTED, ("s", FLOAT)], [("c2", BOOL), ("s2", FLOAT)])
    x = {"x": random(2, 3), "w": np.abs(random(3))}
    made = model(
        [node("Loop", "trips - x", "y", body=body)], x, ["y"], {"trips": integer(LONG), "zero": ZERO}
    )
    graph = same(tmp_path, made, x)
    assert (count(graph, "loop"), count(graph, "if")) == (0, LONG)


def test_states_that_need_unrolling(tmp_path: Path) -> None:
    """Loops are unrolled if their state grows or if their body slices by the iteration number."""
    nodes = [
        node("Unsqueeze", "i axis", "from"),
        node("Add", "from one", "to"),
        node("Slice", "x from to axis", "row"),
        node("Concat", "s row", "s2", axis=0),
        node("Identity", "c", "c2"),
        node("Identity", "row", "r"),
    ]
    body = subgraph(nodes, [*COUNTED, ("s", FLOAT)], [("c2", BOOL), ("s2", FLOAT), ("r", FLOAT)])
    x = {"x": random(6, 3)}
    constants = {"trips": integer(4), "one": np.array([1]), "axis": np.array([0]), "s0": random(1, 3)}
    graph = same(
        tmp_path, model([node("Loop", "trips - s0", "y ys", body=body)], x, ["y", "ys"], constants), x
    )
    assert count(graph, "loop") == 0


@pytest.mark.parametrize("steps", [5, LONG])
@pytest.mark.parametrize("backward", [0, 1])
def test_scans(tmp_path: Path, steps: int, backward: int) -> None:
    """A Scan reads two inputs along different axes and in different directions."""
    nodes = [node("Mul", "a b", "p"), node("Add", "s p", "s2")]
    body = subgraph(nodes, [("s", FLOAT), ("a", FLOAT), ("b", FLOAT)], [("s2", FLOAT), ("p", FLOAT)])
    directions = {"scan_input_directions": [backward, 0], "scan_output_directions": [1 - backward]}
    scan = node(
        "Scan",
        "s0 xa xb",
        "s ps",
        body=body,
        num_scan_inputs=2,
        scan_input_axes=[0, -1],
        scan_output_axes=[1],
        **directions,
    )
    x = {"xa": random(steps, 2, 3), "xb": random(2, 3, steps)}
    graph = same(tmp_path, model([scan], x, ["s", "ps"], {"s0": np.zeros((2, 3), np.float32)}), x)
    assert count(graph, "loop") == 0


def test_scan_without_a_state(tmp_path: Path) -> None:
    scan = node(
        "Scan",
        "x",
        "y",
        body=subgraph([node("Relu", "a", "b")], [("a", FLOAT)], [("b", FLOAT)]),
        num_scan_inputs=1,
    )
    x = {"x": random(LONG, 2, 3)}
    same(tmp_path, model([scan], x, ["y"]), x)


def test_iteration_number_in_arithmetic(tmp_path: Path) -> None:
    nodes = [
        node("Cast", "i", "f", to=onnx.TensorProto.FLOAT),
        node("Mul", "w f", "p"),
        node("Add", "s p", "s2"),
        node("Identity", "c", "c2"),
    ]
    body = subgraph(nodes, [*COUNTED, ("s", FLOAT)], [("c2", BOOL), ("s2", FLOAT)])
    x = {"x": random(2, 3), "w": random(3)}
    for trips in (4, LONG):
        made = model([node("Loop", "trips - x", "y", body=body)], x, ["y"], {"trips": integer(trips)})
        same(tmp_path, made, x)


def test_functions_defined_in_the_file(tmp_path: Path) -> None:
    """A function of the file may use another function and contain an If."""
    helper, opsets = onnx.helper, [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("own", 1)]
    parts = {
        "then_branch": branch("t", node("Neg", "a", "t")),
        "else_branch": branch("e", node("Identity", "a", "e")),
    }
    inner = [
        node("ReduceSum", "a", "sum", keepdims=0),
        node("Sub", "sum sum", "zero"),
        node("Less", "sum zero", "p"),
        node("If", "p", "b", **parts),
    ]
    outer = [
        node("Turned", "a", "m", domain="own"),
        node("Turned", "m", "n", domain="own"),
        node("Add", "n a", "b"),
    ]
    functions = [
        helper.make_function("own", name, ["a"], ["b"], nodes, opsets)
        for name, nodes in (("Turned", inner), ("Outer", outer))
    ]
    ends = [[helper.make_tensor_value_info(name, FLOAT, (2, 3))] for name in ("x", "y")]
    graph = helper.make_graph([node("Outer", "x", "y", domain="own")], "test", *ends)
    made = helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=8)
    for sign in (1, -1):
        assert count(same(tmp_path, made, {"x": sign * np.abs(random(2, 3))}), "if") == 2
