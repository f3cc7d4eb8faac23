"""ONNX models whose subgraphs are damaged, or ask for too much: a message that names the node."""

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


def refusal(folder: Path, made: onnx.ModelProto) -> str:
    """The message that a model gets."""
    path = folder / "model.onnx"
    path.write_bytes(made.SerializeToString())
    with pytest.raises(InputError) as caught:
        read_onnx(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ") and "\n" not in text and len(text) < 2000
    return text.removeprefix(f"{path}: ")


DECIDE = [node("ReduceSum", "x", "sum", keepdims=0), node("Greater", "sum zero", "p")]
ZERO = np.array(0, np.float32)


def chosen(then: onnx.GraphProto, other: onnx.GraphProto | None = None, **more: object) -> onnx.ModelProto:
    """A model with an If."""
    parts = {"then_branch": then, "else_branch": other or branch("e", node("Relu", "x", "e"))} | more
    kept = {key: value for key, value in parts.items() if value is not None}
    return small(*DECIDE, node("If", "p", "y", **kept), zero=ZERO)


def looped(
    body: onnx.GraphProto, inputs: str = "trips - x", outputs: str = "y", **more: object
) -> onnx.ModelProto:
    """A model with a Loop."""
    constants = {"trips": integer(40), "true": TRUE, "zero": ZERO}
    return small(*DECIDE, node("Loop", inputs, outputs, body=body, **more), **constants)


def good(*states: str) -> list[onnx.NodeProto]:
    """Nodes of a body."""
    return [node("Identity", "c", "c2"), *(node("Neg", name, f"{name}2") for name in states)]


def test_branches(tmp_path: Path) -> None:
    for made, message in (
        (
            chosen(branch("t", node("Add", "x nowhere", "t"))),
            "node 'If:y': no node computes its input 'nowhere'",
        ),
        (chosen(branch("nowhere")), "node 'If:y': no node computes its input 'nowhere'"),
        (
            chosen(branch("t", node("Reshape", "x six", "t"), node("Constant", "", "six", value_ints=[6]))),
            "there is no conversion for node 'If:y' (If: subgraphs whose outputs are of shapes [6] and [2, 3])"
            "; docs/operators.md lists the operators",
        ),
        (
            chosen(branch("t", node("Less", "x zero", "t"))),
            "there is no conversion for node 'If:y' (If: subgraphs whose outputs are of types bool and float32)"
            "; docs/operators.md lists the operators",
        ),
        (
            chosen(subgraph([node("Relu", "a", "t")], [("a", FLOAT)], [("t", FLOAT)])),
            "node 'If:y': a subgraph of it has inputs ('a'), but must have none",
        ),
        (
            chosen(subgraph([node("Relu", "x", "t")], [], [("t", FLOAT), ("t", FLOAT)])),
            "node 'If:y': has 1 outputs, but a subgraph of it 2",
        ),
        (chosen(None), "node 'If:y': attribute then_branch must be a graph"),  # type: ignore[arg-type]
        (
            chosen(branch("t", node("Relu", "a", "t"), node("Neg", "t", "a"))),
            "'then_branch' of node 'If:y': node 'Relu:t' waits for its own output: there is a cycle",
        ),
        (
            chosen(branch("t", node("Relu", "x", "t"), node("Neg", "x", "t"))),
            "'then_branch' of node 'If:y': node 'Neg:t': its output 't' already has a producer",
        ),
        (
            chosen(branch("t", node("Relu", "x", "u"), node("Frobnicate", "u", "t"))),
            "in its subgraph, node 'Frobnicate:t' (Frobnicate)",
        ),
        (
            small(
                node("If", "x", "y", then_branch=branch("t", node("Neg", "x", "t")), else_branch=branch("x"))
            ),
            "node 'If:y': a condition must be one bool, not float32[2, 3]",
        ),
    ):
        assert message in refusal(tmp_path, made)


def test_a_node_is_named_once(tmp_path: Path) -> None:
    """By the graph, whose check finds that branches make other shapes."""
    two, three = (
        node("Constant", "", "c", value=numpy_helper.from_array(np.zeros(size, np.float32)))
        for size in (2, 3)
    )
    text = refusal(tmp_path, chosen(branch("c", two), branch("c", three)))
    assert text == "node 'If:y' (if): output 0 of its subgraph 'else': 'c' must be float32[2], not float32[3]"


def test_a_subgraph_may_use_nothing_of_itself(tmp_path: Path) -> None:
    """What an If makes is not there for its own branches."""
    message = refusal(tmp_path, chosen(branch("t", node("Relu", "y", "t"))))
    assert message == "node 'If:y' waits for its own output: there is a cycle"


def test_damaged_loops_name_the_node(tmp_path: Path) -> None:
    state = [*COUNTED, ("s", FLOAT)]
    ends = [("c2", BOOL), ("s2", FLOAT)]
    early = [node("ReduceSum", "s", "t", keepdims=0), node("Less", "t zero", "c2"), node("Neg", "s", "s2")]
    for made, message in (
        (looped(subgraph(good("s"), state, ends[:1])), "a subgraph of 1 states must have 2 outputs or more"),
        (
            looped(subgraph([node("Neg", "x", "s2")], state[:1], ends[1:])),
            "3 inputs do not fit a subgraph of 1",
        ),
        (looped(subgraph(good("s"), [*state, ("q", FLOAT)], ends)), "3 inputs do not fit a subgraph of 4"),
        (
            looped(subgraph(good("s"), state, [("s2", FLOAT), ("s2", FLOAT)])),
            "a condition must be one bool, not float32",
        ),
        (
            looped(subgraph(good("s"), state, ends), "zero - x"),
            "its trip count must be one int64, not float32[]",
        ),
        (
            looped(subgraph(good("s"), state, ends), "trips zero x"),
            "a condition must be one bool, not float32[]",
        ),
        (
            looped(subgraph([*good(), node("Concat", "s s", "s2", axis=0)], state, ends)),
            "(Loop: a state whose shape changes from [2, 3] to [4, 3])",
        ),
        (
            looped(subgraph([*good(), node("Less", "s zero", "s2")], state, ends)),
            "(Loop: a state that is of types float32 and bool)",
        ),
        (
            looped(subgraph(early, state, [*ends, ("s2", FLOAT)]), outputs="z y"),
            "(Loop: outputs with a slice from each of an unknown number of iterations)",
        ),
        (
            looped(subgraph([node("Identity", "c", "c2"), node("Add", "s far", "s2")], state, ends)),
            "node 'Loop:y': no node computes its input 'far'",
        ),
        (small(node("Loop", "- - x", "y")), "node 'Loop:y': attribute body must be a graph"),
    ):
        assert message in refusal(tmp_path, made)


def test_scans(tmp_path: Path) -> None:
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
            "scans values of lengths 2, 3",
        ),
    ):
        assert message in refusal(tmp_path, made)


def functions(*uses: tuple[str, list[str]]) -> onnx.ModelProto:
    """A model whose functions each use others, one after the other, and whose node uses the first."""
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


def test_functions(tmp_path: Path) -> None:
    assert refusal(tmp_path, functions(("A", ["B"]), ("B", ["Relu", "A"]))) == "function 'A' uses itself"
    assert refusal(tmp_path, functions(("A", ["A"]))) == "function 'A' uses itself"
    assert refusal(tmp_path, functions(("A", ["Relu"]), ("A", ["Relu"]))) == "defines a function twice"
    doubled = [(f"F{i}", [f"F{i + 1}"] * 2) for i in range(60)]
    assert refusal(tmp_path, functions(*doubled, ("F60", ["Relu"]))) == (
        "its functions make 1,152,921,504,606,846,976 nodes, more than 262,144"
    )


def test_nested_loops_do_not_multiply_without_end(tmp_path: Path) -> None:
    """Eight loops in one another of 32 iterations each, of which each state can only be unrolled."""
    body = subgraph([node("Identity", "c8", "d8"), node("Concat", "s8 x", "r8", axis=0)], *ends(8))
    for depth in range(7, -1, -1):
        inner = node("Loop", f"trips - s{depth}", f"r{depth}", body=body)
        body = subgraph([node("Identity", f"c{depth}", f"d{depth}"), inner], *ends(depth))
    made = small(node("Loop", "trips - x", "y", body=body), trips=integer(32))
    assert "subgraphs repeat more than 16,384 nodes" in refusal(tmp_path, made)


def test_nested_loops_of_more_work_than_one_can_wait_for() -> None:
    body = subgraph([node("Identity", "c3", "d3"), node("Neg", "s3", "r3")], *ends(3))
    for depth in range(2, -1, -1):
        inner = node("Loop", f"trips - s{depth}", f"r{depth}", body=body)
        body = subgraph([node("Identity", f"c{depth}", f"d{depth}"), inner], *ends(depth))
    with pytest.raises(
        InputError, match="its inner loops execute 1,082,400 nodes per sample; the limit is 262,144"
    ):
        simplify(read_onnx(small(node("Loop", "trips - x", "y", body=body), trips=integer(32))))


def ends(depth: int) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Inputs and outputs of a body in such a nest."""
    inputs: list[tuple[str, int]] = [(f"i{depth}", INTEGER), (f"c{depth}", BOOL), (f"s{depth}", FLOAT)]
    return inputs, [(f"d{depth}", BOOL), (f"r{depth}", FLOAT)]


def test_truncated_and_changed_files(tmp_path: Path) -> None:
    """Never anything but a graph or a message."""
    inner = subgraph(good("s"), [*COUNTED, ("s", FLOAT)], [("c2", BOOL), ("s2", FLOAT)])
    made = chosen(
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
