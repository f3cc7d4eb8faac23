"""Helpers shared by the front ends: graph builder, inputs bound to constants, ranges of fused activations, and SAME
padding.
"""

import math
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph, Node, rebuild
from compiler.ir.tensor import Quantization, Tensor
from hw.errors import InputError, shown

#: Ending of the error message about operators without a conversion.
WHERE_LISTED = "; docs/operators.md lists the operators"


class GraphBuilder:
    """Builder of a graph, which generates unique names.

    Parameters
    ----------
    name : str
        Name of the graph.
    """

    def __init__(self, name: str):
        self.graph = Graph(name)
        self._tensors, self._nodes = _Names(self.graph.tensors), _Names(self.graph.nodes)

    def fresh(self, name: str) -> str:
        """Return an unused tensor name: `name`, with a number appended if `name` is in use."""
        return self._tensors.unused(name)

    def constant(self, name: str, data: NDArray, quantization: Quantization | None = None) -> Tensor:
        """Add a constant under the given name, or under a similar name if a tensor already has that name."""
        return self.graph.add_tensor(
            Tensor(self.fresh(name), data.shape, data.dtype.name, quantization, np.asarray(data, order="C"))
        )

    def node(self, name: str, op: str, inputs: list[Tensor], output: Tensor, **attributes: Any) -> Tensor:
        """Add a node and its output tensor, which must be new, and return the output."""
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
        """Add a node with subgraphs, and its output tensors, which must be new."""
        for output in outputs:
            self.graph.add_tensor(output)
        ins, outs = (tuple(tensor.name for tensor in tensors) for tensors in (inputs, outputs))
        self.graph.add_node(Node(self._nodes.unused(name), op, ins, outs, attributes, bodies))

    def between(self, like: Tensor, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """Return a new tensor, not yet in the graph, with the type and quantization of `like`."""
        return Tensor(self.fresh(name), like.shape if shape is None else shape, like.dtype, like.quantization)


class _Names:
    """Generator of unique names."""

    def __init__(self, used: Container[str]):
        self._used = used
        # Last number tried for each base name, because an unrolled loop requests the same names many times.
        self._last_number: dict[str, int] = {}

    def unused(self, base: str) -> str:
        """Return an unused name: `base`, with a number appended if `base` is in use."""
        name, number = base, self._last_number.get(base, 1)
        while name in self._used:
            number += 1
            name = f"{base}.{number}"
        self._last_number[base] = max(number - 1, 1)  # the caller might not use the name
        return name


#: Output ranges of the activations that file formats fuse into other operators.
ACTIVATIONS: dict[str, tuple[float, float] | None] = {
    "none": None,
    "relu": (0.0, math.inf),
    "relu_n1_to_1": (-1.0, 1.0),
    "relu6": (0.0, 6.0),
}


def same_pads(size: int, kernel: int, stride: int, dilation: int = 1) -> tuple[int, int]:
    """Return the padding before and after a dimension for ceil(size / stride) outputs; odd padding is larger after."""
    extent = (kernel - 1) * dilation + 1
    total = max((-(-size // stride) - 1) * stride + extent - size, 0)
    return total // 2, total - total // 2


def bound_value(name: str, value: NDArray, shape: tuple[int, ...], dtype: str) -> NDArray:
    """Return the value of a bound input, broadcast to the input's shape and converted to its type.

    Parameters
    ----------
    name : str
        Name of the input, for error messages.
    value : array
        Scalar for all elements, or array of the input's shape.
    shape, dtype : tuple of int, str
        Shape and numpy type of the input.

    Raises
    ------
    InputError
        The value has a different shape, or contains elements that the type cannot represent exactly.
    """
    if value.shape not in ((), shape):
        raise InputError(
            f"bound input {shown(name)} must be one number or of shape {list(shape)}, not {list(value.shape)}"
        )
    with np.errstate(all="ignore"):
        converted = value.astype(dtype)
        lossless = converted.dtype.kind == "f" or np.array_equal(converted.astype(value.dtype), value)
    if not lossless:
        raise InputError(
            f"bound input {shown(name)} must be {dtype}; {shown(value.reshape(-1)[:4].tolist())} is not"
        )
    return np.ascontiguousarray(np.broadcast_to(converted, shape))


def check_names(inputs: Mapping[str, object] | list[str], bind: Mapping[str, NDArray]) -> None:
    """Check that every bound name is the name of an input.

    Raises
    ------
    InputError
        A name is not the name of an input; the message contains the first such name.
    """
    unknown = [name for name in bind if name not in inputs]
    if unknown:
        raise InputError(
            f"there is no input {shown(unknown[0])}; inputs are {', '.join(map(shown, inputs)) or 'none'}"
        )


def bind_inputs(graph: Graph, bind: Mapping[str, NDArray]) -> Graph:
    """Return a graph in which the bound inputs are replaced by constants.

    Parameters
    ----------
    graph : Graph
        Graph of the model.
    bind : dict
        Values by input name; for a quantized input, the stored integers.

    Raises
    ------
    InputError
        A name is not an input, or a value does not match the shape or type of its input.
    """
    if not bind:
        return graph
    check_names(graph.sample_inputs, bind)
    changed = {
        name: replace(
            graph.tensors[name],
            data=bound_value(name, value, graph.tensors[name].shape, graph.tensors[name].dtype),
        )
        for name, value in bind.items()
    }
    return rebuild(graph, graph, inputs=[name for name in graph.inputs if name not in bind], changed=changed)
