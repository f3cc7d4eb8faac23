"""Layer class of convolutions and dense operators, and their lowerings."""

from dataclasses import dataclass

from numpy.typing import NDArray

from compiler.ir.graph import times_over
from compiler.ir.identity import identity
from compiler.layers.base import Drain, Layer
from compiler.layers.epilogue_lowering import drain_of, rounding_of, weights_of, zero_of
from compiler.layers.lowering_context import LoweringContext, affine
from hw.isa.enums import Rounding


@identity("ConvLayer", "weights", "drain", "strides", "pads", "dilations", "groups", "x_zp", "w_zp")
@dataclass(frozen=True, kw_only=True, eq=False)
class ConvLayer(Layer):
    """Convolution, or matrix product with constant weights as a 1x1 convolution.

    Parameters
    ----------
    weights : (out_c, kernel_h, kernel_w, in_c of a group) array
        Weights as stored, int8 or uint8.
    drain : Drain
        Requantization and epilogue of the sums.
    strides, dilations : (int, int)
        Vertical and horizontal distance between output pixels, and between kernel elements, in input pixels.
    pads : (int, int, int, int)
        Padding at the top, left, bottom and right, in pixels.
    groups : int
        Number of channel groups.
    x_zp, w_zp : int
        Zero points of input and weights.
    """

    weights: NDArray
    drain: Drain
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)
    groups: int = 1
    x_zp: int = 0
    w_zp: int = 0

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the input and, if there is a residual addition, of the other summand."""
        return (self.x, *([self.drain.residual.tensor] if self.drain.residual else []))


def lower_conv(low: LoweringContext) -> Layer:
    """Lower a convolution with its epilogue."""
    weights, bias = weights_of(low)
    assert weights.data is not None
    a = low.anchor.attributes
    drain = drain_of(low, weights, bias, rounding_of(low, Rounding.DOUBLE))
    common = low.common(*([drain.residual.tensor] if drain.residual else []))
    y = common["shapes"][common["y"]]
    macs = y.h * y.w * weights.elements // times_over(low.graph, low.x.name)
    # Pointwise convolutions can treat the images of a batch as one.
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
    """Lower a dense layer with its epilogue to a convolution with a 1x1 kernel."""
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
