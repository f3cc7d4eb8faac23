"""TFLite models of single operators with weights."""

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from tests.numerics.litert import Tensor, pack, tensor


def weighted(
    operator: int, options, x: Tensor, weights: np.ndarray, scales, bias: np.ndarray, y: Tensor, axis: int
) -> bytes:
    """Return a .tflite file with one operator that has int8 weights, scales per channel along `axis`, and an int32
    bias.
    """
    int8, int32 = schema.TensorType.INT8, schema.TensorType.INT32
    zeros = [0] * len(scales)
    bias_scales = np.float32(x.scale) * np.asarray(scales, np.float32)
    tensors = [
        tensor("x", x.shape, int8, [x.scale], [x.zero]),
        tensor("w", weights.shape, int8, scales, zeros, 1, axis),
        tensor("b", bias.shape, int32, bias_scales, zeros, 2),
        tensor("y", y.shape, int8, [y.scale], [y.zero]),
    ]
    constants = (weights.astype(np.int8), bias.astype("<i4"))
    return pack(operator, options, tensors, 1, constants, version=3)
