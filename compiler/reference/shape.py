"""Operators that move elements, and convert them if the output's quantization differs."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from compiler.reference.fixed_point import round_half_away
from compiler.reference.node_invocation import Array, NodeInvocation, Operator, quantize_real, requantized


def _moved(call: NodeInvocation, stored: Array, index: int = 0) -> Array:
    return requantized(call, stored, index) if call.quantized() else stored


def _concat(call: NodeInvocation) -> Array:
    if not call.quantized(len(call.values)):
        return np.concatenate(call.values, call["axis"])
    return np.concatenate([_converted(call, i) for i in range(len(call.values))], call["axis"])


def _converted(call: NodeInvocation, index: int) -> Array:
    """Convert an operand to the output's quantization; LiteRT scales in float32, with ties away from zero."""
    values = call.values[index].astype(np.int64)
    if call.kernels == "onnxruntime" or call.tensors[index].quantization == call.output.quantization:
        return requantized(call, values, index)
    ratio = call.scale(index) * (np.float32(1) / call.output_scale)
    steps = values.astype(np.float32) * ratio + np.float32(-call.zero(index)) * ratio
    limits = np.iinfo(call.output.dtype)
    return np.clip(
        round_half_away(steps.astype(np.float64)) + call.output_zero, limits.min, limits.max
    ).astype(np.int64)


def _slice(call: NodeInvocation) -> Array:
    x = call.values[0]
    parts = zip(call["starts"], call["sizes"], call["steps"], x.shape, strict=True)
    indices = [start + step * np.arange(size) for start, size, step, _ in parts]
    for axis, index in enumerate(indices):
        if index.min(initial=0) < 0 or index.max(initial=0) >= x.shape[axis]:
            raise call.error(
                f"axis {axis} has indices 0..{x.shape[axis] - 1}, not {index.min()}..{index.max()}"
            )
    return _moved(call, x[np.ix_(*indices)])


def _pad(call: NodeInvocation) -> Array:
    x, value = call.values[0], call["value"]
    q = call.tensors[0].quantization
    if q is not None:
        limits = np.iinfo(x.dtype)
        finite = min(max(value, float(np.finfo(np.float32).min)), float(np.finfo(np.float32).max))
        steps = quantize_real(np.array(finite), call.tensors[0], call.kernels)
        value = int(np.clip(steps, limits.min, limits.max).item())
    elif x.dtype.kind in "iu" and math.isinf(value):
        value = np.iinfo(x.dtype).max if value > 0 else np.iinfo(x.dtype).min
    return _moved(call, np.pad(x, call["pads"], constant_values=value))


def _gather(call: NodeInvocation) -> Array:
    x, indices, axis = call.values[0], call.values[1].astype(np.int64), call["axis"]
    size = x.shape[axis]
    if indices.size and not -size <= indices.min() <= indices.max() < size:
        raise call.error(f"indices must be within {-size}..{size - 1}, not {indices.min()}..{indices.max()}")
    return _moved(call, np.take(x, indices, axis))


def _resize_nearest(call: NodeInvocation) -> Array:
    """Resize by nearest neighbor: output i is input floor(i * in / out), with i + 1/2 instead of i if `centers`."""
    x, half = call.values[0], int(call["centers"])
    rows, columns = (
        (2 * np.arange(size) + half) * given // (2 * size)
        for size, given in zip(call["size"], x.shape[1:3], strict=True)
    )
    return _moved(call, x[:, rows][:, :, columns])


def _resize_bilinear(call: NodeInvocation) -> Array:
    """Resize by bilinear interpolation of the four nearest pixels, as LiteRT's kernels or onnxruntime do."""
    x, how = call.values[0], interpolation(call)
    if call.tensors[0].quantization is None:
        return _interpolated(x.astype(np.float64), how.rows, how.columns, 1.0)
    if how.ties == "even":
        one = float(how.one)
        sums = _interpolated(call.centred().astype(np.float64), how.rows, how.columns, one)
        return np.rint(sums / one**2).astype(np.int64) + call.zero()
    if isinstance(how.one, np.floating):
        sums = _interpolated(x.astype(np.float32), how.rows, how.columns, how.one)
        return np.floor(sums + np.float32(0.5)).astype(np.int64)
    sums, one = _interpolated(x.astype(np.int64), how.rows, how.columns, how.one), how.one**2
    up = (sums + one // 2) // one
    return up if how.ties == "up" else np.where(sums > 0, up, -((-sums + one // 2) // one))


#: For each output row or column: index of the pixel before, of the pixel after, and the fraction between them.
Lines = tuple[Array, Array, Array]


@dataclass(frozen=True)
class Interpolation:
    """Positions and rounding of a bilinear resizing.

    Parameters
    ----------
    rows, columns : (array, array, array)
        For each output row, and each output column: index of the pixel before, of the pixel after, and the fraction
        between them.
    one : int or float32
        Unit of the fractions: the integer that stands for 1, or 1.0 for float32 fractions.
    ties : "up", "away" or "even"
        Rounding of ties: up, away from zero, or to the integer whose distance from the zero point is even.
    """

    rows: Lines
    columns: Lines
    one: int | np.floating
    ties: Literal["up", "away", "even"]


def interpolation(call: NodeInvocation) -> Interpolation:
    """Return how LiteRT's kernels or onnxruntime compute a bilinear resizing; `call` needs no values.

    The reference kernels have positions of 10 fractional bits for int8 and int16, and float32 positions otherwise;
    XNNPACK has weights of 11 bits for bytes. onnxruntime interpolates dequantized values; positions and rounding are
    those of exact arithmetic.
    """
    if call.tensors[0].quantization is not None:
        if call.kernels == "onnxruntime":
            return Interpolation(*_exact_lines(call), "even")
        if call.delegated and not (call["corners"] and call["centers"]):
            rows, columns = (
                (low, high, np.rint(part * np.float32(2048)).astype(np.int64))
                for low, high, part in _lines(call, clamped=True)
            )
            return Interpolation(rows, columns, 2048, "up")
        if call.output.dtype != "uint8":
            return Interpolation(*_integer_lines(call), 1024, "away")
    return Interpolation(*_lines(call), np.float32(1), "up")


def _lines(call: NodeInvocation, *, clamped: bool = False) -> tuple[Lines, Lines]:
    """Return float32 positions of the rows and columns; `clamped` limits them to the image, as XNNPACK does."""
    found, corners, half = [], call["corners"], np.float32(0.5)
    for size, given in zip(call["size"], call.tensors[0].shape[1:3], strict=True):
        less = int(corners and size > 1)
        scale = np.float32(given - less) / np.float32(size - less)
        places = np.arange(size, dtype=np.float32)
        if clamped and call["centers"]:
            places = np.clip(places * scale + (half * scale - half), np.float32(0), np.float32(given - 1))
        else:
            places = (places + half) * scale - half if call["centers"] else places * scale
        floor = np.floor(places)
        low = np.maximum(floor.astype(np.int64), 0)
        high = np.minimum(low + 1 if clamped else np.ceil(places).astype(np.int64), given - 1)
        found.append((low, high, places - low.astype(np.float32)))
    return found[0], found[1]


def _exact_lines(call: NodeInvocation) -> tuple[Lines, Lines, int]:
    """Return exact positions of the rows and columns, and the unit of their fractions."""
    places, units = [], []
    for size, given in zip(call["size"], call.tensors[0].shape[1:3], strict=True):
        less, half = int(call["corners"] and size > 1), int(call["centers"])
        # Twice the positions, so that half a pixel is an integer.
        doubled = (2 * np.arange(size) + half) * (given - less) - half * (size - less)
        limit = 2 * (size - less) * (given - 1)
        places.append(np.clip(doubled, 0, limit))
        units.append(2 * (size - less))
    factors = [math.gcd(unit, *each.tolist()) for each, unit in zip(places, units, strict=True)]
    units = [unit // factor for unit, factor in zip(units, factors, strict=True)]
    one, found = math.lcm(*units), []
    for each, factor, unit, given in zip(places, factors, units, call.tensors[0].shape[1:3], strict=True):
        low, part = np.divmod(each // factor, unit)
        found.append((low, np.minimum(low + (part > 0), given - 1), part * (one // unit)))
    return found[0], found[1], one


def _integer_lines(call: NodeInvocation) -> tuple[Lines, Lines]:
    """Return the positions of LiteRT's integer kernel, in units of 1/1024 of a pixel."""
    found, one = [], 1024
    for size, given in zip(call["size"], call.tensors[0].shape[1:3], strict=True):
        scale = (one * given + size // 2) // size
        if call["corners"] and size > 1:
            scale = (one * (given - 1) + (size - 1) // 2) // (size - 1)
        places = np.arange(size) * scale + (scale // 2 - one // 2 if call["centers"] else 0)
        low = np.maximum(places // one, 0)  # negative places become 0 whether or not division rounds down
        # Division in C rounds towards zero.
        high = np.minimum(np.trunc((places + one - 1) / one).astype(np.int64), given - 1)
        found.append((low, high, places - one * low))
    return found[0], found[1]


def _interpolated(x: Array, rows: Lines, columns: Lines, one: float | np.float32) -> Array:
    """Return the sums of four pixels, weighted by products of fractions in units of `one`."""
    (top, bottom, down), (left, right, along) = rows, columns
    down, along = down[:, None, None], along[:, None]
    total = x[:, top][:, :, left] * (one - down) * (one - along)
    total = total + x[:, bottom][:, :, left] * down * (one - along)
    total = total + x[:, top][:, :, right] * (one - down) * along
    return total + x[:, bottom][:, :, right] * down * along


SHAPE: dict[str, Operator] = {
    "transpose": lambda call: _moved(call, call.values[0].transpose(call["perm"])),
    "reshape": lambda call: _moved(call, call.values[0].reshape(call["shape"])),
    "concat": _concat,
    "slice": _slice,
    "pad": _pad,
    "gather": _gather,
    "resize_nearest": _resize_nearest,
    "resize_bilinear": _resize_bilinear,
}
