"""Elementwise sums, products, clips, integer divisions, comparisons and selections."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from compiler.ir.tensor import Tensor, same_values
from compiler.kernel_library.elementwise import LEFT_SHIFT, LEFT_SHIFT_16, raw_fields
from compiler.reference.fixed_point import Int64, multiplied, multiplied_real, round_half_away
from compiler.reference.node_invocation import Array, NodeInvocation, Operator, limits, requantized
from compiler.util.scaling import Affine
from cosim.semantics.fixed_point import half_up

#: Ratios of scales that XNNPACK's kernels support; LiteRT's own kernels are used otherwise.
_SUM_RATIOS = (np.float32(2**-10), np.float32(2**8))
_PRODUCT_RATIOS = (np.float32(2**-16), np.float32(2**8))


def _sum_reference(call: NodeInvocation, sign: int) -> Int64:
    """Compute LiteRT's sum: rescale operands to twice the larger scale with extra bits, add, and rescale the sum."""
    left = LEFT_SHIFT_16 if call.output.dtype == "int16" else LEFT_SHIFT
    twice = 2 * max(float(call.scale(0)), float(call.scale(1)))
    a, b = (multiplied(call.centred(i), float(call.scale(i)) / twice, left=left) for i in (0, 1))
    return multiplied(a + sign * b, twice / ((1 << left) * float(call.output_scale))) + call.output_zero


def _sum_xnnpack(call: NodeInvocation, sign: int) -> Int64:
    """Compute XNNPACK's sum: scale operands by 21-bit multipliers, add, and shift right once, rounding ties up."""
    a, b = (Affine(float(call.scale(i)), call.zero(i)) for i in (0, 1))
    fields = raw_fields(a, b, Affine(float(call.output_scale), call.output_zero))
    total = call.centred(0) * fields["x_mult"] + sign * call.centred(1) * fields["r_mult"]
    exponent = fields["r_shifts"] >> 16
    return half_up(total, 31 - exponent) + call.output_zero


def _within(call: NodeInvocation, limits: tuple[np.float32, np.float32], *ratios: np.float32) -> bool:
    return call.delegated and all(limits[0] <= ratio < limits[1] for ratio in ratios)


def _summed(call: NodeInvocation, sign: int) -> Array:
    if not call.in_integers(2):
        return call.numbers(0) + sign * call.numbers(1)
    if _within(call, _SUM_RATIOS, *(call.scale(i) / call.output_scale for i in (0, 1))):
        return _sum_xnnpack(call, sign)
    return _sum_reference(call, sign)


def mul(call: NodeInvocation) -> Array:
    """Compute a product; if quantized, the ratio of scales is computed in float32."""
    if not call.in_integers(2):
        return call.numbers(0) * call.numbers(1)
    ratio, product = call.scale(0) * call.scale(1) / call.output_scale, call.centred(0) * call.centred(1)
    if _within(call, _PRODUCT_RATIOS, ratio):
        return multiplied_real(product, ratio) + call.output_zero
    return multiplied(product, float(ratio)) + call.output_zero


def clip(call: NodeInvocation) -> Array:
    """Clip to limits; if quantized, the limits are rounded to integers in the output's quantization."""
    low, high = call["low"], call["high"]
    if call.in_integers():
        steps = (_limit(call, low), _limit(call, high))
        return np.minimum(np.maximum(requantized(call, call.values[0], dtype=np.float32), steps[0]), steps[1])
    x = call.numbers()
    if x.dtype.kind == "f":
        return np.minimum(np.maximum(x, low), high)
    if not math.isinf(low):
        x = np.maximum(x, math.ceil(low))
    return x if math.isinf(high) else np.minimum(x, math.floor(high))


def _limit(call: NodeInvocation, value: float) -> int:
    """Return a limit as an integer in the output's quantization."""
    lowest, highest = limits(call.output.dtype)
    if math.isinf(value):
        return highest if value > 0 else lowest
    steps = round_half_away(np.array(np.float32(value) / call.output_scale, np.float64))
    return int(max(lowest, min(float(steps) + call.output_zero, highest)))


def floor_div(call: NodeInvocation) -> Array:
    """Compute the quotient of the stored values, rounded down; like LiteRT's kernel, this ignores quantizations."""
    a, b = call.values
    if not b.all():
        raise call.error("divides by zero")
    if a.dtype.kind == "f":
        return np.floor(a.astype(np.float64) / b)
    return (a.astype(np.int64) // b).astype(call.output.dtype)


ELEMENTWISE: dict[str, Operator] = {
    "add": lambda call: _summed(call, 1),
    "sub": lambda call: _summed(call, -1),
    "mul": mul,
    "clip": clip,
    "floor_div": floor_div,
    "maximum": lambda call: np.maximum(*call.values),
    "minimum": lambda call: np.minimum(*call.values),
}


def rounds_operands(op: str, tensors: Sequence[Tensor], kernels: str) -> bool:
    """Return True if a comparison rounds its operands to multiples of 1/256 first.

    LiteRT's kernels for bytes do so, and those of EQUAL and NOT_EQUAL for int16, if all scales are less than 1.
    """
    most = 2 if op == "equal" else 1
    return kernels != "onnxruntime" and all(
        each.quantization is not None
        and np.dtype(each.dtype).itemsize <= most
        and max(each.quantization.scale) < 1
        for each in tensors
    )


def _comparing(function: Callable[..., Array]) -> Operator:
    """Return an operator that applies a function to its dequantized operands."""

    def compare(call: NodeInvocation) -> Array:
        count = len(call.values)
        if rounds_operands(call.node.op, call.tensors, call.kernels):
            return np.asarray(
                function(*(multiplied(call.centred(i) << 8, call.scale(i)) for i in range(count)))
            )
        return np.asarray(function(*(call.numbers(i) for i in range(count))))

    return compare


def where(call: NodeInvocation) -> Array:
    """Select elements of one of two operands; integers that need no conversion are selected as they are stored."""
    condition, *values = call.values
    if all(same_values(tensor.quantization, call.output.quantization) for tensor in call.tensors[1:]):
        return np.where(condition, *values)
    return np.where(condition, call.numbers(1), call.numbers(2))


LOGIC: dict[str, Operator] = {
    "where": where,
    "equal": _comparing(np.equal),
    "less": _comparing(np.less),
    "less_equal": _comparing(np.less_equal),
    "logical_and": _comparing(np.logical_and),
    "logical_or": _comparing(np.logical_or),
    "logical_not": _comparing(np.logical_not),
}
