"""Elementwise operators as layers: sums and products of tensors, functions of one number by table."""

from typing import cast

from compiler.ir.tensor import Tensor
from compiler.kernels.add import LEFT_SHIFT, raw_fields, residual_fields
from compiler.kernels.mul import mul
from compiler.lower.elementwise_layer import ElementwiseLayer, laid_over
from compiler.lower.layer import Layer
from compiler.lower.lowering import Lowering, UnsupportedError, affine, clip_range
from compiler.lower.unary import is_unary, table_of
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
    turned = a.shape != low.y.shape or a.constant
    if turned:
        a, b = b, a
    spread = laid_over(node.op, b.shape, a.shape) if a.shape == low.y.shape else None
    if spread is None:
        shapes = [list(tensor.shape) for tensor in graph.ins(node)]
        raise UnsupportedError(f"operands of shapes {shapes[0]} and {shapes[1]} for {list(low.y.shape)}")
    if a.constant:
        raise UnsupportedError(f"{node.op} of a constant and a smaller tensor")
    fields = _product(low, a, b) if node.op == "mul" else _sum(low, a, b, turned=turned)
    return ElementwiseLayer(**low.common(b.name, x=a.name), other=b.name, spread=spread, **fields)


def _sum(low: Lowering, a: Tensor, b: Tensor, *, turned: bool) -> dict:
    """A sum or difference; the operands are `turned` if the node's second one is a."""
    raw = low.rounding == "xnnpack"
    fields = dict(
        cast(dict[str, int], (raw_fields if raw else residual_fields)(affine(a), affine(b), affine(low.y)))
    )
    if low.anchor.op == "sub":
        negative = "x_mult" if turned else "r_mult"
        fields[negative] = -fields[negative]
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
