"""One node about to be computed: its operands, as stored and as the numbers they mean."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import GraphError, Node
from compiler.ir.tensor import Quantization, Tensor
from compiler.reference.fixed import Int64, round_half_away

#: Whose rounding quantized operators repeat: LiteRT's reference kernels, its default interpreter with XNNPACK, or
#: onnxruntime, where a quantized operator is the real one between dequantized inputs and a quantized result.
Kernels = Literal["reference", "xnnpack", "onnxruntime"]
KERNELS: tuple[str, ...] = get_args(Kernels)

Array = NDArray[Any]
Real = NDArray[np.float64]


@dataclass(frozen=True)
class NodeInvocation:
    """A node with its operands.

    An operator is a function of a Call. It returns either integers, the values to be stored (saturated to a quantized
    output's type afterwards), or floating point numbers, the real results (quantized or rounded to float32 afterwards).
    Real arithmetic is done in double precision, so that a float32 result is rounded once.

    Parameters
    ----------
    node : Node
        Operator, name and attributes.
    tensors, values : tuple
        Its inputs and their contents, in the operator's order.
    output : Tensor
        What is to be made.
    kernels : Kernels
        Whose rounding applies where numbers are quantized.
    """

    node: Node
    tensors: tuple[Tensor, ...]
    values: tuple[Array, ...]
    output: Tensor
    kernels: Kernels

    def __getitem__(self, attribute: str) -> Any:
        return self.node.attributes[attribute]

    def quantized(self, count: int = 1) -> bool:
        """The first `count` inputs and the output all are quantized."""
        tensors = (*self.tensors[:count], self.output)
        return all(tensor.quantization is not None for tensor in tensors)

    def in_integers(self, count: int = 1) -> bool:
        """The node is quantized so, and the kernels compute such a node with integers."""
        return self.kernels != "onnxruntime" and self.quantized(count)

    @property
    def delegated(self) -> bool:
        """The operator, if XNNPACK has it at all, runs there: it is quantized to 8 bits."""
        eight = all(np.dtype(t.dtype).itemsize == 1 for t in (self.tensors[0], self.output))
        return self.kernels == "xnnpack" and eight

    def centred(self, index: int = 0) -> Int64:
        """An input's integers less their zero point."""
        values, q = self.values[index].astype(np.int64), self.tensors[index].quantization
        if q is None or not any(q.zero_point):
            return values
        return values - along(np.array(q.zero_point, np.int64), q, values.ndim)

    def numbers(self, index: int = 0) -> Real | Int64:
        """Value of an input: integers if it has no quantization, otherwise real numbers."""
        values, q = self.values[index], self.tensors[index].quantization
        if q is not None:
            return q.dequantized(values).astype(np.float64)
        if values.dtype.kind == "f":
            return values.astype(np.float64)
        return values.astype(np.int64)

    def scale(self, index: int = 0) -> np.float32:
        """The one scale of an input."""
        return np.float32(self._whole(self.tensors[index]).scale[0])

    def zero(self, index: int = 0) -> int:
        """The one zero point of an input."""
        return self._whole(self.tensors[index]).zero_point[0]

    @property
    def output_scale(self) -> np.float32:
        """The one scale of the output."""
        return np.float32(self._whole(self.output).scale[0])

    @property
    def output_zero(self) -> int:
        """The one zero point of the output."""
        return self._whole(self.output).zero_point[0]

    def error(self, text: str) -> GraphError:
        """An error that names the node."""
        return GraphError(f"node {self.node.name!r} ({self.node.op}): {text}")

    def _whole(self, tensor: Tensor) -> Quantization:
        q = tensor.quantization
        if q is None or not q.whole:
            raise self.error(
                f"tensor {tensor.name!r} must have one scale, not {'none' if q is None else 'many'}"
            )
        return q


Operator = Callable[[NodeInvocation], Array]


def along(values: Array, q: Quantization, dimensions: int) -> Array:
    """One value for each scale, shaped to broadcast over a tensor of so many dimensions."""
    shape = [1] * dimensions
    if q.axis is not None:
        shape[q.axis] = -1
    return values.reshape(shape)


def quantize_real(values: Array, output: Tensor, kernels: Kernels) -> Int64:
    """Stored integers of real numbers, not yet saturated; halves to even, with the reference kernels away from zero.

    They are divided by the scale in float32; XNNPACK multiplies by its float32 reciprocal.
    """
    q = output.quantization
    assert q is not None
    scale = along(np.array(q.scale, np.float32), q, values.ndim)
    zero = along(np.array(q.zero_point, np.int64), q, values.ndim)
    real = values.astype(np.float32)
    with np.errstate(over="ignore"):
        quotient = real * (np.float32(1) / scale) if kernels == "xnnpack" else real / scale
    # What int64 cannot hold is not converted by numpy; no quantized type is wider than this.
    quotient = quotient.astype(np.float64)
    quotient = np.minimum(np.maximum(np.where(np.isnan(quotient), 0.0, quotient), -(2.0**40)), 2.0**40)
    steps = round_half_away(quotient) if kernels == "reference" else np.rint(quotient)
    return steps.astype(np.int64) + zero


@functools.cache
def limits(dtype: str) -> tuple[int, int]:
    """Least and greatest integer of a type; numpy takes long to say it."""
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def finished(call: NodeInvocation, result: Array) -> Array:
    """An operator's result as the output tensor stores it."""
    output = call.output
    if output.quantization is not None:
        stored = result if result.dtype.kind in "iu" else quantize_real(result, output, call.kernels)
        low, high = limits(output.dtype)
        return np.asarray(np.minimum(np.maximum(stored, low), high).astype(output.dtype))
    return np.asarray(result.astype(output.dtype))
