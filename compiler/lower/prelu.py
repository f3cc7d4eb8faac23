"""PReLU: each channel, or each element, has a slope of its own below zero."""

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from compiler.host import Kernels, run_node
from compiler.ir.graph import Graph, Node
from compiler.ir.identity import identity
from compiler.ir.tensor import Tensor
from compiler.kernels.scaling import quantize_multiplier
from compiler.lower.elementwise_layer import ElementwiseLayer
from compiler.lower.lowering import DTYPES, Lowering, UnsupportedError, affine, clip_range
from cosim.golden.scale import scale
from hw.isa.enums import Dtype, Rounding

_Ints = NDArray[np.int64]
_MOST = (1 << 15) - 1


@identity(
    "PReluLayer", "slopes", "slope_dtype", "x_zp", "slope_zp", "y_zp", "positive", "negative", "rounding", "clip"
)  # fmt: skip
@dataclass(frozen=True, kw_only=True, eq=False)
class PReluLayer(ElementwiseLayer):
    """The sum of x above zero, scaled, and of x below zero times its slope, scaled.

    Parameters
    ----------
    slopes : (channels,) or (pixels, channels) array
        As they are stored, of `slope_dtype`; of each channel, or of each element.
    x_zp, slope_zp, y_zp : int
        Zero points.
    positive, negative : (int, int)
        Multiplier and exponent of either summand.
    rounding : Rounding
        Of both.
    clip : (int, int)
        Least and greatest result.
    """

    slopes: NDArray
    slope_dtype: Dtype
    x_zp: int
    slope_zp: int
    y_zp: int
    positive: tuple[int, int]
    negative: tuple[int, int]
    rounding: Rounding
    clip: tuple[int, int]


def lower_prelu(low: Lowering) -> PReluLayer:
    """The first rounding with which the layer gives what the host's operator gives, for all values and slopes.

    Raises
    ------
    UnsupportedError
        Slopes are not constant, or there is no such rounding.
    """
    x, slope = low.graph.ins(low.anchor)
    y, channels = low.y, low.x.shape[-1] if low.x.shape else 1
    if slope.data is None:
        raise UnsupportedError("its slopes are no constants")
    given, factor = affine(x), affine(slope)
    ratio = given.scale / affine(y).scale
    fields = {
        "slopes": _slopes(slope.data, low.x.shape, channels),
        "slope_dtype": DTYPES[slope.dtype], "x_zp": given.zero_point, "slope_zp": factor.zero_point,
        "y_zp": affine(y).zero_point, "positive": quantize_multiplier(ratio),
        "negative": quantize_multiplier(ratio * factor.scale), "clip": clip_range(y),
    }  # fmt: skip
    for rounding in (Rounding.DOUBLE, Rounding.EVEN, Rounding.AWAY, Rounding.SINGLE):
        layer = PReluLayer(**low.common(), **fields, rounding=rounding)
        if _same(low, layer, slope):
            return layer
    raise UnsupportedError(f"no rounding of the machine is that of {low.rounding}")


def _slopes(slope: NDArray, shape: tuple[int, ...], channels: int) -> NDArray:
    """One slope for each channel, or where those of pixels differ, for each element."""
    if slope.size == 1 or (slope.size, slope.shape[-1]) == (channels, channels):
        return np.ascontiguousarray(np.broadcast_to(slope.reshape(-1), channels))
    return np.ascontiguousarray(np.broadcast_to(slope, shape)).reshape(-1, channels)


def _same(low: Lowering, layer: PReluLayer, slope: Tensor) -> bool:
    """Whether a layer gives what the operator gives, for every value with every slope."""
    limits, kinds = np.iinfo(low.x.dtype), np.unique(layer.slopes)
    every = np.arange(limits.min, limits.max + 1).astype(low.x.dtype)
    x = every.astype(np.int64)[:, None] - layer.x_zp
    product = np.minimum(x, 0) * (kinds.astype(np.int64) - layer.slope_zp)
    above = np.clip(scale(x, *layer.positive, 0, layer.rounding), 0, _MOST)
    below = np.clip(scale(product, *layer.negative, 0, layer.rounding), -_MOST, _MOST)
    found = np.clip(above + below + layer.y_zp, *layer.clip)
    return np.array_equal(found, _wanted(low, slope, kinds, every))


def _wanted(low: Lowering, slope: Tensor, kinds: NDArray, every: NDArray) -> NDArray:
    """What the operator makes of every value (rows) with every slope (columns)."""
    graph, shape = Graph(low.graph.name), (every.size, kinds.size)
    graph.add_input(Tensor("x", shape, low.x.dtype, low.x.quantization))
    graph.add_tensor(Tensor("slope", kinds.shape, slope.dtype, slope.quantization, kinds))
    graph.add_tensor(Tensor("y", shape, low.y.dtype, low.y.quantization))
    node = graph.add_node(Node(low.anchor.name, "prelu", ("x", "slope"), ("y",)))
    values = [np.ascontiguousarray(np.broadcast_to(every[:, None], shape)), kinds]
    return run_node(graph, node, values, rounding=cast(Kernels, low.rounding))[0]
