"""Magnitudes, square roots and their reciprocals, as LiteRT's kernels have them, without tables in 8 bits."""

import numpy as np

from compiler.reference import int16
from compiler.reference.fixed import multiplied
from compiler.reference.gemmlowp import ONE, shifted, times
from compiler.reference.node_invocation import Array, NodeInvocation, Operator
from compiler.util.scaling import quantize_multiplier
from cosim.semantics.fixed_point import scale
from hw.isa.enums import Rounding

#: Fraction bits that an integer's root gets before it is scaled.
_FINE = 20
#: 1.5 with three integer bits, and the root of 1/2 with none.
_THREE_HALVES, _ROOT_HALF = (1 << 28) + (1 << 27), 1518500250
_NEWTON_STEPS = 5


def _in_bytes(call: NodeInvocation) -> bool:
    return call.in_integers() and np.dtype(call.tensors[0].dtype).itemsize == 1


def _magnitude(call: NodeInvocation) -> Array:
    """Scaled after the sign is gone, which decides halves."""
    if not call.in_integers():
        return np.abs(call.numbers())
    if call.scale() == call.output_scale:
        return np.abs(call.centred()) + call.output_zero
    return multiplied(np.abs(call.centred()), float(call.scale() / call.output_scale)) + call.output_zero


def _root(call: NodeInvocation) -> Array:
    """Integer square root rounded down; negative numbers give 0."""
    if not call.in_integers():
        return np.sqrt(call.numbers().astype(np.float64))
    real = np.maximum(call.centred(), 0).astype(np.float32) * call.scale()
    return (np.sqrt(real) / call.output_scale).astype(np.int64) + call.output_zero


def _inverse_root(call: NodeInvocation) -> Array:
    """Numbers that are not above zero make the greatest."""
    if int16.is_int16(call):
        return int16.of_positive(call, lambda x: np.float32(1) / np.sqrt(x), greatest=True)
    if not _in_bytes(call):
        return 1 / np.sqrt(call.numbers().astype(np.float64))
    x, limits = call.centred(), np.iinfo(call.output.dtype)
    mult, exponent = quantize_multiplier(1.0 / float(np.sqrt(call.scale()) * call.output_scale))
    table = np.full(256, limits.max, np.int64)
    for value in range(1, 256):
        root, shift = _newton(value)
        fine = scale(np.array([1], np.int64), root, shift + _FINE, 0, Rounding.DOUBLE)
        table[value] = scale(fine, mult, exponent - _FINE, 0, Rounding.DOUBLE)[0] + call.output_zero
    return table[np.clip(x, 0, 255)]


def _newton(value: int) -> tuple[int, int]:
    """Multiplier of 31 bits and exponent of 1 / sqrt(value), by Newton's method from 1."""
    if value <= 1:
        return ONE, 0
    shift = 11
    while value >= 1 << 29:
        value, shift = value // 4, shift + 1
    pairs = (31 - value.bit_length()) // 2 - 1
    shift, value = shift - pairs, value << 2 * pairs
    half = shifted(np.array(value >> 1, np.int64), -1)
    x = np.array(1 << 28, np.int64)
    for _ in range(_NEWTON_STEPS):
        cube = shifted(times(times(x, x), x), 6)
        x = shifted(times(x, _THREE_HALVES) - times(half, cube), 3)
    root = int(times(x, _ROOT_HALF))
    return (root << -shift, 0) if shift < 0 else (root, -shift)


ROOTS: dict[str, Operator] = {"abs": _magnitude, "sqrt": _root, "rsqrt": _inverse_root}
