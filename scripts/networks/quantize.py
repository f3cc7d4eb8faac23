"""Post-training quantization to int8: scales and zero points from observed ranges."""

from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Affine:
    """Affine int8 quantization: value = scale * (q - zero_point)."""

    scale: float
    zero_point: int

    @staticmethod
    def of_values(values: Array) -> "Affine":
        """Return the quantization with the smallest scale that covers the values and represents zero exactly."""
        low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
        scale = float(np.float32((high - low) / 255))
        return Affine(scale, int(np.clip(round(-128 - low / scale), -128, 127)))


def quantize_weight(weight: Array) -> tuple[Array, Array]:
    """Quantize weights to symmetric int8 (-127..127), with a float32 scale per output channel (first axis)."""
    flat = np.abs(weight).reshape(len(weight), -1)
    scale = (np.maximum(flat.max(axis=1), 1e-12) / 127).astype(np.float32)
    shape = (-1,) + (1,) * (weight.ndim - 1)
    return np.clip(np.rint(weight / scale.reshape(shape)), -127, 127).astype(np.int8), scale


def quantize_bias(bias: Array, input_scale: float, weight_scale: Array) -> tuple[Array, Array]:
    """Quantize a bias to int32 with the scale of the products; return the quantized bias and the scale."""
    scale = np.float32(input_scale) * weight_scale
    return np.rint(bias / scale).astype(np.int32), scale
