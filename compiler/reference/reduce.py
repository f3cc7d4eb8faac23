"""Reductions over axes and over windows of images, softmax, and layer and RMS normalization."""

import math
from collections.abc import Callable

import numpy as np

from compiler.ir.tensor import same_values
from compiler.kernel_library.reduce import softmax_exponentials
from compiler.reference import int16
from compiler.reference.fixed_point import (
    Int64,
    exp_negative,
    multiplied_away,
    multiplied_real,
    reciprocal,
    round_half_away,
    shifted,
    times,
)
from compiler.reference.node_invocation import Array, NodeInvocation, Operator, Real, limits, requantized
from compiler.util.scaling import quantize_multiplier
from cosim.semantics.fixed_point import half_away, half_up, scale
from hw.isa.enums import Rounding

#: Number of integer bits of a scaled difference, and of the sum of exponentials.
_DIFFERENCE_BITS, _SUM_BITS = 5, 12


def _added(call: NodeInvocation, *, mean: bool) -> Array:
    stored = call.in_integers()
    x = call.values[0].astype(np.int64) if stored else call.numbers()
    count = math.prod(x.shape[axis] for axis in call["axes"])
    sums = x.sum(call["axes"], keepdims=call["keep"])
    if stored:
        return _scaled(call, np.asarray(sums), count, mean)
    if mean:
        return sums / count if sums.dtype.kind == "f" else np.trunc(sums / count)
    return sums


def _scaled(call: NodeInvocation, sums: Int64, count: int, mean: bool) -> Int64:
    """Convert sums of `count` stored integers, or their means, to the output's quantization."""
    if call.delegated:
        return _scaled_xnnpack(call, sums, count, mean)
    centred = sums - count * call.zero()
    if call.kernels == "xnnpack" and not mean:
        steps = round_half_away(
            (centred.astype(np.float32) * (call.scale() / call.output_scale)).astype(np.float64)
        )
        return steps.astype(np.int64) + call.output_zero
    return _scaled_reference(call, centred, count if mean else 1) + call.output_zero


def _scaled_xnnpack(call: NodeInvocation, sums: Int64, count: int, mean: bool) -> Int64:
    """Convert like XNNPACK, in float32 including zero points, with ties to even."""
    ratio = call.scale() / call.output_scale * np.float32(1 / count if mean else 1)
    zero = np.float32(call.output_zero) - np.float32(count * call.zero()) * ratio
    return np.rint(sums.astype(np.float32) * ratio + zero).astype(np.int64)


def _scaled_reference(call: NodeInvocation, sums: Int64, count: int) -> Int64:
    """Convert like LiteRT's reference kernel, with double rounding and the multiplier divided by the count."""
    multiplier, exponent = quantize_multiplier(float(call.scale()) / float(call.output_scale))
    shift = min(count.bit_length() - 1, 32, 31 + exponent)
    return scale(sums, (multiplier << shift) // count, exponent - shift, 0, Rounding.DOUBLE)


def _extreme(call: NodeInvocation, *, greatest: bool) -> Array:
    stored = call.quantized()
    x = call.values[0].astype(np.int64) if stored else call.numbers()
    result = np.asarray((np.max if greatest else np.min)(x, call["axes"], keepdims=call["keep"]))
    return requantized(call, result) if stored else result


def _cumulated(call: NodeInvocation) -> Array:
    """Compute cumulative sums along an axis, requantized like the sums of a dense layer."""
    stored, axis = call.quantized(), call["axis"]
    x = np.moveaxis(call.centred() if stored else call.numbers(), axis, -1)
    x = x[..., ::-1] if call["reverse"] else x
    sums = x.cumsum(-1)
    if call["exclusive"]:
        sums = np.concatenate([np.zeros_like(sums[..., :1]), sums[..., :-1]], -1)
    sums = np.moveaxis(sums[..., ::-1] if call["reverse"] else sums, -1, axis)
    if not stored:
        return sums
    if call.kernels == "reference":
        return multiplied_away(sums, float(call.scale()) / float(call.output_scale)) + call.output_zero
    return multiplied_real(sums, call.scale() / call.output_scale) + call.output_zero


def _index(call: NodeInvocation, *, least: bool) -> Array:
    """Return the index of the first or last extreme element along an axis."""
    x, axis = call.numbers(), call["axis"]
    find = np.argmin if least else np.argmax
    if not call["last"]:
        return np.asarray(find(x, axis, keepdims=call["keep"]))
    return x.shape[axis] - 1 - np.asarray(find(np.flip(x, axis), axis, keepdims=call["keep"]))


def _top(call: NodeInvocation) -> Int64:
    """Return the positions of the selected elements along the axis; NaN counts as the largest number."""
    x, axis = call.numbers(), call["axis"]
    if not call["least"]:  # a stable sort of the reversed elements in ascending order, reversed
        last = x.shape[axis] - 1
        order = last - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis, kind="stable")
    return np.take(order, np.arange(call["k"]), axis)


def top_values(call: NodeInvocation) -> Array:
    """Return the selected elements; integers that need no conversion are selected as they are stored."""
    stored = same_values(call.tensors[0].quantization, call.output.quantization)
    return np.take_along_axis(call.values[0] if stored else call.numbers(), _top(call), call["axis"])


def index_key(call: NodeInvocation) -> Int64:
    """Return keys that order 8-bit integers, and equal integers by the number of their position."""
    lowest, highest = limits(call.tensors[0].dtype)
    x = call.values[0].astype(np.int64)
    return 256 * (highest - x if call["least"] else x - lowest) + call.values[1] - (1 << 15)


def key_index(call: NodeInvocation) -> Int64:
    """Return the number of the position that a key contains."""
    low = call.values[0].astype(np.int64) & 255
    return 255 - low if call["reversed"] else low


REDUCE: dict[str, Operator] = {
    "argmax": lambda call: _index(call, least=False),
    "argmin": lambda call: _index(call, least=True),
    "top_values": top_values,
    "top_indices": _top,
    "index_key": index_key,
    "key_index": key_index,
    "reduce_sum": lambda call: _added(call, mean=False),
    "reduce_mean": lambda call: _added(call, mean=True),
    "reduce_max": lambda call: _extreme(call, greatest=True),
    "reduce_min": lambda call: _extreme(call, greatest=False),
    "cumsum": _cumulated,
}


def padded(x: Array, pads: tuple[int, int, int, int], value: float = 0) -> Array:
    """Return images (batch, height, width, channels) padded with `value`."""
    top, left, bottom, right = pads
    if not any(pads):
        return x
    return np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=value)


def window_outputs(call: NodeInvocation, kernel: tuple[int, ...]) -> tuple[int, int]:
    """Return the height and width of the node's output, and check that its windows fit the padded image.

    The last row or column of padding may remain unread; a window that extends beyond the padding is an error.
    """
    height, width = call.output.shape[1:3]
    top, left, bottom, right = call["pads"]
    dilations = call.node.attributes.get("dilations", (1, 1))
    for axis, count, before, after in ((0, height, top, bottom), (1, width, left, right)):
        reach = (count - 1) * call["strides"][axis] + (kernel[axis] - 1) * dilations[axis] + 1
        given = call.tensors[0].shape[1 + axis] + before + after
        if reach > given:
            raise call.error(
                f"{count} windows along axis {1 + axis} take {reach} pixels, but padded there are {given}"
            )
    return height, width


def tap(call: NodeInvocation, x: Array, size: tuple[int, int], ky: int, kx: int) -> Array:
    """Return the pixels (batch, *size, channels) at one tap of all windows over a padded image."""
    dy, dx = call.node.attributes.get("dilations", (1, 1))
    sy, sx = call["strides"]
    y, left = ky * dy, kx * dx
    return x[:, y : y + (size[0] - 1) * sy + 1 : sy, left : left + (size[1] - 1) * sx + 1 : sx]


def max_pool2d(call: NodeInvocation) -> Array:
    """Compute the maximum of each window, ignoring the padding."""
    kernel, stored = call["kernel"], call.quantized()
    x = call.values[0].astype(np.int64) if stored else call.numbers()
    lowest = np.iinfo(np.int64).min if x.dtype.kind == "i" else -math.inf
    size = window_outputs(call, kernel)
    x = padded(x, call["pads"], lowest)
    greatest = tap(call, x, size, 0, 0)
    for ky, kx in np.ndindex(*kernel):
        greatest = np.maximum(greatest, tap(call, x, size, ky, kx))
    return requantized(call, greatest) if stored else greatest


def avg_pool2d(call: NodeInvocation) -> Array:
    """Compute the mean of each window; means of stored integers are rounded with ties away from zero."""
    kernel, stored = call["kernel"], call.in_integers()
    zero = call.zero() if stored and call["count_pads"] else 0
    x = (call.values[0].astype(np.int64) - zero if stored else call.numbers()).astype(np.float64)
    size = window_outputs(call, kernel)
    ones = np.ones((1, *x.shape[1:3], 1))
    if call["count_pads"]:
        ones = np.ones((1, *padded(ones, call["pads"]).shape[1:3], 1))
    else:
        ones = padded(ones, call["pads"])
    x = padded(x, call["pads"])
    sums, counts = np.zeros((x.shape[0], *size, x.shape[3])), np.zeros((1, *size, 1))
    for ky, kx in np.ndindex(*kernel):
        sums += tap(call, x, size, ky, kx)
        counts += tap(call, ones, size, ky, kx)
    if (counts == 0).any():
        raise call.error("a window contains only padding")
    return (
        requantized(call, round_half_away((sums + zero * counts) / counts).astype(np.int64))
        if stored
        else sums / counts
    )


POOL: dict[str, Operator] = {"max_pool2d": max_pool2d, "avg_pool2d": avg_pool2d}


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
