"""Range floors for softmax inputs: values far below their row's maximum have no weight and need no range.

Masks are such: -10000, the least float32 or minus infinity added, or put in the place of a score. Their floor, found on
the samples, is where a weight has become less than anything that the output's eight bits show.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph, Node
from compiler.ir.ops import MOVING
from compiler.ir.rebuild import rebuild
from compiler.ir.tensor import Tensor

#: All weights below the floor together are at most such a part of 1: a sixteenth of the output's step.
_LEAST = 2.0**-12
#: Rows whose greatest is so far below that of others are masked as a whole; no range serves both.
_APART = 1000.0

_Values = Mapping[str, NDArray]


class SoftmaxRange:
    """Floors of the tensors of a graph, over samples.

    Attributes
    ----------
    least : dict
        By tensor, constants among them: no smaller number makes a difference on any of the samples.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        self.least: dict[str, float] = {}
        self._none: set[str] = set()

    def add(self, values: _Values) -> dict[str, float]:
        """The floors of a sample, all of whose values are given."""
        found = _floors(self.graph, values)
        self._none |= self.graph.tensors.keys() - found.keys()
        self.least |= {name: min(floor, self.least.get(name, floor)) for name, floor in found.items()}
        for name in self._none & self.least.keys():
            del self.least[name]
        return found

    def cut(self, name: str, values: NDArray) -> NDArray:
        """Values of a tensor, no smaller than its floor."""
        least = self.least.get(name)
        return values if least is None else np.asarray(np.maximum(values, np.float32(least)))

    def graph_within(self) -> Graph:
        """The graph with constants that are no smaller than their floors."""
        changed = {}
        for name in self.least:
            tensor = self.graph.tensors[name]
            if tensor.data is not None and tensor.data.min() < self.least[name]:
                changed[name] = Tensor(name, tensor.shape, tensor.dtype, data=self.cut(name, tensor.data))
        return rebuild(self.graph, self.graph, changed=changed) if changed else self.graph


def _floors(graph: Graph, values: _Values) -> dict[str, float]:
    found: dict[str, float] = {}
    free = set(graph.outputs)  # what somebody reads who minds small numbers

    def value(name: str) -> NDArray:
        data = graph.tensors[name].data
        return values[name] if data is None else data

    for node in reversed(list(graph)):
        out = node.outputs[0]
        floor = found.get(out) if out not in free and len(node.outputs) == 1 else None
        told = dict.fromkeys(range(len(node.inputs)), None) | dict(_of_operands(node, floor, value))
        for place, least in told.items():
            name = node.inputs[place]
            if least is None or graph.tensors[name].dtype != "float32":
                free.add(name)
            else:
                found[name] = min(least, found.get(name, least))
    return {name: floor for name, floor in found.items() if name not in free}


def _of_operands(
    node: Node, floor: float | None, value: Callable[[str], NDArray]
) -> Iterator[tuple[int, float | None]]:
    """Floors of a node's operands, by place, from that of its output."""
    if node.op == "softmax":
        yield 0, _of_rows(value(node.inputs[0]), node.attributes["axis"], node.attributes["beta"])
    if floor is None:
        return
    if node.op in MOVING or node.op == "clip":
        yield from ((place, floor) for place in range(1 if node.op == "gather" else len(node.inputs)))
    elif node.attributes.get("operator") == "Where" and len(node.inputs) == 3:
        yield from ((1, floor), (2, floor))
    elif node.op in ("add", "sub", "mul"):
        a, b = (value(name) for name in node.inputs)
        yield from enumerate(_ARITHMETIC[node.op](floor, a, b))


def _of_rows(x: NDArray, axis: int, beta: float) -> float | None:
    """What has no weight in any row: e**(beta * (x - greatest)) of a whole row of it is nothing."""
    rows = x.max(axis).astype(np.float64)
    rows = rows[np.isfinite(rows)]
    if not rows.size or not beta > 0:
        return None
    least = float(rows[rows >= rows.max() - _APART].min())
    return least - math.log(x.shape[axis] / _LEAST) / beta


def _sum(floor: float, a: NDArray, b: NDArray) -> Sequence[float | None]:
    return [None if (most := _most(other)) is None else floor - most for other in (b, a)]


def _difference(floor: float, a: NDArray, b: NDArray) -> Sequence[float | None]:
    least = _most(-b)
    return [None if least is None else floor - least, None]


def _product(floor: float, a: NDArray, b: NDArray) -> Sequence[float | None]:
    """Of a factor of what is nowhere negative: where that is zero, the product is."""
    made: list[float | None] = []
    for other in (b, a):
        positive = other[other > 0]
        fits = floor < 0 and positive.size and not (other < 0).any()
        made.append(floor / float(positive.min()) if fits else None)
    return made


def _most(values: NDArray) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.max()) if finite.size else None


_ARITHMETIC: dict[str, Callable[[float, NDArray, NDArray], Sequence[float | None]]] = {
    "add": _sum,
    "sub": _difference,
    "mul": _product,
}
