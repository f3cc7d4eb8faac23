"""Graphs of quantized operators with random constants."""

from typing import Any

import numpy as np

from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Quantization, Tensor

_SCALE = 0.05
#: Of uniform 8-bit integers, and what results should spread over.
_SPREAD, _WANTED = 74.0, 40.0


class QuantizedGraphBuilder:
    """A graph under construction.

    Parameters
    ----------
    seed : int
        Of its constants.
    """

    def __init__(self, seed: int):
        self.rng, self.graph = np.random.default_rng(seed), Graph("point")
        self._count = 0

    def input(self, shape: tuple[int, ...]) -> Tensor:
        """An input of int8."""
        return self.graph.add_input(Tensor(self._name("x"), shape, "int8", Quantization.of(_SCALE, 3)))

    def before(self, x: Tensor) -> Tensor:
        """The first input if a tensor has its shape, else a new one."""
        first = self.graph.tensors[self.graph.inputs[0]]
        return first if first.shape == x.shape else self.input(x.shape)

    def node(
        self,
        op: str,
        inputs: list[Tensor],
        made: tuple[int, ...],
        *,
        like: Tensor | None = None,
        scale: float = _SCALE,
        **attributes: Any,
    ) -> Tensor:
        """What an operator makes of some tensors; it means what `like` does."""
        meaning = Quantization.of(scale, -3) if like is None else like.quantization
        out = self.graph.add_tensor(Tensor(self._name("t"), made, "int8", meaning))
        names = tuple(tensor.name for tensor in inputs)
        self.graph.add_node(Node(f"{op} {out.name}", op, names, (out.name,), attributes))
        return out

    def softmax(self, x: Tensor) -> Tensor:
        """Over the last dimension."""
        made = self.graph.add_tensor(Tensor(self._name("t"), x.shape, "int8", Quantization.of(1 / 256, -128)))
        node = Node(
            f"softmax {made.name}",
            "softmax",
            (x.name,),
            (made.name,),
            {"axis": len(x.shape) - 1, "beta": 1.0},
        )
        self.graph.add_node(node)
        return made

    def weighted(
        self,
        op: str,
        x: Tensor,
        weights: tuple[int, ...],
        axis: int,
        shape: tuple[int, ...],
        **attributes: Any,
    ) -> Tensor:
        """An operator with random weights, a scale for each output channel, and a bias."""
        data = self.rng.integers(-127, 128, weights).astype(np.int8)
        terms, channels = max(data.size // weights[axis], 1), weights[axis]
        scales = self.rng.uniform(0.5, 1.5, channels) * _WANTED / (_SPREAD**2 * np.sqrt(terms))
        meaning = Quantization(tuple(scales.astype(np.float32).tolist()), (0,) * channels, axis)
        w = self.graph.add_tensor(Tensor(self._name("w"), weights, "int8", meaning, data))
        bias = self.rng.integers(-1000, 1000, channels).astype(np.int32)
        b = self.graph.add_tensor(Tensor(self._name("b"), bias.shape, "int32", None, bias))
        return self.node(op, [x, w, b], shape, **attributes)

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}{self._count}"
