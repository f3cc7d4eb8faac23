"""Further elementwise layers: bytes of int16 activations and sums of their products, comparisons, and selections.

`compiler.passes.split_bytes` adds the operators on bytes; `compiler.passes.canonicalize` prepares the others.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph, Node
from compiler.ir.ops import COMPARISONS, ORDERING
from compiler.ir.tensor import Tensor, same_values
from compiler.layers.base import Drain, Layer
from compiler.layers.elementwise import (
    BroadcastRows,
    ElementwiseLayer,
    broadcast_of,
    lower_unary,
    operands_of,
)
from compiler.layers.epilogue_lowering import scales_of_sum
from compiler.layers.layer_kind import ALL, BYTES, ElementTypes, Lowering
from compiler.layers.lowering_context import (
    EIGHT_BITS,
    LoweringContext,
    UnsupportedLoweringError,
    affine,
    is_unary,
    values_of,
)
from compiler.reference import run_node
from compiler.reference.elementwise import rounds_operands
from compiler.util.scaling import Affine, bytes_word, halves_word
from hw.isa.enums import Op, Requant, Rounding

#: Exponent with which a multiplier of 1 divides by 256, and half of the divisor.
_EXPONENT, _HALF = 31 - 8, 1 << 7


def lower_high_byte(low: LoweringContext) -> Layer:
    """Lower the high byte of int16 values: a division by 256, with half of the divisor subtracted first."""
    src = {"requant": Requant.IMM, "rounding": Rounding.SINGLE}
    fields = {"mult": 1, "shifts": bytes_word(_EXPONENT), "zp_ab": halves_word(_HALF, 0)}
    return ElementwiseLayer(**low.common(), src=src, fields=fields)


def lower_low_byte(low: LoweringContext) -> Layer:
    """Lower the low byte of int16 values: an entry of a table, whose index is the low byte."""
    return ElementwiseLayer(**low.common(), table=np.arange(256, dtype=np.int16))


def lower_requantize_sum(low: LoweringContext) -> Layer:
    """Lower the sum of two int32 tensors and its requantization.

    Raises
    ------
    UnsupportedLoweringError
        The sum does not fit 32 bits, or FUSE does not round it exactly as LiteRT's kernel does.
    """
    node = low.anchor
    (rounding, pairs), how, other = scales_of_sum(node), node.attributes, node.inputs[1]
    common, zero = low.common(other), affine(low.y).zero_point
    if len(pairs) == 1:
        ((mult, exponent),) = pairs
        src = {"op": Op.ADD, "requant": Requant.IMM, "rounding": rounding}
        fields = {"mult": mult, "shifts": bytes_word(exponent), "zp": zero}
        fields |= {"clip_lo": how["low"], "clip_hi": how["high"]}
        return ElementwiseLayer(**common, other=other, src=src, fields=fields)
    mults, exponents = (np.array(each, np.int64) for each in zip(*pairs, strict=True))
    clip = how["low"], how["high"]
    drain = Drain(np.zeros(len(pairs), np.int64), mults, exponents, zero, clip, rounding)
    fields = {"zp": zero, "clip_lo": clip[0], "clip_hi": clip[1]}
    return ElementwiseLayer(**common, other=other, src={"op": Op.ADD}, fields=fields, drain=drain)


#: Exponent with which a multiplier of 1 leaves a value unchanged.
_SAME = 31
_BOOL = ("bool",)
#: Maximum magnitude of the multipliers of a comparison, so that the difference of two products fits int32.
_MAX_FACTOR = 1 << 21


def _operands(low: LoweringContext, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, BroadcastRows]:
    """Return the operand with the shape of the result, the other operand, and how the latter is broadcast."""
    found = operands_of(a, b, low.y.shape)
    if found is not None:
        return found
    shapes = f"{list(a.shape)} and {list(b.shape)}"
    raise UnsupportedLoweringError(f"operands of shapes {shapes} for {list(low.y.shape)}")


def lower_logic(low: LoweringContext) -> Layer:
    """Lower a comparison, or a function of booleans.

    A comparison is a difference clipped to 0..1. Operands of one quantization are compared as they are stored.
    Operands of two scales are multiplied by integers first; these are tried on all pairs of 8-bit values.

    Raises
    ------
    UnsupportedLoweringError
        The result is a single element, such as the condition of a branch; or the operands have different types, or
        scales whose ratio no pair of multipliers reproduces exactly.
    """
    node = low.anchor
    if low.y.elements == 1:
        raise UnsupportedLoweringError("the host computes single conditions")
    if is_unary(low.graph, node):
        return lower_unary(low)
    a, b = low.graph.ins(node)
    x, other, how = _operands(low, a, b)
    common: dict[str, Any] = {**low.common(other.name, x=x.name), "other": other.name, **vars(how)}
    src = {"requant": Requant.IMM, "rounding": Rounding.SINGLE}
    fields = {"mult": 1, "shifts": bytes_word(_SAME, _SAME), "clip_lo": 0, "clip_hi": 1}
    if node.op not in COMPARISONS:
        return ElementwiseLayer(
            **common, src={**src, "op": Op.MUL if node.op == "logical_and" else Op.ADD}, fields=fields
        )
    sign = -1 if x is a else 1  # of x - other
    if same_values(a.quantization, b.quantization) and (a.dtype == b.dtype or _both_bytes(a, b)):
        if (
            rounds_operands(node.op, (a, b), low.rounding) and _affine(a).scale < 1 / 256
        ):  # equal if less apart
            raise UnsupportedLoweringError(f"{node.op} of values that are rounded to multiples of 1/256")
        if node.op == "equal":
            parts = {"mult": -1, "neg_mult": 1, "zp": 1}
            return ElementwiseLayer(**common, src={**src, "op": Op.SUB, "neg_en": 1}, fields=fields | parts)
        parts = {"mult": sign, "zp": int(node.op == "less_equal")}
        return ElementwiseLayer(**common, src={**src, "op": Op.SUB}, fields=fields | parts)
    if not _both_bytes(a, b):
        raise UnsupportedLoweringError(f"{node.op} of {a.dtype} and {b.dtype} values of different scales")
    return _compared(low, x, other, sign, common)


def _both_bytes(a: Tensor, b: Tensor) -> bool:
    return a.dtype in EIGHT_BITS and b.dtype in EIGHT_BITS


def _compared(low: LoweringContext, x: Tensor, other: Tensor, sign: int, common: dict[str, Any]) -> Layer:
    """Lower a comparison of two 8-bit tensors of different scales."""
    op, factors = low.anchor.op, _factors(low, x, other)
    zeros = [_affine(tensor).zero_point for tensor in (x, other)]
    fields = {
        "zp_xr": halves_word(*zeros),
        "x_mult": sign * factors[0],
        "r_mult": -sign * factors[1],
        "o_mult": 1,
        "r_shifts": bytes_word(0, 0, _SAME),
        "o_zp": int(op == "less_equal"),
        "r_lo": -int(op == "equal"),
        "r_hi": 1,
    }
    stage, table = {"r_raw": 1, "r_ls": 0}, None
    if op == "equal":
        stage |= {"table": 0, "table2": 1}
        table = np.zeros(256, np.int16)
        table[0] = 1
    return ElementwiseLayer(
        **common, stream="r", src={"rounding": Rounding.SINGLE}, stage=stage, fields=fields, table=table
    )


def _affine(tensor: Tensor) -> Affine:
    """Return the scale and zero point of a tensor; plain integers represent their own values."""
    return Affine(1.0, 0) if tensor.quantization is None else affine(tensor)


#: Comparisons of a difference with zero.
_OF_DIFFERENCE = {"less": np.less, "less_equal": np.less_equal, "equal": np.equal}


def _factors(low: LoweringContext, x: Tensor, other: Tensor) -> tuple[int, int]:
    """Return multipliers of two tensors with which the comparison of any two values gives the reference's result."""
    scales = [_affine(tensor) for tensor in (x, other)]
    every = [values_of(x.dtype).reshape(-1, 1), values_of(other.dtype).reshape(1, -1)]
    centred = [values.astype(np.int64) - how.zero_point for values, how in zip(every, scales, strict=True)]
    wanted = _compared_values(low, (x, other), every)
    sign = 1 if low.graph.ins(low.anchor)[0] is x else -1
    for first, second in _ratios(scales[0].scale, scales[1].scale):
        difference = sign * (centred[0] * first - centred[1] * second)
        if np.array_equal(_OF_DIFFERENCE[low.anchor.op](difference, 0), wanted):
            return first, second
    raise UnsupportedLoweringError(
        f"no integers reproduce a comparison of values with scales {scales[0].scale:.6g} and {scales[1].scale:.6g}"
    )


def _compared_values(low: LoweringContext, tensors: Sequence[Tensor], values: Sequence[NDArray]) -> NDArray:
    """Return the result of the comparison for stored values that are broadcast, according to the reference."""
    small, node = Graph(low.graph.name), low.anchor
    for tensor, each in zip(tensors, values, strict=True):
        small.add_input(Tensor(tensor.name, each.shape, tensor.dtype, tensor.quantization))
    shape = np.broadcast_shapes(*(each.shape for each in values))
    small.add_tensor(Tensor(low.y.name, shape, low.y.dtype, low.y.quantization))
    copy = small.add_node(Node(node.name, node.op, node.inputs, (low.y.name,), node.attributes))
    given = {tensor.name: each for tensor, each in zip(tensors, values, strict=True)}
    (found,) = run_node(small, copy, [given[name] for name in node.inputs], rounding=low.rounding)  # type: ignore[arg-type]
    return found


def _ratios(a: float, b: float) -> Iterator[tuple[int, int]]:
    """Yield pairs of integers whose ratio approximates a / b."""
    inverse, ratio = a > b, Fraction(min(a, b)) / Fraction(max(a, b))
    for limit in (1, 1 << 8, 1 << 12, 1 << 16, _MAX_FACTOR):
        near = ratio.limit_denominator(limit)
        if near:
            less, more = near.numerator, near.denominator
            yield (more, less) if inverse else (less, more)


def lower_where(low: LoweringContext) -> Layer:
    """Lower a selection between a tensor and a scalar constant, both in the quantization of the result.

    The result is (x - k) * c + k, or with 1 - c in place of c, where k is the constant and c the condition.

    Raises
    ------
    UnsupportedLoweringError
        Neither value is a scalar constant, or a value has another quantization than the result.
    """
    if is_unary(low.graph, low.anchor):
        return lower_unary(low)
    condition, *values = low.graph.ins(low.anchor)
    for value in values:
        if value.dtype != low.y.dtype or not same_values(value.quantization, low.y.quantization):
            raise UnsupportedLoweringError(
                "a choice between values that have another quantization than the result"
            )
    constants = [i for i, value in enumerate(values) if value.data is not None and value.data.size == 1]
    if not constants:
        raise UnsupportedLoweringError("a choice between two tensors")
    number = int(values[constants[0]].data.reshape(()))  # type: ignore[union-attr]
    chosen, inverse = values[1 - constants[0]], constants[0] == 0
    x, other, how = _operands(low, chosen, condition)
    zeros = [int(inverse) if tensor is condition else number for tensor in (x, other)]
    limits = np.iinfo(low.y.dtype)
    return ElementwiseLayer(
        **low.common(other.name, x=x.name),
        other=other.name,
        **vars(how),
        src={"op": Op.MUL, "requant": Requant.IMM, "rounding": Rounding.SINGLE},
        fields={
            "zp_ab": halves_word(*zeros),
            "mult": -1 if inverse else 1,
            "shifts": bytes_word(_SAME),
            "zp": number,
            "clip_lo": int(limits.min),
            "clip_hi": int(limits.max),
        },
    )


#: Maximum number of positions along an axis, which a key contains as a byte.
MAX_POSITIONS = 256
#: Maximum number of elements that are selected one after the other.
MAX_SELECTED = 8


def lower_ordering(low: LoweringContext) -> Layer:
    """Reject an operator that `compiler.passes.canonicalize` could not express by keys.

    Raises
    ------
    UnsupportedLoweringError
        Always; the message is the reason.
    """
    x, how = low.x, low.anchor.attributes
    if x.dtype not in EIGHT_BITS or (x.quantization is not None and not x.quantization.whole):
        raise UnsupportedLoweringError(f"the host orders {x.dtype} values")
    if how.get("k", 0) > MAX_SELECTED:
        raise UnsupportedLoweringError(f"{how['k']} elements, more than {MAX_SELECTED}")
    size = x.shape[how["axis"]] if x.shape else 0
    raise UnsupportedLoweringError(f"positions along {size:,} elements, more than {MAX_POSITIONS}")


#: Half of the range of 8-bit integers.
_HALF_RANGE = 128


def lower_index_key(low: LoweringContext) -> Layer:
    """Lower keys of 8-bit integers: 256 times the integer, counted from the middle of its range, plus the position."""
    x, positions = low.graph.ins(low.anchor)
    how = broadcast_of(positions.shape, x.shape)
    if how is None or x.shape != low.y.shape:
        raise UnsupportedLoweringError(f"positions {list(positions.shape)} of {list(x.shape)}")
    least = low.anchor.attributes["least"]
    fields = {
        "zp_xr": halves_word(_HALF_RANGE if x.dtype == "uint8" else 0, 0),
        "x_mult": -256 if least else 256,
        "r_mult": 1,
        "o_mult": 1,
        "r_shifts": bytes_word(0, 0, _SAME),
        "o_zp": -256 if least else 0,
    }
    return ElementwiseLayer(
        **low.common(positions.name),
        other=positions.name,
        **vars(how),
        stream="r",
        src={"rounding": Rounding.SINGLE},
        stage={"r_raw": 1, "r_ls": 0},
        fields=fields,
    )


def lower_key_index(low: LoweringContext) -> Layer:
    """Lower the position that a key contains: an entry of a table, whose index is the key's low byte.

    Raises
    ------
    UnsupportedLoweringError
        The result is int64.
    """
    if low.y.dtype == "int64":
        raise UnsupportedLoweringError("the host widens indices to int64")
    table = np.arange(256, dtype=np.int16)
    return ElementwiseLayer(
        **low.common(), table=table[::-1].copy() if low.anchor.attributes["reversed"] else table
    )


LOWERINGS = {
    "high_byte": Lowering(lower_high_byte, ElementTypes((("int16",),), ("int8",))),
    "low_byte": Lowering(lower_low_byte, ElementTypes((("int16",),), ("uint8",))),
    **dict.fromkeys(
        COMPARISONS,
        Lowering(lower_logic, ElementTypes(((*BYTES, "int16", "bool"),), _BOOL)),
    ),
    **dict.fromkeys(
        ("logical_and", "logical_or", "logical_not"), Lowering(lower_logic, ElementTypes((_BOOL,), _BOOL))
    ),
    **dict.fromkeys(ORDERING, Lowering(lower_ordering, ElementTypes((None,), (*ALL, "int64")))),
    "index_key": Lowering(lower_index_key, ElementTypes((BYTES, ("int16",)), ("int16",))),
    "key_index": Lowering(lower_key_index, ElementTypes((("int16",),), ("uint8", "int32", "int64"))),
    "where": Lowering(lower_where, ElementTypes((_BOOL, (*BYTES, "int16")), (*BYTES, "int16"))),
    "requantize_sum": Lowering(
        lower_requantize_sum, ElementTypes((("int32",), ("int32",), None), ("int16",))
    ),
}
