"""Operators that move elements, and convert them if the output's quantization differs."""

import math

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


SHAPE: dict[str, Operator] = {
    "transpose": lambda call: _moved(call, call.values[0].transpose(call["perm"])),
    "reshape": lambda call: _moved(call, call.values[0].reshape(call["shape"])),
    "concat": _concat,
    "slice": _slice,
    "pad": _pad,
    "gather": _gather,
    "resize_nearest": _resize_nearest,
}
