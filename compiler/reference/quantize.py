"""Between real numbers and their quantizations."""

import numpy as np

from compiler.ir.tensor import same_numbers
from compiler.reference.fixed import Int64, multiplied
from compiler.reference.node_invocation import Array, NodeInvocation, Operator, quantize_real

#: Range of the quotient of scales that XNNPACK converts, in 1/256.
_LEAST, _MOST = np.float32(1 / 256), np.float32(128)


def requantized(call: NodeInvocation, stored: Array, index: int = 0, dtype: type = np.float64) -> Int64:
    """Integers of an input's quantization in that of the output, not yet saturated.

    The quotient of the scales is taken in `dtype`: LiteRT's kernels differ in that.
    """
    whole = stored.astype(np.int64)
    if same_numbers(call.tensors[index].quantization, call.output.quantization):
        return whole
    if call.kernels == "onnxruntime":
        real = (whole - call.zero(index)).astype(np.float32) * call.scale(index)
        return quantize_real(real, call.output, call.kernels)
    ratio = float(dtype(call.scale(index)) / dtype(call.output_scale))
    return multiplied(whole - call.zero(index), ratio) + call.output_zero


def eighth_bits(centred: Int64, ratio: np.float32) -> Int64:
    """XNNPACK's conversion: a multiplier in 1/256, halves up."""
    return (centred * int(np.rint(np.float32(256) * ratio)) + 128) >> 8


def quantize(call: NodeInvocation) -> Array:
    """Nearest integers; the output's quantization applies when the result is stored."""
    return call.numbers()


def requantize(call: NodeInvocation) -> Array:
    """The same numbers in another quantization."""
    ratio = call.scale() / call.output_scale
    if call.delegated and call.tensors[0].dtype == call.output.dtype and _LEAST <= ratio <= _MOST:
        return eighth_bits(call.centred(), ratio) + call.output_zero
    return requantized(call, call.values[0])


def table(call: NodeInvocation) -> Array:
    """Look up 8-bit integers in a table."""
    return np.array(call["table"], np.int64)[call.values[0].astype(np.int64) & 255]


def _dynamic(call: NodeInvocation) -> tuple[np.float32, int]:
    """Step and zero byte, as onnxruntime finds them."""
    x = call.values[0].astype(np.float32)
    low, high = (np.float32(f(x, initial=np.float32(0))) for f in (np.min, np.max))
    scale = np.float32(1) if low == high else (high - low) / np.float32(255)
    return scale, int(np.rint(np.clip(np.float32(0) - low / scale, 0, 255)))


def dynamic_quantize(call: NodeInvocation) -> Array:
    """Nearest steps of the range's 255th part, ties to even."""
    scale, zero = _dynamic(call)
    return np.clip(np.rint(call.values[0].astype(np.float32) / scale) + zero, 0, 255).astype(np.int64)


QUANTIZE: dict[str, Operator] = {
    "table": table,
    "dynamic_quantize": dynamic_quantize,
    "dynamic_scale": lambda call: np.array(_dynamic(call)[0]),
    "dynamic_zero": lambda call: np.array(_dynamic(call)[1]),
    "quantize": quantize,
    "dequantize": lambda call: call.numbers(),
    "requantize": requantize,
}
