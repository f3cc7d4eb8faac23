"""Elementwise operators as layers: sums and products of tensors, functions of one number by table."""

from typing import cast

from compiler.ir.tensor import Tensor
from compiler.kernels.add import LEFT_SHIFT, raw_fields, residual_fields
from compiler.kernels.mul import mul
from compiler.lower.elementwise_layer import ElementwiseLayer, Spread
from compiler.lower.layer import Layer
from compiler.lower.lowering import Lowering, UnsupportedError, affine, clip_range
from compiler.lower.unary import EIGHT_BITS, is_unary, table_of
from hw.isa.enums import Op, Requant, Rounding

#: How sums are rounded: halves up, or away from zero, or, of float32 numbers, to even.
_SUMS = {"reference": Rounding.DOUBLE, "xnnpack": Rounding.SINGLE, "onnxruntime": Rounding.EVEN}


def lower_unary(low: Lowering) -> Layer:
    """A function of single numbers."""
    node = low.anchor
    if not is_unary(low.graph, node):
        raise UnsupportedError(
            f"{node.op} of {low.x.dtype} tensors quantized channel by channel, or not at all"
        )
    x = next(t for t in low.graph.ins(node) if not t.constant)
    common = low.common(x=x.name)
    return ElementwiseLayer(**common, table=table_of(low.graph, node, low.rounding))


def lower_binary(low: Lowering) -> Layer:
    """A sum, difference or product of two tensors, one of them perhaps spread over the other."""
    graph, node = low.graph, low.anchor
    if is_unary(graph, node):
        return lower_unary(low)
    a, b = graph.ins(node)
    if a.shape != low.y.shape or (a.constant and node.op != "sub"):
        a, b = b, a
        if node.op == "sub":
            raise UnsupportedError("the first operand of a difference must have the shape of the result")
    spread = _spread(a, b, low.y)
    if a.constant or {a.dtype, b.dtype, low.y.dtype} - {*EIGHT_BITS}:
        raise UnsupportedError(f"{node.op} of {a.dtype} and {b.dtype}")
    fields = _product(low, a, b) if node.op == "mul" else _sum(low, a, b, spread)
    return ElementwiseLayer(**low.common(b.name, x=a.name), other=b.name, spread=spread, **fields)


def _spread(a: Tensor, b: Tensor, y: Tensor) -> Spread:
    """How the second operand is laid over the first."""
    if a.shape != y.shape:
        raise UnsupportedError(f"neither operand has the shape {list(y.shape)} of the result")
    padded = (1,) * (len(a.shape) - len(b.shape)) + b.shape
    if padded == a.shape:
        return Spread.ALL
    if all(size == 1 for size in padded[:-1]) and padded[-1] == a.shape[-1]:
        return Spread.CHANNEL
    if all(size == 1 for size in padded):
        return Spread.SCALAR
    if padded[:-1] == a.shape[:-1] and padded[-1] == 1:
        return Spread.PIXEL
    raise UnsupportedError(f"an operand of shape {list(b.shape)} spread over {list(a.shape)}")


def _sum(low: Lowering, a: Tensor, b: Tensor, spread: Spread) -> dict:
    if spread in (Spread.PIXEL, Spread.SCALAR):
        raise UnsupportedError("a summand of one channel spread over several")
    raw = low.rounding == "xnnpack"
    fields = dict(
        cast(dict[str, int], (raw_fields if raw else residual_fields)(affine(a), affine(b), affine(low.y)))
    )
    if low.anchor.op == "sub":
        fields["r_mult"] = -fields["r_mult"]
    clip = clip_range(low.y)
    rounding = _SUMS[low.rounding]
    return {
        "stream": "r", "src": {"rounding": rounding},
        "stage": {"r_raw": int(raw), "r_ls": 0 if raw else LEFT_SHIFT},
        "fields": {**fields, "r_lo": clip[0], "r_hi": clip[1]},
    }  # fmt: skip


def _product(low: Lowering, a: Tensor, b: Tensor) -> dict:
    rounding = Rounding.DOUBLE if low.rounding == "reference" else Rounding.EVEN
    how = mul(affine(a), affine(b), affine(low.y), rounding=rounding)
    clip = clip_range(low.y)
    return {
        "stream": "b", "src": {"op": Op.MUL, "requant": Requant.IMM, "rounding": rounding},
        "fields": {
            "zp_ab": how.zp_ab, "mult": how.mult, "shifts": how.shifts, "zp": how.zp, "clip_lo": clip[0],
            "clip_hi": clip[1],
        },
    }  # fmt: skip
