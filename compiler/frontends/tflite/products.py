"""Products of matrices."""

import numpy as np
import tflite

from compiler.frontends.tflite.registry import Conversion, converts
from compiler.ir.tensor import Tensor


@converts("BATCH_MATMUL")
def _batch_matmul(c: Conversion) -> None:
    """Of two stacks; one matrix of float32 weights is a dense layer, which is quantized channel by channel."""
    options = c.options(tflite.BatchMatMulOptions)
    a, b = c.given(2)[:2]
    if min(len(a.shape), len(b.shape)) < 2:
        raise c.error(f"{list(a.shape)} and {list(b.shape)} are no matrices")
    if options.AdjX():
        a = _turned(c, a, "first")
    weights = b.data is not None and b.dtype == "float32" and b.elements == b.shape[-1] * b.shape[-2]
    if options.AdjY() and not weights:
        b = _turned(c, b, "second")
    k, n = b.shape[-2:][:: -1 if options.AdjY() and weights else 1]
    try:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        batch = None
    if batch is None or a.shape[-1] != k:
        raise c.error(f"no product of {list(a.shape)} and {list(b.shape)}")
    c.expect((*batch, a.shape[-2], n))
    if weights and b.data is not None and len(b.shape) <= len(a.shape):
        matrix = b.data.reshape(b.shape[-2:])
        flat = matrix if options.AdjY() else np.ascontiguousarray(matrix.T)
        c.make("dense", [a, c.build.constant(f"{b.name}:matrix", flat)])
        return
    c.make("matmul", [a, b])


def _turned(c: Conversion, x: Tensor, part: str) -> Tensor:
    """The same matrices with rows for columns."""
    rank = len(x.shape)
    perm = (*range(rank - 2), rank - 1, rank - 2)
    return c.step(part, "transpose", [x], tuple(x.shape[i] for i in perm), perm=perm)
