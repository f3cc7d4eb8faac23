"""Digests of different values differ."""

import numpy as np
import pytest

from compiler.cache.digest import name, version
from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Quantization, Tensor
from hw.isa.enums import Unit


def graph(
    *, weight: int = 1, scale: float = 0.5, low: float = 0.0, title: str = "g", op: str = "add"
) -> Graph:
    made = Graph(title)
    q = Quantization.per_tensor(scale)
    made.add_input(Tensor("x", (1, 4), "int8", q))
    made.add_tensor(Tensor("w", (1, 4), "int8", q, np.array([[1, 2, 3, weight]], np.int8)))
    made.add_tensor(Tensor("t", (1, 4), "int8", q))
    made.add_tensor(Tensor("y", (1, 4), "int8", q))
    made.add_node(Node("n", op, ("x", "w"), ("t",)))
    made.add_node(Node("c", "clip", ("t",), ("y",), {"low": low, "high": 6.0}))
    return made.finish(["y"])


def test_equal_graphs_have_equal_digests():
    assert name(graph()) == name(graph())


@pytest.mark.parametrize(
    "change", [{"weight": 2}, {"scale": 0.25}, {"low": -0.0}, {"low": 1.0}, {"title": "h"}, {"op": "mul"}]
)
def test_any_change_of_a_graph_changes_its_digest(change):
    assert name(graph(**change)) != name(graph())


def test_similar_values_have_different_digests():
    values = [
        None,
        False,
        True,
        0,
        1,
        0.0,
        1.0,
        "",
        "0",
        "1",
        b"",
        b"0",
        (),
        (0,),
        ((0,),),
        (0, 0),
        {},
        {"0": 0},
        {"0": 1},
        ("ab", "c"),
        ("a", "bc"),
        (("a",), "b"),
        ("a", ("b",)),
        Unit.LOAD,
        Unit.STORE,
        -1,
        256,
        1 << 70,
        np.zeros(2, np.int8),
        np.zeros((1, 2), np.int8),
        np.zeros(2, np.uint8),
        np.zeros(1, np.int16),
        np.zeros(2, np.float32),
        np.ones(2, np.int8),
    ]
    assert len({name(value) for value in values}) == len(values)
    assert name(1, 2) != name((1, 2)) != name(12)


def test_digest_does_not_depend_on_memory_layout():
    array = np.arange(12, dtype=np.int16).reshape(3, 4)
    assert name(array) == name(np.asfortranarray(array)) == name(array.astype(">i2"))
    assert name([1, 2]) == name((1, 2)) and name({"a": 1, "b": 2}) == name({"b": 2, "a": 1})


def test_values_other_than_data_have_no_digest():
    for value in (object(), np.array([object()]), lambda: 0):
        with pytest.raises(TypeError):
            name(value)


def test_version_depends_on_all_sources(tmp_path):
    found = set()
    for number, (file, text) in enumerate(
        [("compiler/a.py", ""), ("compiler/a.py", "1"), ("hw/deep/b.py", "1")]
    ):
        root = tmp_path / str(number)
        (root / file).parent.mkdir(parents=True)
        (root / file).write_text(text)
        found.add(version(root))
    assert len(found | {version()}) == 4
