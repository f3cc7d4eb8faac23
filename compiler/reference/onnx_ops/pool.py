"""Pooling over images of any number of dimensions."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.reference.onnx_ops.registry import Array, Asked, computes
from compiler.reference.onnx_ops.windows import Windows, check_room, windows


@computes("MaxPool")
def _max_pool(asked: Asked, inputs: list[Any]) -> Sequence[Array]:
    """MaxPool: the maximum of each window and, as second output, its flat index in the tensor."""
    (x,) = inputs
    each = windows(asked, x.shape[2:], asked.get("kernel_shape", ()))
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    padded = each.padded(x, lowest)
    places = each.padded(_places(x.shape, bool(asked.get("storage_order", 0))), -1)
    best = where = None
    for offset in each.offsets():
        taken = each.taken(padded, offset)
        if best is None:
            best, where = taken.copy(), each.taken(places, offset).copy() if asked.outputs > 1 else None
            continue
        if where is None:
            np.maximum(best, taken, out=best)
            continue
        here = each.taken(places, offset)
        better = (taken > best) | ((where < 0) & (here >= 0))
        best, where = np.where(better, taken, best), np.where(better, here, where)
    assert best is not None
    return (best,) if where is None else (best, where)


def _places(shape: tuple[int, ...], columns_first: bool) -> Array:
    """The number of each element in the whole tensor; within an image by columns, if that is wished."""
    order = range(len(shape) - 1, 1, -1) if columns_first else range(2, len(shape))
    inner = np.arange(int(np.prod(shape[2:]))).reshape([shape[i] for i in order])
    if columns_first:
        inner = inner.transpose(range(inner.ndim - 1, -1, -1))
    outer = np.arange(shape[0] * shape[1]).reshape(*shape[:2], *(1,) * inner.ndim) * inner.size
    return outer + inner


@computes("AveragePool")
def _average_pool(asked: Asked, inputs: list[Any]) -> Sequence[Array]:
    (x,) = inputs
    each = windows(asked, x.shape[2:], asked.get("kernel_shape", ()))
    ones = np.ones((1, 1, *x.shape[2:]), np.float64)
    if asked.get("count_include_pad", 0):
        # The padding counts, and what rounding up adds behind it does not.
        widths = [(0, 0), (0, 0), *zip(each.before, each.after, strict=True)]
        check_room([size + sum(width) for size, width in zip(ones.shape, widths, strict=True)])
        plain = Windows(
            each.kernel,
            each.strides,
            each.dilations,
            (0,) * len(each.kernel),
            (0,) * len(each.kernel),
            each.counts,
        )
        count = _sums(plain, np.pad(ones, widths, constant_values=1))
    else:
        count = _sums(each, ones)
    return ((_sums(each, x.astype(np.float64)) / count).astype(x.dtype),)


@computes("LpPool")
def _lp_pool(asked: Asked, inputs: list[Any]) -> Sequence[Array]:
    (x,) = inputs
    each, p = windows(asked, x.shape[2:], asked.get("kernel_shape", ())), asked.get("p", 2)
    return ((_sums(each, np.abs(x).astype(np.float64) ** p) ** (1 / p)).astype(x.dtype),)


def _sums(each: Windows, x: Array) -> Array:
    """The sum of each window."""
    padded = each.padded(x, 0)
    total = np.zeros((*x.shape[:2], *each.counts), x.dtype)
    for offset in each.offsets():
        total += each.taken(padded, offset)
    return total
