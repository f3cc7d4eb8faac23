"""Layers: what the machine does in one go, in integers."""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from compiler.ir.identity import identity
from compiler.lower.walk import Copy
from hw.isa.enums import Dtype, Rounding


@identity("Image", "h", "w", "c", "dtype")
@dataclass(frozen=True)
class Image:
    """Shape of a tensor as the machine sees it: rows, columns, channels, and the type of its elements."""

    h: int
    w: int
    c: int
    dtype: Dtype = Dtype.I8


@identity("Residual", "tensor", "stage", "fields")
@dataclass(frozen=True)
class Residual:
    """An addition in the drain.

    Parameters
    ----------
    tensor : str
        The other summand, of the shape and type of the result.
    stage, fields : dict
        Parts of the fuse word, and the other fields of FUSE that it needs.
    """

    tensor: str
    stage: dict[str, int]
    fields: dict[str, int]


@identity("Drain", "bias", "mult", "exponent", "zp", "clip", "rounding", "dtype", "residual", "table")
@dataclass(frozen=True, eq=False)
class Drain:
    """How sums become the integers of the output: one parameter for each channel.

    Parameters
    ----------
    bias, mult, exponent : (channels,) arrays
        Parameters as `compiler.kernels.scaling.param_image` takes them.
    zp : int
        Zero point of the result.
    clip : (int, int)
        Least and greatest result.
    rounding : Rounding
        Of the scaling and of the residual.
    dtype : Dtype
        Type of the result.
    residual : Residual or None
        Added after clipping and table.
    table : (256,) int16 array or None
        Looked up after clipping.
    """

    bias: NDArray[np.int64]
    mult: NDArray[np.int64]
    exponent: NDArray[np.int64]
    zp: int
    clip: tuple[int, int]
    rounding: Rounding
    dtype: Dtype = Dtype.I8
    residual: Residual | None = None
    table: NDArray[np.int16] | None = None

    @property
    def common_scale(self) -> bool:
        """Whether all channels have the same multiplier and exponent."""
        return bool((self.mult == self.mult[0]).all() and (self.exponent == self.exponent[0]).all())

    def part(self, channels: slice) -> "Drain":
        """The drain of some of the channels."""
        return replace(
            self, bias=self.bias[channels], mult=self.mult[channels], exponent=self.exponent[channels]
        )


@identity("Layer", "name", "nodes", "ops", "x", "y", "shapes", "macs", "batch")
@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """One layer.

    Parameters
    ----------
    name : str
        That of its anchor (`compiler.lower.groups.anchor_of`).
    nodes : tuple of str
        Nodes of the graph that it carries out.
    x, y : str
        Tensors it reads and makes.
    shapes : dict
        Image of each tensor it touches.
    macs : int
        Multiply-accumulates by the model's definition.
    batch : int
        Images, one below the other, that have borders of their own.
    """

    name: str
    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    x: str
    y: str
    shapes: dict[str, Image]
    macs: int = 0
    batch: int = 1

    @property
    def inputs(self) -> tuple[str, ...]:
        """Tensors it reads, constants not among them."""
        return (self.x,)


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


@identity("DepthwiseLayer", "weights", "drain", "strides", "pads", "x_zp")
@dataclass(frozen=True, kw_only=True, eq=False)
class DepthwiseLayer(Layer):
    """Convolution of each channel by itself; weights (kernel_h, kernel_w, channels)."""

    weights: NDArray
    drain: Drain
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    x_zp: int = 0


@identity("PoolLayer", "kernel", "strides", "pads", "average", "clip", "x_zp", "scaled")
@dataclass(frozen=True, kw_only=True, eq=False)
class PoolLayer(Layer):
    """Maximum or average of windows.

    Parameters
    ----------
    x_zp : int
        Zero point, where sums are `scaled`; padding is that number then.
    scaled : dict
        Of averages that are sums times a factor: fields of FUSE, by the number of elements that count, which are all of
        the window or those inside the image. Others are sums divided by the number of those inside.
    """

    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    average: bool
    clip: tuple[int, int]
    x_zp: int = 0
    scaled: dict[int, dict[str, int]] = field(default_factory=dict)


@identity("SoftmaxLayer", "scale", "step", "y_zp", "clip")
@dataclass(frozen=True, kw_only=True, eq=False)
class SoftmaxLayer(Layer):
    """Softmax over the channels of each pixel.

    Parameters
    ----------
    scale : float
        Beta times the input's scale.
    step, y_zp : float, int
        Scale and zero point of the result.
    clip : (int, int)
        Least and greatest result.
    """

    scale: float
    step: float
    y_zp: int
    clip: tuple[int, int]


@identity("MoveLayer", "copies", "constants")
@dataclass(frozen=True, kw_only=True, eq=False)
class MoveLayer(Layer):
    """Elements in another order, of one or more tensors.

    Parameters
    ----------
    copies : tuple of Copy
        What goes where; together they write each element of y that is not another layer's once.
    constants : set of str
        The sources that are constants.
    """

    copies: tuple[Copy, ...]
    constants: frozenset[str] = frozenset()

    @property
    def inputs(self) -> tuple[str, ...]:
        """All sources, constants not among them."""
        names = (copy.source for copy in self.copies if copy.source is not None)
        return tuple(name for name in dict.fromkeys(names) if name not in self.constants)
