"""Random inputs used as indices are within bounds, whatever operators are between the input and the access."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from compiler.api import compile
from compiler.ir.graph import random_input
from compiler.passes.index_bounds import index_bounds
from compiler.quantize.ranges import random_samples
from compiler.runtime.package_writer import read_package, to_bytes
from tests.support.control_models import BOOL, COUNTED, FLOAT, INTEGER, branch, integer, subgraph
from tests.support.float_graphs import numbers
from tests.support.onnx_models import model, node, read, reference

TABLE = {"t": numbers(20, 4)}
GATHER = node("Gather", "t j", "y")
#: Loop body that sums the rows selected by a state that counts iterations.
STEP = subgraph(
    [
        node("Gather", "t s", "r"),
        node("Add", "a r", "b"),
        node("Identity", "s", "n"),
        node("Identity", "c", "d"),
    ],
    [*COUNTED, ("s", INTEGER), ("a", FLOAT)],
    [("d", BOOL), ("n", INTEGER), ("b", FLOAT)],
    (4,),
)
#: Nodes, shape and type of the input, constants, exclusive bound of its integers.
CASES = {
    "gather": ([node("Gather", "t i", "y")], (2, 5), np.int64, TABLE, 20),
    "columns": ([node("Gather", "t i", "y", axis=1)], (2, 5), np.int64, TABLE, 4),
    "cast": ([node("Cast", "i", "j", to=INTEGER), GATHER], (5,), np.int32, TABLE, 20),
    "bytes": ([node("Cast", "i", "j", to=INTEGER), GATHER], (5,), np.uint8, TABLE, 20),
    "moved": (
        [
            node("Transpose", "i", "k", perm=[1, 0]),
            node("Concat", "k k", "l", axis=0),
            node("Reshape", "l s", "j"),
            GATHER,
        ],
        (2, 5),
        np.int64,
        TABLE | {"s": np.array([20])},
        20,
    ),
    "least": (
        [node("Gather", "t i", "a"), node("Gather", "u i", "b"), node("Add", "a b", "y")],
        (9,),
        np.int64,
        TABLE | {"u": numbers(7, 4)},
        7,
    ),
    "elements": ([node("GatherElements", "t i", "y", axis=1)], (20, 4), np.int64, TABLE, 4),
    "deep": ([node("GatherND", "t i", "y")], (6, 2), np.int64, TABLE, 4),
    "deep_rows": ([node("GatherND", "t i", "y")], (6, 1), np.int64, TABLE, 20),
    "scattered": (
        [node("ScatterElements", "t i u", "y", axis=0)],
        (3, 4),
        np.int64,
        TABLE | {"u": numbers(3, 4)},
        20,
    ),
    "one_hot": (
        [node("OneHot", "i d v", "y")],
        (5,),
        np.int64,
        {"d": integer(6), "v": np.array([0, 1], np.float32)},
        6,
    ),
    "counted": ([node("CumSum", "i a", "j"), GATHER], (15,), np.int64, TABLE | {"a": integer(0)}, 2),
    "branches": (
        [
            node("ReduceSum", "i", "s", keepdims=0),
            node("Greater", "s z", "c"),
            node(
                "If",
                "c",
                "y",
                then_branch=branch("o", node("Gather", "t i", "o")),
                else_branch=branch("p", node("Gather", "u i", "p")),
            ),
        ],
        (5,),
        np.int64,
        TABLE | {"u": numbers(7, 4), "z": integer(9)},
        7,
    ),
    "loop": (
        [node("Add", "i k", "m"), node("Loop", "m - i a", "z y", body=STEP)],
        (),
        np.int64,
        TABLE | {"k": integer(2), "a": numbers(4)},
        20,
    ),
    "mask": ([node("Cast", "i", "y", to=FLOAT)], (40,), np.int64, {}, 2),
}


def _model(name: str) -> onnx.ModelProto:
    nodes, shape, dtype, constants, _ = CASES[name]
    outputs = ["y"] if name != "loop" else ["z", "y"]
    return model(nodes, {"i": np.zeros(shape, dtype)}, outputs, constants)


@pytest.mark.parametrize("name", CASES)
def test_bounds_of_indices_are_known_and_sufficient(tmp_path, name):
    made, limit = _model(name), CASES[name][-1]
    graph = read(tmp_path, made)
    if name != "mask":
        assert index_bounds(graph) == {"i": limit}
    values = [sample["i"] for sample in random_samples(graph, 5, 40)]
    assert min(value.min() for value in values) == 0
    assert max(value.max() for value in values) == limit - 1, "seed 5"
    reference(made, {"i": values[0]})
    compile(graph, "n8")(i=values[0])


@pytest.mark.parametrize("name", ["gather", "branches", "loop", "cast"])
def test_compiled_file_has_the_same_bounds(tmp_path: Path, name):
    path = tmp_path / "model.mla"
    path.write_bytes(to_bytes(compile(read(tmp_path, _model(name)), "n8")))
    assert index_bounds(read_package(path)) == {"i": CASES[name][-1]}


def test_other_integers_cover_their_type(tmp_path):
    nodes = [node("Cast", "x", "f", to=FLOAT), node("Relu", "f", "y")]
    graph = read(tmp_path, model(nodes, {"x": np.zeros((64, 64), np.uint8)}, ["y"]))
    made = random_input(np.random.default_rng(1), graph.tensors["x"], index_bounds(graph))
    assert (made.dtype, made.min(), made.max()) == (np.uint8, 0, 255)
