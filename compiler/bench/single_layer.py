"""Single-layer graphs with random values: int8 inputs and outputs, int32 bias, per-channel scales."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Quantization, Tensor

#: Zero points of the input and the output.
X_ZERO, Y_ZERO = 5, -3
_X_SCALE, _Y_SCALE = 0.05, 0.1
_SPREAD = 74.0  # of uniform int8 values
#: Target standard deviation of the outputs, so that most of the int8 range is used.
_WANTED = 40


def random_int8(rng: np.random.Generator, *shape: int) -> NDArray[np.int8]:
    """Return uniformly distributed int8 values."""
    return rng.integers(-128, 128, shape, dtype=np.int8)


class OneLayer:
    """Constants of a layer, and its graph.

    Parameters
    ----------
    rng : Generator
        Random generator of weights, bias and scales.
    weights : tuple of int
        Shape of the weights.
    axis : int
        Dimension of the output channels in the weights.
    terms : int
        Number of products per sum.
    """

    def __init__(self, rng: np.random.Generator, weights: tuple[int, ...], axis: int, terms: int):
        self.axis, channels = axis, weights[axis]
        self.weights = np.maximum(
            random_int8(rng, *weights), -127
        )  # int8 weights are symmetric in every format
        self.bias = rng.integers(-1000, 1000, channels).astype(np.int32)
        wanted = rng.uniform(0.5, 1.5, channels) * _WANTED / (_SPREAD**2 * np.sqrt(terms))
        self.scales = (wanted * _Y_SCALE / _X_SCALE).astype(np.float32)

    def ratios(self) -> NDArray[np.float64]:
        """Requantization ratio of each output channel."""
        return float(np.float32(_X_SCALE)) * self.scales.astype(np.float64) / float(np.float32(_Y_SCALE))

    def graph(self, op: str, x: tuple[int, ...], y: tuple[int, ...], **attributes: Any) -> Graph:
        """Return the graph with input "x" and output "y"."""
        graph = Graph(op)
        graph.add_input(Tensor("x", x, "int8", Quantization.of(_X_SCALE, X_ZERO)))
        meaning = Quantization(tuple(self.scales.tolist()), (0,) * len(self.scales), self.axis)
        graph.add_tensor(Tensor("weights", self.weights.shape, "int8", meaning, self.weights))
        graph.add_tensor(Tensor("bias", self.bias.shape, "int32", None, self.bias))
        graph.add_tensor(Tensor("y", y, "int8", Quantization.of(_Y_SCALE, Y_ZERO)))
        graph.add_node(Node(op, op, ("x", "weights", "bias"), ("y",), attributes))
        return graph.finish(["y"])
