"""Graph builder for front ends."""

import math
from collections.abc import Container
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Quantization, Tensor


class GraphBuilder:
    """A graph under construction.

    Parameters
    ----------
    name : str
        Of the graph.
    """

    def __init__(self, name: str):
        self.graph = Graph(name)
        self._tensors, self._nodes = _Names(self.graph.tensors), _Names(self.graph.nodes)

    def fresh(self, wish: str) -> str:
        """A name for a tensor that no tensor has: `wish`, numbered if need be."""
        return self._tensors.unused(wish)

    def constant(self, wish: str, data: NDArray, quantization: Quantization | None = None) -> Tensor:
        """Add a constant."""
        return self.graph.add_tensor(
            Tensor(self.fresh(wish), data.shape, data.dtype.name, quantization, np.asarray(data, order="C"))
        )

    def node(self, name: str, op: str, inputs: list[Tensor], output: Tensor, **attributes: Any) -> Tensor:
        """Add a node and its output, which must be new; returns the output."""
        self.graph.add_tensor(output)
        self.graph.add_node(
            Node(self._nodes.unused(name), op, tuple(t.name for t in inputs), (output.name,), attributes)
        )
        return output

    def nodes(
        self,
        name: str,
        op: str,
        inputs: list[Tensor],
        outputs: list[Tensor],
        bodies: tuple[Graph, ...],
        **attributes: Any,
    ) -> None:
        """Add a node of any number of outputs, which must be new, and of subgraphs."""
        for output in outputs:
            self.graph.add_tensor(output)
        ins, outs = (tuple(tensor.name for tensor in part) for part in (inputs, outputs))
        self.graph.add_node(Node(self._nodes.unused(name), op, ins, outs, attributes, bodies))

    def between(self, like: Tensor, wish: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """A tensor of the type and quantization of `like`, for a value on its way to it; not added yet."""
        return Tensor(self.fresh(wish), like.shape if shape is None else shape, like.dtype, like.quantization)


class _Names:
    """Names that are given out, none twice."""

    def __init__(self, taken: Container[str]):
        self._taken = taken
        self._last: dict[
            str, int
        ] = {}  # where to go on looking: a loop that is unrolled wishes the same ones often

    def unused(self, wish: str) -> str:
        """A name that is not taken: the wish, numbered if need be."""
        name, number = wish, self._last.get(wish, 1)
        while name in self._taken:
            number += 1
            name = f"{wish}.{number}"
        self._last[wish] = max(number - 1, 1)  # it may stay free after all
        return name


#: Ranges of the activations that formats fuse into other operators.
ACTIVATIONS: dict[str, tuple[float, float] | None] = {
    "none": None,
    "relu": (0.0, math.inf),
    "relu_n1_to_1": (-1.0, 1.0),
    "relu6": (0.0, 6.0),
}


def same_pads(size: int, kernel: int, stride: int, dilation: int = 1) -> tuple[int, int]:
    """Padding before and after one dimension that makes ceil(size / stride) outputs; the odd one comes after."""
    reach = (kernel - 1) * dilation + 1
    total = max((-(-size // stride) - 1) * stride + reach - size, 0)
    return total // 2, total - total // 2
