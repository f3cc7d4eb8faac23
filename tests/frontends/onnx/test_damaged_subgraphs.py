"""ONNX models with damaged or very large subgraphs give a message that names the node."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from compiler.frontends.onnx import read_onnx
from compiler.passes import simplify
from hw.errors import InputError
from tests.support.control_models import BOOL, COUNTED, FLOAT, INTEGER, branch, integer, subgraph
from tests.support.onnx_models import node, small

TRUE = np.array(True)


def rejection(folder: Path, made: onnx.ModelProto) -> str:
    """Return the message with which a model is rejected."""
    path = folder / "model.onnx"
    path.write_bytes(made.SerializeToString())
    with pytest.raises(InputError) as caught:
        read_onnx(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ") and "\n" not in text and len(text) < 2000
    return text.removeprefix(f"{path}: ")


DECIDE = [node("ReduceSum", "x", "sum", keepdims=0), node("Greater", "sum zero", "p")]
ZERO = np.array(0, np.float32)


def with_if(then: onnx.GraphProto, other: onnx.GraphProto | None = None, **more: object) -> onnx.ModelProto:
    """Return a model with an If that has the given branches."""
    parts = {"then_branch": then, "else_branch": other or branch("e", node("Relu", "x", "e"))} | more
    kept = {key: value for key, value in parts.items() if value is not None}
    return small(*DECIDE, node("If", "p", "y", **kept), zero=ZERO)


def with_loop(
    body: onnx.GraphProto, inputs: str = "trips - x", outputs: str = "y", **more: object
) -> onnx.ModelProto:
    """Return a model with a Loop that has the given body."""
    constants = {"trips": integer(40), "true": TRUE, "zero": ZERO}
    return small(*DECIDE, node("Loop", inputs, outputs, body=body, **more), **constants)


def valid_body(*states: str) -> list[onnx.NodeProto]:
    """Return the nodes of a valid loop body with the given states."""
    return [node("Identity", "c", "c2"), *(node("Neg", name, f"{name}2") for name in states)]


def test_damaged_branches_name_the_node(tmp_path: Path) -> None:
    for made, message in (
        (
            with_if(branch("t", node("Add", "x nowhere", "t"))),
            "node 'If:y': no node computes its input 'nowhere'",
        ),
        (with_if(branch("nowhere")), "node 'If:y': no node computes its input 'nowhere'"),
        (
            with_if(branch("t", node("Reshape", "x six", "t"), node("Constant", "", "six", value_ints=[6]))),
            "there is no conversion for node 'If:y' (If: subgraphs whose outputs are of shapes [6] and [2, 3])"
            "; docs/operators.md lists the operators",
        ),
        (
            with_if(branch("t", node("Less", "x zero", "t"))),
            "there is no conversion for node 'If:y' (If: subgraphs whose outputs are of types bool and float32)"
            "; docs/operators.md lists the operators",
        ),
        (
            with_if(subgraph([node("Relu", "a", "t")], [("a", FLOAT)], [("t", FLOAT)])),
            "node 'If:y': a subgraph of it has inputs ('a'), but must have none",
        ),
        (
            with_if(subgraph([node("Relu", "x", "t")], [], [("t", FLOAT), ("t", FLOAT)])),
            "node 'If:y': has 1 outputs, but a subgraph of it 2",
        ),
        (with_if(None), "node 'If:y': attribute then_branch must be a graph"),  # type: ignore[arg-type]
        (
            with_if(branch("t", node("Relu", "a", "t"), node("Neg", "t", "a"))),
            "'then_branch' of node 'If:y': node 'Relu:t' waits for its own output: there is a cycle",
        ),
        (
            with_if(branch("t", node("Relu", "x", "t"), node("Neg", "x", "t"))),
            "'then_branch' of node 'If:y': node 'Neg:t': its output 't' already has a producer",
        ),
        (
            with_if(branch("t", node("Relu", "x", "u"), node("Frobnicate", "u", "t"))),
            "in its subgraph, node 'Frobnicate:t' (Frobnicate)",
        ),
        (
            small(
                node("If", "x", "y", then_branch=branch("t", node("Neg", "x", "t")), else_branch=branch("x"))
            ),
            "node 'If:y': a condition must be one bool, not float32[2, 3]",
        ),
    ):
        assert message in rejection(tmp_path, made)


def test_a_node_is_named_once(tmp_path: Path) -> None:
    """If the branches have different shapes, the error message names the node only once."""
    two, three = (
        node("Constant", "", "c", value=numpy_helper.from_array(np.zeros(size, np.float32)))
        for size in (2, 3)
    )
    text = rejection(tmp_path, with_if(branch("c", two), branch("c", three)))
    assert text == "node 'If:y' (if): output 0 of its subgraph 'else': 'c' must be float32[2], not float32[3]"


def test_branch_that_uses_its_own_output_is_rejected(tmp_path: Path) -> None:
    """The output of an If cannot be used in its own branches."""
    message = rejection(tmp_path, with_if(branch("t", node("Relu", "y", "t"))))
    assert message == "node 'If:y' waits for its own output: there is a cycle"


def test_damaged_loops_name_the_node(tmp_path: Path) -> None:
    state = [*COUNTED, ("s", FLOAT)]
    ends = [("c2", BOOL), ("s2", FLOAT)]
    early = [node("ReduceSum", "s", "t", keepdims=0), node("Less", "t zero", "c2"), node("Neg", "s", "s2")]
    for made, message in (
        (
            with_loop(subgraph(valid_body("s"), state, ends[:1])),
            "a subgraph of 1 states must have 2 outputs or more",
        ),
        (
            with_loop(subgraph([node("Neg", "x", "s2")], state[:1], ends[1:])),
            "its subgraph must have as many inputs as it is given, 3, not 1",
        ),
        (
            with_loop(subgraph(valid_body("s"), [*state, ("q", FLOAT)], ends)),
            "its subgraph must have as many inputs as it is given, 3, not 4",
        ),
        (
            with_loop(subgraph(valid_body("s"), state, [("s2", FLOAT), ("s2", FLOAT)])),
            "a condition must be one bool, not float32",
        ),
        (
            with_loop(subgraph(valid_body("s"), state, ends), "zero - x"),
            "its trip count must be one int64, not float32[]",
        ),
        (
            with_loop(subgraph(valid_body("s"), state, ends), "trips zero x"),
            "a condition must be one bool, not float32[]",
        ),
        (
            with_loop(subgraph([*valid_body(), node("Concat", "s s", "s2", axis=0)], state, ends)),
            "(Loop: the shape of a state must not change from [2, 3] to [4, 3])",
        ),
        (
            with_loop(subgraph([*valid_body(), node("Less", "s zero", "s2")], state, ends)),
            "(Loop: a state that is of types float32 and bool)",
        ),
        (
            with_loop(subgraph(early, state, [*ends, ("s2", FLOAT)]), outputs="z y"),
            "(Loop: an output has a slice for each iteration, and the number of iterations is not constant)",
        ),
        (
            with_loop(subgraph([node("Identity", "c", "c2"), node("Add", "s far", "s2")], state, ends)),
            "node 'Loop:y': no node computes its input 'far'",
        ),
        (small(node("Loop", "- - x", "y")), "node 'Loop:y': attribute body must be a graph"),
    ):
        assert message in rejection(tmp_path, made)


def test_damaged_scans_name_the_node(tmp_path: Path) -> None:
    body = subgraph([node("Neg", "a", "b")], [("a", FLOAT)], [("b", FLOAT)])
    two = subgraph([node("Add", "a b", "d")], [("a", FLOAT), ("b", FLOAT)], [("d", FLOAT)])
    for made, message in (
        (
            small(node("Scan", "x", "y", body=body, num_scan_inputs=3)),
            "1 inputs and 3 that are scanned do not fit",
        ),
        (
            small(node("Scan", "x", "y", body=body, num_scan_inputs=1, scan_input_axes=[2])),
            "axis must be within -2..1, not 2",
        ),
        (
            small(node("Scan", "x", "y", body=body, num_scan_inputs=1, scan_output_directions=[2])),
            "scan_output_axes and scan_output_directions must be 1, directions 0 or 1",
        ),
        (
            small(node("Scan", "x x", "y", body=two, num_scan_inputs=2, scan_input_axes=[0, 1])),
            "all scanned values must be of equal length, not 2, 3",
        ),
    ):
        assert message in rejection(tmp_path, made)


def functions(*uses: tuple[str, list[str]]) -> onnx.ModelProto:
    """Return a model whose node uses the first of several functions, each of which applies the given operators in
    sequence.
    """
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    made = []
    for name, used in uses:
        names = ["a", *(f"t{i}" for i in range(1, len(used))), "b"]
        nodes = [
            node(op, names[i], names[i + 1], domain="" if op == "Relu" else "own")
            for i, op in enumerate(used)
        ]
        made.append(helper.make_function("own", name, ["a"], ["b"], nodes, opsets))
    model = small(node(uses[0][0], "x", "y", domain="own"))
    model.functions.extend(made)
    model.opset_import.append(opsets[1])
    return model


def test_recursive_and_duplicate_functions_are_rejected(tmp_path: Path) -> None:
    assert rejection(tmp_path, functions(("A", ["B"]), ("B", ["Relu", "A"]))) == "function 'A' uses itself"
    assert rejection(tmp_path, functions(("A", ["A"]))) == "function 'A' uses itself"
    assert rejection(tmp_path, functions(("A", ["Relu"]), ("A", ["Relu"]))) == "defines a function twice"
    doubled = [(f"F{i}", [f"F{i + 1}"] * 2) for i in range(60)]
    assert rejection(tmp_path, functions(*doubled, ("F60", ["Relu"]))) == (
        "its functions make 1,152,921,504,606,846,976 nodes, more than 262,144"
    )


def test_unrolling_of_nested_loops_is_limited(tmp_path: Path) -> None:
    """Unrolling eight nested loops of 32 iterations each exceeds the limit on repeated nodes and is rejected."""
    body = subgraph([node("Identity", "c8", "d8"), node("Concat", "s8 x", "r8", axis=0)], *body_interface(8))
    for depth in range(7, -1, -1):
        inner = node("Loop", f"trips - s{depth}", f"r{depth}", body=body)
        body = subgraph([node("Identity", f"c{depth}", f"d{depth}"), inner], *body_interface(depth))
    made = small(node("Loop", "trips - x", "y", body=body), trips=integer(32))
    assert "subgraphs repeat more than 16,384 nodes" in rejection(tmp_path, made)


def test_executed_nodes_of_nested_loops_are_limited() -> None:
    body = subgraph([node("Identity", "c3", "d3"), node("Neg", "s3", "r3")], *body_interface(3))
    for depth in range(2, -1, -1):
        inner = node("Loop", f"trips - s{depth}", f"r{depth}", body=body)
        body = subgraph([node("Identity", f"c{depth}", f"d{depth}"), inner], *body_interface(depth))
    with pytest.raises(
        InputError, match="its inner loops execute 1,082,400 nodes per sample; the limit is 262,144"
    ):
        simplify(read_onnx(small(node("Loop", "trips - x", "y", body=body), trips=integer(32))))


def body_interface(depth: int) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Return the inputs and outputs of the loop body at a given depth of nested loops."""
    inputs: list[tuple[str, int]] = [(f"i{depth}", INTEGER), (f"c{depth}", BOOL), (f"s{depth}", FLOAT)]
    return inputs, [(f"d{depth}", BOOL), (f"r{depth}", FLOAT)]


def test_truncated_and_changed_files(tmp_path: Path) -> None:
    """A truncated or changed file gives a graph or a message, never another error."""
    inner = subgraph(valid_body("s"), [*COUNTED, ("s", FLOAT)], [("c2", BOOL), ("s2", FLOAT)])
    made = with_if(
        branch("t", node("Loop", "forty - x", "t", body=inner), node("Constant", "", "forty", value_int=40))
    )
    whole, path = made.SerializeToString(), tmp_path / "model.onnx"
    refused = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        data = bytearray(whole)
        if seed % 3:
            for place in rng.integers(len(data), size=int(rng.integers(1, 4))):
                data[place] = rng.integers(256)
        else:
            del data[int(rng.integers(len(data))) :]
        path.write_bytes(data)
        try:
            read_onnx(path)
        except InputError as error:
            assert str(error).startswith(f"{path}: "), f"seed {seed}"
            refused += 1
    assert refused > 200
