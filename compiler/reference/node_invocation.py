"""A node with its operands, as stored or dequantized, and the operators that convert quantizations."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import GraphError, Node
from compiler.ir.tensor import Quantization, Tensor, same_values
from compiler.reference.fixed_point import KERNELS_16, Int64, multiplied, round_half_away

#: Range of the ratio of scales that XNNPACK's requantization supports.
_MIN_RATIO, _MAX_RATIO = np.float32(1 / 256), np.float32(128)


def eighth_bits(centred: Int64, ratio: np.float32) -> Int64:
    """Requantize like XNNPACK, with a multiplier in units of 1/256 and ties rounded up."""
    return (centred * int(np.rint(np.float32(256) * ratio)) + 128) >> 8


#: Kernels whose rounding quantized operators reproduce: LiteRT's reference kernels, its default interpreter with
#: XNNPACK, or onnxruntime, where a quantized operator is the float operator on dequantized inputs, with a quantized
#: result.
Kernels = Literal["reference", "xnnpack", "onnxruntime"]
KERNELS: tuple[str, ...] = get_args(Kernels)

Array = NDArray[Any]
Real = NDArray[np.float64]


@dataclass(frozen=True)
class NodeInvocation:
    """A node with its operands.

    An operator is a function of a NodeInvocation. It returns either integers to be stored, which are then saturated to
    a quantized output's type, or floating-point results, which are then quantized or rounded to float32. Floating-point
    arithmetic is in double precision, so that a float32 result is rounded only once.

    Parameters
    ----------
    node : Node
        Operator, name and attributes.
    tensors, values : tuple
        Input tensors and their contents, in the operator's order.
    output : Tensor
        Output tensor of the node.
    kernels : Kernels
        Kernels whose rounding is reproduced for quantized values.
    """

    node: Node
    tensors: tuple[Tensor, ...]
    values: tuple[Array, ...]
    output: Tensor
    kernels: Kernels

    def __getitem__(self, attribute: str) -> Any:
        return self.node.attributes[attribute]

    def quantized(self, count: int = 1) -> bool:
        """Return True if the first `count` inputs and the output are quantized."""
        tensors = (*self.tensors[:count], self.output)
        return all(tensor.quantization is not None for tensor in tensors)

    def in_integers(self, count: int = 1) -> bool:
        """Return True if the node is `quantized` and the selected kernels compute on integers."""
        return self.kernels != "onnxruntime" and self.quantized(count)

    @property
    def delegated(self) -> bool:
        """True if the node is 8-bit and XNNPACK is selected, which computes the operators that it supports."""
        eight = all(np.dtype(t.dtype).itemsize == 1 for t in (self.tensors[0], self.output))
        return self.kernels == "xnnpack" and eight

    def centred(self, index: int = 0) -> Int64:
        """Return the integers of an input minus the zero point."""
        values, q = self.values[index].astype(np.int64), self.tensors[index].quantization
        if q is None or not any(q.zero_point):
            return values
        return values - along(np.array(q.zero_point, np.int64), q, values.ndim)

    def numbers(self, index: int = 0) -> Real | Int64:
        """Return an input as integers if it has an integer type and no quantization, otherwise in floating point."""
        values, q = self.values[index], self.tensors[index].quantization
        if q is not None:
            return q.dequantized(values).astype(np.float64)
        if values.dtype.kind == "f":
            return values.astype(np.float64)
        return values.astype(np.int64)

    def scale(self, index: int = 0) -> np.float32:
        """Return the per-tensor scale of an input."""
        return np.float32(self._whole(self.tensors[index]).scale[0])

    def zero(self, index: int = 0) -> int:
        """Return the per-tensor zero point of an input."""
        return self._whole(self.tensors[index]).zero_point[0]

    @property
    def output_scale(self) -> np.float32:
        """Per-tensor scale of the output."""
        return np.float32(self._whole(self.output).scale[0])

    @property
    def output_zero(self) -> int:
        """Per-tensor zero point of the output."""
        return self._whole(self.output).zero_point[0]

    def error(self, text: str) -> GraphError:
        """Return an error that names the node."""
        return GraphError(f"node {self.node.name!r} ({self.node.op}): {text}")

    def _whole(self, tensor: Tensor) -> Quantization:
        q = tensor.quantization
        if q is None or not q.whole:
            raise self.error(
                f"tensor {tensor.name!r} must have one scale, not {'none' if q is None else 'many'}"
            )
        return q


def requantized(call: NodeInvocation, stored: Array, index: int = 0, dtype: type = np.float64) -> Int64:
    """Convert stored integers from an input's quantization to the output's, without saturation.

    The ratio of the scales is computed in `dtype`, which differs between LiteRT's kernels.
    """
    integers = stored.astype(np.int64)
    if same_values(call.tensors[index].quantization, call.output.quantization):
        return integers
    if call.kernels == "onnxruntime":
        real = (integers - call.zero(index)).astype(np.float32) * call.scale(index)
        return quantize_real(real, call.output, call.kernels)
    ratio = float(dtype(call.scale(index)) / dtype(call.output_scale))
    return multiplied(integers - call.zero(index), ratio) + call.output_zero


def quantize(call: NodeInvocation) -> Array:
    """Return the operand in floating point; it is quantized when the result is stored."""
    return call.numbers()


def dequantize(call: NodeInvocation) -> Array:
    """Return the real numbers that the operand represents; doubles must be within the range of float32."""
    if call.values[0].dtype == np.float64:
        finite = call.values[0][np.isfinite(call.values[0])]
        largest = finite[np.abs(finite).argmax()] if finite.size else 0.0
        if abs(largest) > np.finfo(np.float32).max:
            raise GraphError(
                f"tensor {call.tensors[0].name!r} has the value {largest:.3g}, beyond the range of float32, in "
                "which doubles are computed: the largest magnitude must be 3.4e+38"
            )
    return call.numbers()


def requantize(call: NodeInvocation) -> Array:
    """Convert the operand to the output's quantization."""
    ratio = call.scale() / call.output_scale
    if call.delegated and call.tensors[0].dtype == call.output.dtype and _MIN_RATIO <= ratio <= _MAX_RATIO:
        return eighth_bits(call.centred(), ratio) + call.output_zero
    return requantized(call, call.values[0])


def requantize_sum(call: NodeInvocation) -> Array:
    """Add int32 sums, and scale the total as LiteRT's kernels for int16 do."""
    total = np.zeros((), np.int64)
    for value, shift in zip(call.values, call["shifts"], strict=True):
        total = total + (value.astype(np.int64) << shift)
    scaled = KERNELS_16[call["kernel"]](total, call["ratios"])
    return np.minimum(np.maximum(scaled + call.output_zero, call["low"]), call["high"])


def table(call: NodeInvocation) -> Array:
    """Look up 8-bit integers in a table."""
    return np.array(call["table"], np.int64)[call.values[0].astype(np.int64) & 255]


def _dynamic(call: NodeInvocation) -> tuple[np.float32, int]:
    """Return the scale and zero point of a dynamic quantization to uint8, as onnxruntime computes them."""
    x = call.values[0].astype(np.float32)
    low, high = (np.float32(f(x, initial=np.float32(0))) for f in (np.min, np.max))
    scale = np.float32(1) if low == high else (high - low) / np.float32(255)
    return scale, int(np.rint(np.clip(np.float32(0) - low / scale, 0, 255)))


def dynamic_quantize(call: NodeInvocation) -> Array:
    """Quantize the operand to uint8 with a scale determined by its range, rounding ties to even."""
    scale, zero = _dynamic(call)
    return np.clip(np.rint(call.values[0].astype(np.float32) / scale) + zero, 0, 255).astype(np.int64)


Operator = Callable[[NodeInvocation], Array]


QUANTIZE: dict[str, Operator] = {
    "table": table,
    "high_byte": lambda call: call.values[0].astype(np.int64) >> 8,
    "low_byte": lambda call: call.values[0].astype(np.int64) & 255,
    "requantize_sum": requantize_sum,
    "dynamic_quantize": dynamic_quantize,
    "dynamic_scale": lambda call: np.array(_dynamic(call)[0]),
    "dynamic_zero": lambda call: np.array(_dynamic(call)[1]),
    "quantize": quantize,
    "dequantize": dequantize,
    "requantize": requantize,
}


def along(values: Array, q: Quantization, dimensions: int) -> Array:
    """Reshape one value per scale to broadcast over a tensor with the given number of dimensions."""
    shape = [1] * dimensions
    if q.axis is not None:
        shape[q.axis] = -1
    return values.reshape(shape)


def quantize_real(values: Array, output: Tensor, kernels: Kernels) -> Int64:
    """Quantize floating-point values to integers that are not yet saturated.

    Ties round to even or, with the reference kernels, away from zero. The values are divided by the scale in float32;
    XNNPACK multiplies by the scale's float32 reciprocal instead.
    """
    q = output.quantization
    assert q is not None
    scale = along(np.array(q.scale, np.float32), q, values.ndim)
    zero = along(np.array(q.zero_point, np.int64), q, values.ndim)
    real = values.astype(np.float32)
    with np.errstate(over="ignore"):
        quotient = real * (np.float32(1) / scale) if kernels == "xnnpack" else real / scale
    # Numpy's conversion to int64 is undefined out of range; the limits exceed every quantized type.
    quotient = quotient.astype(np.float64)
    quotient = np.minimum(np.maximum(np.where(np.isnan(quotient), 0.0, quotient), -(2.0**40)), 2.0**40)
    steps = round_half_away(quotient) if kernels == "reference" else np.rint(quotient)
    return steps.astype(np.int64) + zero


@functools.cache
def limits(dtype: str) -> tuple[int, int]:
    """Return the smallest and the largest integer of a type, cached because numpy.iinfo is slow."""
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def finished(call: NodeInvocation, result: Array) -> Array:
    """Convert an operator's result to the contents of the output tensor."""
    output = call.output
    if output.quantization is not None:
        stored = result if result.dtype.kind in "iu" else quantize_real(result, output, call.kernels)
        low, high = limits(output.dtype)
        return np.asarray(np.minimum(np.maximum(stored, low), high).astype(output.dtype))
    return np.asarray(result.astype(output.dtype))
