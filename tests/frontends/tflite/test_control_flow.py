"""TFLite files with IF and WHILE give the same results as LiteRT's reference kernels."""

from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

from compiler.api import compile
from compiler.frontends.tflite import read_tflite
from compiler.runtime.compiled import CompiledNetwork
from hw.errors import InputError
from tests.numerics.litert import REFERENCE
from tests.support.one_operator import options
from tests.support.tflite_graphs import FileGraph, Operator, packed

ROW = ((1, 16), "int8")
NUMBER, TRUTH = ((), "int32"), ((), "bool")
MEANING: tuple[float, int] = (0.1, 3)


def number(value: int) -> np.ndarray:
    """Return a scalar int32 constant."""
    return np.array(value, np.int32)


def counting(*, known: bool) -> list[FileGraph]:
    """Return a model that adds weights to a row until a counter reaches 5.

    The counter starts at 0 if `known` is True, and otherwise at the value of an input.
    """
    w = np.arange(-8, 8, dtype=np.int8).reshape(1, 16)
    loop = Operator(
        "WHILE", ["i", "x"], ["j", "y"], options("While", condSubgraphIndex=1, bodySubgraphIndex=2)
    )
    main = FileGraph(
        {"x": ROW, "i": number(0) if known else NUMBER, "j": NUMBER, "y": ROW},
        [loop],
        ["x"] if known else ["x", "i"],
        ["y", "j"],
        {"x": MEANING, "y": MEANING},
    )
    condition = FileGraph(
        {"i": NUMBER, "s": ROW, "five": number(5), "go": TRUTH},
        [Operator("LESS", ["i", "five"], ["go"], options("Less"))],
        ["i", "s"],
        ["go"],
        {"s": MEANING},
    )
    body = FileGraph(
        {"i": NUMBER, "s": ROW, "one": number(1), "i2": NUMBER, "w": w, "s2": ROW},
        [
            Operator("ADD", ["i", "one"], ["i2"], options("Add")),
            Operator("ADD", ["s", "w"], ["s2"], options("Add"), 2),
        ],
        ["i", "s"],
        ["i2", "s2"],
        {"s": MEANING, "s2": MEANING, "w": (0.05, 0)},
    )
    return [main, condition, body]


def choosing() -> list[FileGraph]:
    """Return a model that computes one of two functions of a row, depending on the maximum of the row."""
    decide = [
        Operator("REDUCE_MAX", ["x", "axes"], ["top"], options("Reducer", keepDims=False), 2),
        Operator("GREATER", ["top", "limit"], ["p"], options("Greater"), 2),
        Operator("IF", ["p", "x"], ["y"], options("If", thenSubgraphIndex=1, elseSubgraphIndex=2)),
    ]
    limit = np.array(60, np.int8)
    tensors = {
        "x": ROW,
        "axes": np.array([0, 1], np.int32),
        "top": ((), "int8"),
        "limit": limit,
        "p": TRUTH,
        "y": ROW,
    }
    meaning: dict[str, tuple[float, int]] = {"x": MEANING, "y": MEANING, "top": MEANING, "limit": MEANING}
    branches = [
        FileGraph(
            {"a": ROW, "w": np.full((1, 16), value, np.int8), "b": ROW},
            [Operator(kind, ["a", "w"], ["b"], options(kind.capitalize()), 2)],
            ["a"],
            ["b"],
            {"a": MEANING, "w": (0.05, 0), "b": MEANING},
        )
        for kind, value in (("ADD", -70), ("MUL", 33))
    ]
    return [FileGraph(tensors, decide, ["x"], ["y"], meaning), *branches]


def litert(data: bytes, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Return LiteRT's outputs."""
    interpreter = Interpreter(model_content=data, experimental_op_resolver_type=REFERENCE)
    interpreter.allocate_tensors()
    for details, array in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(details["index"], array)
    interpreter.invoke()
    return [interpreter.get_tensor(details["index"]) for details in interpreter.get_output_details()]


def compiled(folder: Path, data: bytes, unroll: int | None = None) -> CompiledNetwork:
    """Compile a file for n8."""
    path = folder / "model.tflite"
    path.write_bytes(data)
    return compile(path, "n8", unroll=unroll)


def same(network: CompiledNetwork, data: bytes, inputs: list[np.ndarray]) -> None:
    """Compare the golden model's outputs with LiteRT's."""
    wanted, found = litert(data, inputs), network(*inputs)
    for tensor, array in zip(network.outputs, wanted, strict=True):
        np.testing.assert_array_equal(found[tensor.name], array)


def row(seed: int, most: int = 127) -> np.ndarray:
    """Return a random row."""
    return np.random.default_rng(seed).integers(-128, most, (1, 16), endpoint=True).astype(np.int8)


def test_loop_with_a_known_count_is_unrolled(tmp_path: Path) -> None:
    data = packed(counting(known=True))
    network = compiled(tmp_path, data)
    assert not network.host and [len(stage.infos) for stage in network.stages] == [5]
    for seed in range(5):
        same(network, data, [row(seed)])


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_loop_unrolled_by_a_factor(tmp_path: Path, factor: int) -> None:
    """Five iterations are divided into those of a loop and the remaining ones; the counter is computed beforehand."""
    data = packed(counting(known=True))
    network = compiled(tmp_path, data, factor)
    assert [each.op for each in network.host] == ["loop"] * {1: 1, 2: 2, 3: 0}[factor]
    for seed in range(5):
        same(network, data, [row(seed)])


@pytest.mark.parametrize("first", [0, 3, 5, 9])
def test_loop_with_an_unknown_count(tmp_path: Path, first: int) -> None:
    data = packed(counting(known=False))
    network = compiled(tmp_path, data)
    assert [each.op for each in network.host].count("loop") == 1 and len(network.infos) == 1
    same(network, data, [row(first), np.array(first, np.int32)])


@pytest.mark.parametrize("most", [50, 127])
def test_branches(tmp_path: Path, most: int) -> None:
    data = packed(choosing())
    network = compiled(tmp_path, data)
    assert [info.ops for info in network.infos] == [("reduce_max",), ("add",), ("mul",)]
    for seed in range(5):
        same(network, data, [row(seed, most)])


def rejection(folder: Path, graphs: list[FileGraph]) -> str:
    """Return the message with which a file is rejected."""
    path = folder / "model.tflite"
    path.write_bytes(packed(graphs))
    with pytest.raises(InputError) as caught:
        read_tflite(path)
    return str(caught.value).removeprefix(f"{path}: ")


def test_damaged_control_flow(tmp_path: Path) -> None:
    graphs = counting(known=False)
    graphs[0].operators[0].options = options("While", condSubgraphIndex=1, bodySubgraphIndex=7)
    assert rejection(tmp_path, graphs) == "operator 'while_0': there is no graph 7, only 3"
    graphs[0].operators[0].options = options("While", condSubgraphIndex=0, bodySubgraphIndex=2)
    assert rejection(tmp_path, graphs) == "operator 'while_0': graph 0 is a subgraph of itself"
    graphs = counting(known=False)
    graphs[2].outputs = ["i2"]
    assert rejection(tmp_path, graphs) == "operator 'while_0': a subgraph takes 2 inputs, not 1"
    graphs = counting(known=False)
    graphs[1].outputs = ["go", "i"]
    assert rejection(tmp_path, graphs) == "operator 'while_0': its condition must have one output"
    graphs = choosing()
    graphs[2].meaning = {**graphs[2].meaning, "b": (0.2, 0)}
    assert rejection(tmp_path, graphs) == (
        "node 'if_2' (if): output 0 of its subgraph 'else': "
        "'b' must be int8[1, 16] * 0.1 @ 3, not int8[1, 16] * 0.2 @ 0"
    )


def test_variables_in_subgraphs_are_rejected(tmp_path: Path) -> None:
    main, first, second = choosing()
    first.tensors["h"] = ((), "resource")
    handle = Operator("VAR_HANDLE", [], ["h"], options("VarHandle", container="", sharedName="v"))
    first.operators.insert(0, handle)
    assert rejection(tmp_path, [main, first, second]) == (
        "operator 'if_2': operator 'var_handle_0': variables in a subgraph of control flow are not supported; read "
        "them before the control flow and assign them after it"
    )
