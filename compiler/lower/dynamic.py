"""Dynamic quantization: scale and zero point follow from the numbers themselves."""

from dataclasses import dataclass

from compiler.ir.identity import identity
from compiler.lower.layer import Layer
from compiler.lower.lowering import Lowering

#: Rows of the accumulator for what is found, beside one for each tile.
ROWS = 16
#: Operators of the graph; each finds the range by itself.
QUANTIZED, SCALE, ZERO = "dynamic_quantize", "dynamic_scale", "dynamic_zero"


@identity("DynamicLayer", "makes")
@dataclass(frozen=True, kw_only=True, eq=False)
class DynamicLayer(Layer):
    """What makes bytes of float32 numbers, their scale, or their zero point: `makes` is the operator."""

    makes: str


def lower_dynamic(low: Lowering) -> Layer:
    """The layer of one of the three operators."""
    return DynamicLayer(**low.common(), makes=low.anchor.op)
