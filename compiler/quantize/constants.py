"""Quantization of constants: weights per channel, biases at the scale of the products."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler.ir.tensor import Quantization
from compiler.quantize.ranges import LEAST_SCALE, affine_of, stored

#: A bias must leave the sums their part of 32 bits.
_MOST_BIAS = 1 << 30
#: A channel's scale is at least such a part of the greatest: what is smaller adds nothing that shows.
_LEAST_PART = 2.0**-20


@dataclass(frozen=True)
class QuantizedConstant:
    """Integers with their quantization."""

    data: NDArray
    quantization: Quantization


def quantized_weights(
    weights: NDArray, axis: int, *, per_channel: bool, bias: NDArray | None, x_scale: float
) -> tuple[QuantizedConstant, QuantizedConstant | None]:
    """Symmetric int8 weights, and the int32 bias at the scale of x times them.

    Parameters
    ----------
    weights : float32 array
    axis : int
        Axis of the output channels.
    per_channel : bool
        Use one scale per output channel; otherwise one scale for all.
    bias : (channels,) float32 array or None
    x_scale : float
        Scale of the activation that is multiplied.
    """
    others = tuple(i for i in range(weights.ndim) if i != axis)
    most = np.abs(weights.astype(np.float64)).max(others)
    most = most if per_channel else np.full_like(most, most.max())
    if bias is not None:
        # A scale so small that the bias would overflow is widened.
        need = np.abs(bias.astype(np.float64)) * 127 / (x_scale * _MOST_BIAS)
        most = np.maximum(most, need if per_channel else need.max())
    floor = max(float(most.max()) * _LEAST_PART, LEAST_SCALE)
    scale = np.maximum(most / 127, floor).astype(np.float32)
    shape = [1] * weights.ndim
    shape[axis] = -1
    steps = np.rint(weights.astype(np.float64) / scale.astype(np.float64).reshape(shape))
    q = _many(scale, axis) if per_channel else Quantization.of(float(scale[0]))
    fixed = QuantizedConstant(np.clip(steps, -127, 127).astype(np.int8), q)
    if bias is None:
        return fixed, None
    product = (np.float32(x_scale) * scale).astype(np.float32)
    steps = np.rint(bias.astype(np.float64) / product.astype(np.float64))
    q = _many(product, 0) if per_channel else Quantization.of(float(product[0]))
    return fixed, QuantizedConstant(np.clip(steps, -_MOST_BIAS, _MOST_BIAS).astype(np.int32), q)


def _many(scale: NDArray[np.float32], axis: int) -> Quantization:
    return Quantization(tuple(float(each) for each in scale), (0,) * len(scale), axis)


def quantized_operand(
    values: NDArray, *, symmetric: bool, like: Quantization | None = None
) -> QuantizedConstant:
    """A constant that is added, multiplied, joined: int8 of one scale, or of a given quantization."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    if like is None and symmetric:
        most = max(-low, high)
        like = Quantization.of(max(most / 127, LEAST_SCALE) if most else 1.0)
    q = like or affine_of(low, high)
    return QuantizedConstant(stored(np.nan_to_num(values), q), q)
