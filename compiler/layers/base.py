"""Base class of layers; layers are the units of scheduling and code generation, and their tensors are integers."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from compiler.ir.identity import identity
from compiler.util.tiles import ceil_div
from hw.isa.enums import Dtype, Rounding


@identity("Image", "h", "w", "c", "dtype")
@dataclass(frozen=True)
class Image:
    """Shape of a tensor as rows, columns and channels, with the type of its elements."""

    h: int
    w: int
    c: int
    dtype: Dtype = Dtype.I8


@identity("Residual", "tensor", "stage", "fields")
@dataclass(frozen=True)
class Residual:
    """Addition of a second tensor in the epilogue of a layer.

    Parameters
    ----------
    tensor : str
        Name of the other summand, which has the shape and type of the result.
    stage, fields : dict
        Fields of the fuse word for the addition, and the other FUSE fields that it needs.
    """

    tensor: str
    stage: dict[str, int]
    fields: dict[str, int]


@identity("Addend")
@dataclass(frozen=True)
class Addend(Residual):
    """Addition of a second int32 tensor to the sums, before they are requantized."""


@identity(
    "Drain",
    "bias",
    "mult",
    "exponent",
    "zp",
    "clip",
    "rounding",
    "dtype",
    "residual",
    "table",
    "negative",
    added=("negative",),
)
@dataclass(frozen=True, eq=False)
class Drain:
    """Requantization of sums to the integers of the output, with one set of parameters for each channel.

    Parameters
    ----------
    bias, mult, exponent : (channels,) arrays
        Parameters of each channel, as passed to `compiler.util.scaling.param_image`.
    zp : int
        Zero point of the output.
    clip : (int, int)
        Smallest and largest stored result.
    rounding : Rounding
        Rounding mode of the scaling and of the residual addition.
    dtype : Dtype
        Type of the result.
    residual : Residual or None
        Addition after clipping and table lookup or, for an Addend, before requantization.
    table : (256,) int16 array or None
        Lookup table applied after clipping.
    negative : pair of (channels,) arrays, or None
        Multiplier and exponent of each channel for sums below zero, if they differ from those of other sums.
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
    negative: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    @property
    def common_scale(self) -> bool:
        """True if all channels have the same multiplier and exponent, and operand B is free for the biases."""
        return not isinstance(self.residual, Addend) and bool(
            (self.mult == self.mult[0]).all() and (self.exponent == self.exponent[0]).all()
        )

    def part(self, channels: "slice | NDArray[np.int64]") -> "Drain":
        """Return the drain of some channels, in the given order."""
        return replace(
            self,
            bias=self.bias[channels],
            mult=self.mult[channels],
            exponent=self.exponent[channels],
            negative=self.negative and (self.negative[0][channels], self.negative[1][channels]),
        )

    def padded(self, size: int, n: int) -> "Drain":
        """Return the drain with the parameters of each block of `size` channels padded to `n` channels."""
        if size == n:
            return self
        count = len(self.bias)
        blocks = np.arange(ceil_div(count, size)) * size
        lanes = np.minimum(np.arange(n), size - 1)  # padding repeats parameters, which are then valid
        return self.part(np.minimum(blocks[:, None] + lanes, count - 1).reshape(-1))


@identity("Layer", "name", "nodes", "ops", "x", "y", "shapes", "macs", "batch")
@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """Base class of all layers.

    Parameters
    ----------
    name : str
        Identity of the layer, given when it is formed and unique in the model: keys of schedules, counter tags,
        measurements, generators and fusion opportunities are these names (`compiler.layers.lowering_context`).
    nodes : tuple of str
        Names of the graph nodes that the layer executes.
    x, y : str
        Names of the tensors that the layer reads and writes.
    shapes : dict
        Image shape of each tensor that the layer reads or writes, by name.
    macs : int
        Number of multiply-accumulate operations of the model's operator.
    batch : int
        Number of vertically stacked images, each of which has its own padding.
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
        """Names of the tensors that the layer reads, excluding constants."""
        return (self.x,)
