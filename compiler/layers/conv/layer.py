"""The layer of convolutions and dense products."""

from dataclasses import dataclass

from numpy.typing import NDArray

from compiler.ir.identity import identity
from compiler.layers.base import Drain, Layer


@identity("ConvLayer", "weights", "drain", "strides", "pads", "dilations", "groups", "x_zp", "w_zp")
@dataclass(frozen=True, kw_only=True, eq=False)
class ConvLayer(Layer):
    """Convolution, or product with constant weights (kernel 1x1, rows as image rows).

    Parameters
    ----------
    weights : (out_c, kernel_h, kernel_w, in_c of a group) array
        Weights as stored, int8 or uint8.
    drain : Drain
        Requantization and epilogue of the sums.
    strides, dilations : (int, int)
        Vertical and horizontal step between output pixels, and between kernel elements, in input pixels.
    pads : (int, int, int, int)
        Padding at the top, left, bottom and right, in pixels.
    groups : int
        Number of groups of channels.
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
        """x, and the residual's other summand."""
        return (self.x, *([self.drain.residual.tensor] if self.drain.residual else []))
