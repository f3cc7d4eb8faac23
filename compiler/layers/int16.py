"""Bytes of int16 activations, and sums of the products of these bytes (`compiler.passes.split_bytes`)."""

import numpy as np

from compiler.layers.base import Drain, Layer
from compiler.layers.elementwise import ElementwiseLayer
from compiler.layers.epilogue_lowering import scales_of_sum
from compiler.layers.layer_kind import ElementTypes, Lowering
from compiler.layers.lowering_context import LoweringContext, affine
from compiler.util.scaling import bytes_word, halves_word
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


LOWERINGS = {
    "high_byte": Lowering(lower_high_byte, ElementTypes((("int16",),), ("int8",))),
    "low_byte": Lowering(lower_low_byte, ElementTypes((("int16",),), ("uint8",))),
    "requantize_sum": Lowering(
        lower_requantize_sum, ElementTypes((("int32",), ("int32",), None), ("int16",))
    ),
}
