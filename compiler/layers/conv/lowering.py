"""Lowering of convolutions and dense layers."""

from compiler.ir.rebuild import times_over
from compiler.layers.base import Layer
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.epilogue_lowering import drain_of, rounding_of, weights_of, zero_of
from compiler.layers.lowering_context import LoweringContext, affine
from hw.isa.enums import Rounding


def lower_conv(low: LoweringContext) -> Layer:
    """Layer of a convolution with its epilogue."""
    weights, bias = weights_of(low)
    assert weights.data is not None
    a = low.anchor.attributes
    drain = drain_of(low, weights, bias, rounding_of(low, Rounding.DOUBLE))
    common = low.common(*([drain.residual.tensor] if drain.residual else []))
    y = common["shapes"][common["y"]]
    macs = y.h * y.w * weights.elements // times_over(low.graph, low.x.name)
    # Where every output pixel is one of the input, images need not be told apart.
    apart = weights.shape[1:3] != (1, 1) or a["strides"] != (1, 1) or any(a["pads"])
    return ConvLayer(
        **common,
        macs=macs,
        batch=low.x.shape[0] if apart else 1,
        weights=weights.data,
        drain=drain,
        strides=a["strides"],
        pads=a["pads"],
        dilations=a["dilations"],
        groups=a["groups"],
        x_zp=affine(low.x).zero_point,
        w_zp=zero_of(weights),
    )


def lower_dense(low: LoweringContext) -> Layer:
    """Layer of a dense layer with its epilogue: a convolution with a 1x1 kernel."""
    weights, bias = weights_of(low)
    assert weights.data is not None
    drain = drain_of(low, weights, bias, rounding_of(low, Rounding.AWAY))
    common = low.common(*([drain.residual.tensor] if drain.residual else []))
    rows = common["shapes"][common["x"]]
    macs = rows.h * rows.w * weights.elements // times_over(low.graph, low.x.name)
    return ConvLayer(
        **common,
        macs=macs,
        weights=weights.data[:, None, None, :],
        drain=drain,
        x_zp=affine(low.x).zero_point,
        w_zp=zero_of(weights),
    )
