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
    x_zp, w_zp : int
        Zero points.
    pads : (int, int, int, int)
        Top, left, bottom, right.
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
