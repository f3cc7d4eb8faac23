"""Softmax along an axis, and layer and RMS normalization over the last axes."""

import math
from collections.abc import Callable

import numpy as np

from compiler.kernel_library.reduce import softmax_exponentials
from compiler.reference import int16
from compiler.reference.fixed_point import Int64, exp_negative, reciprocal, shifted, times
from compiler.reference.node_invocation import Array, NodeInvocation, Operator, Real
from compiler.util.scaling import quantize_multiplier
from cosim.semantics.fixed_point import half_away, half_up, scale
from hw.isa.enums import Rounding

#: Number of integer bits of a scaled difference, and of the sum of exponentials.
_DIFFERENCE_BITS, _SUM_BITS = 5, 12


def softmax(call: NodeInvocation) -> Array:
    """Compute the softmax of beta * x along an axis."""
    axis = call["axis"]
    if call.in_integers() and (int16.is_unit(call) or _eighth(call)):
        rows = np.moveaxis(call.values[0].astype(np.int64), axis, -1)
        away = rows - rows.max(-1, keepdims=True)
        return np.moveaxis(_kernel(call)(call, away), -1, axis)
    x = call["beta"] * call.numbers().astype(np.float64)
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def _kernel(call: NodeInvocation) -> Callable[[NodeInvocation, Int64], Int64]:
    """Return LiteRT's kernel for the node's type."""
    if int16.is_unit(call):
        return int16.softmax
    return _by_table if call.kernels == "xnnpack" else _fixed


def _eighth(call: NodeInvocation) -> bool:
    """Return True if the output has the 8-bit quantization that LiteRT's kernels require."""
    lowest = np.iinfo(call.output.dtype).min
    return np.dtype(call.output.dtype).itemsize == 1 and (float(call.output_scale), call.output_zero) == (
        1 / 256,
        lowest,
    )


def _fixed(call: NodeInvocation, away: Int64) -> Int64:
    """Compute a softmax like LiteRT's reference kernel; `away` is each value minus the maximum of its row."""
    real = min(
        float(np.float32(call["beta"])) * float(call.scale()) * (1 << (31 - _DIFFERENCE_BITS)),
        (1 << 31) - 1.0,
    )
    multiplier, left = quantize_multiplier(real)
    furthest = ((1 << _DIFFERENCE_BITS) - 1 << (31 - _DIFFERENCE_BITS)) >> left
    distances = -np.arange(256)
    powers = exp_negative(half_up((distances << left) * multiplier, 31), _DIFFERENCE_BITS)
    powers = np.where(distances >= -furthest, powers, 0)
    sums = shifted(powers, -_SUM_BITS)[-away].sum(-1, keepdims=True)
    headroom = 32 - np.frexp(sums.astype(np.float64))[1].astype(np.int64)
    inverse = reciprocal((sums << headroom) - (1 << 31))
    result = half_away(times(powers[-away], inverse), _SUM_BITS - headroom + 31 - 8)
    return result + call.output_zero


def _by_table(call: NodeInvocation, away: Int64) -> Int64:
    """Compute a softmax like LiteRT's optimized kernel, with float32 sums in the order of the row's elements."""
    scale = -call.scale() * np.float32(call["beta"])
    powers = np.exp((scale * np.arange(256).astype(np.float32)).astype(np.float64)).astype(np.float32)[-away]
    sums = np.cumsum(powers, -1, dtype=np.float32)[..., -1:]
    inverse = np.float32(1) / (sums * call.output_scale)
    return (powers * inverse + np.float32(0.5)).astype(np.int64) + call.output_zero


def approximate_softmax(call: NodeInvocation) -> Array:
    """Compute a softmax of 8-bit integers without the maxima of rows, in the accelerator's arithmetic (docs/passes.md).

    The sum of the exponentials times the result's step, divided by the next power of two, is rounded to an integer if
    that quotient is not 1.
    """
    rows = np.moveaxis(call.values[0].astype(np.int64), call["axis"], -1)
    x, y = call.tensors[0].quantization, call.output.quantization
    assert x is not None and y is not None
    powers = softmax_exponentials(call["beta"] * x.scale[0], rows.shape[-1])
    found = powers[np.iinfo(call.tensors[0].dtype).max - rows]
    sums = found.sum(-1, keepdims=True)
    step = y.scale[0]
    bits = math.ceil(math.log2(step))
    if step != 2.0**bits:
        sums = half_up(sums * round(step / 2.0**bits * (1 << 31)), 31)
    sums = np.maximum(sums, 1)
    length = np.frexp(sums.astype(np.float64))[1].astype(np.int64)
    inverse = np.minimum((1 << 62) // (sums << (32 - length)), np.iinfo(np.int32).max)
    result = scale(found, inverse, 1 - bits - length, 0, Rounding.EVEN)
    return np.moveaxis(result, -1, call["axis"]) + call.output_zero


SOFTMAX: dict[str, Operator] = {"softmax": softmax, "approximate_softmax": approximate_softmax}


def _normalized(call: NodeInvocation, *, centre: bool) -> Array:
    x = call.numbers().astype(np.float64)
    axes = tuple(range(range(x.ndim)[call["axis"]], x.ndim))
    if centre:
        x = x - x.mean(axes, keepdims=True)
    result: Real = x / np.sqrt((x * x).mean(axes, keepdims=True) + call["epsilon"])
    if len(call.values) > 1:
        result = result * call.numbers(1)
    return result + call.numbers(2) if len(call.values) > 2 else result


NORM: dict[str, Operator] = {
    "layer_norm": lambda call: _normalized(call, centre=True),
    "rms_norm": lambda call: _normalized(call, centre=False),
}
