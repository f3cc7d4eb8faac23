"""Pooling. LiteRT's kernels pool the stored integers: input and output have one quantization."""

import math

import numpy as np

from compiler.reference.fixed import half_away
from compiler.reference.node_invocation import Array, NodeInvocation, Operator
from compiler.reference.quantize import requantized
from compiler.reference.window import padded, tap, window_outputs


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
    return requantized(call, half_away(sums / counts).astype(np.int64) + zero) if stored else sums / counts


POOL: dict[str, Operator] = {"max_pool2d": max_pool2d, "avg_pool2d": avg_pool2d}
