"""Pooling, and the windows that slide over images."""

import math

import numpy as np

from compiler.reference.fixed import round_half_away
from compiler.reference.node_invocation import Array, NodeInvocation, Operator
from compiler.reference.quantize import requantized


def padded(x: Array, pads: tuple[int, int, int, int], value: float = 0) -> Array:
    """Images (batch, height, width, channels) with `value` around them."""
    top, left, bottom, right = pads
    if not any(pads):
        return x
    return np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=value)


def window_outputs(call: NodeInvocation, kernel: tuple[int, ...]) -> tuple[int, int]:
    """Height and width of the output: as many windows as the graph says, which must fit the padded image.

    The last row or column of padding may go unread, and one that reaches beyond it is counted off.
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
    """The pixels of a padded image that one tap of the window meets, (batch, *size, channels)."""
    dy, dx = call.node.attributes.get("dilations", (1, 1))
    sy, sx = call["strides"]
    y, left = ky * dy, kx * dx
    return x[:, y : y + (size[0] - 1) * sy + 1 : sy, left : left + (size[1] - 1) * sx + 1 : sx]


def max_pool2d(call: NodeInvocation) -> Array:
    """Greatest of each window; padding is never greatest."""
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
    """Mean of each window; of integers rounded, halves away from zero."""
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
        raise call.error("a window lies wholly in the padding")
    return requantized(call, round_half_away(sums / counts).astype(np.int64) + zero) if stored else sums / counts


POOL: dict[str, Operator] = {"max_pool2d": max_pool2d, "avg_pool2d": avg_pool2d}
