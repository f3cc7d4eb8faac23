"""Sliding windows over images with any number of dimensions, and pooling operators."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.reference.onnx_ops.registry import Array, OnnxNodeSpec, computes
from hw.errors import InputError

#: Limit on the elements of an image with its padding.
_MAX_ELEMENTS = 1 << 27


@dataclass(frozen=True)
class Windows:
    """Window geometry over the spatial dimensions.

    Parameters
    ----------
    kernel, strides, dilations : tuple of int
        Size, stride and dilation of the window in each dimension.
    before, after : tuple of int
        Padding before and after the image in each dimension.
    counts : tuple of int
        Number of windows in each dimension.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    counts: tuple[int, ...]

    def offsets(self) -> Iterator[tuple[int, ...]]:
        """Yield the offsets within a window."""
        return itertools.product(*(range(size) for size in self.kernel))

    def padded(self, x: Array, value: float | int) -> Array:
        """Return an image padded with `value`, and extended to the end of the last windows."""
        widths = [(0, 0), (0, 0)]
        for i, size in enumerate(x.shape[2:]):
            extent = (self.counts[i] - 1) * self.strides[i] + (self.kernel[i] - 1) * self.dilations[i] + 1
            widths.append((self.before[i], max(self.after[i], extent - size - self.before[i])))
        check_room([size + sum(width) for size, width in zip(x.shape, widths, strict=True)])
        return np.pad(x, widths, constant_values=value)

    def taken(self, padded: Array, offset: tuple[int, ...]) -> Array:
        """Return the elements at one offset within all windows."""
        spans = tuple(
            slice(index * d, index * d + (count - 1) * stride + 1, stride)
            for index, d, count, stride in zip(offset, self.dilations, self.counts, self.strides, strict=True)
        )
        return padded[(slice(None), slice(None), *spans)]


def check_room(shape: Sequence[int]) -> None:
    """Check the size of an image, including its padding.

    Raises
    ------
    InputError
        The image would be too large.
    """
    if math.prod(shape) > _MAX_ELEMENTS:
        raise InputError(
            f"with its padding it would have shape {list(shape)}, more than {_MAX_ELEMENTS:,} elements"
        )


def windows(spec: OnnxNodeSpec, sizes: Sequence[int], kernel: Sequence[int]) -> Windows:
    """Return the windows of a node over an image of the given sizes.

    Raises
    ------
    InputError
        The node's attributes do not fit the image.
    """
    rank = len(sizes)
    ones = (1,) * rank
    strides, dilations = tuple(spec.get("strides", ones)), tuple(spec.get("dilations", ones))
    pads = tuple(spec.get("pads", (0,) * (2 * rank)))
    kernel = tuple(int(n) for n in kernel)
    if not len(kernel) == len(strides) == len(dilations) == rank == len(pads) // 2:
        raise InputError(f"kernel_shape, strides, dilations and pads must be of {rank} dimensions")
    if min((*kernel, *strides, *dilations)) < 1:
        raise InputError("kernel_shape, strides and dilations must be positive")
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    auto = spec.text("auto_pad", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    if auto.startswith("SAME"):
        if spec.op.endswith("Pool") and max(dilations) > 1:  # onnxruntime's output sizes differ from ONNX's
            raise InputError(f"auto_pad {auto} of windows with dilations is not defined")
        counts = tuple(-(-size // stride) for size, stride in zip(sizes, strides, strict=True))
        total = [
            max(0, (count - 1) * stride + span - size)
            for count, stride, span, size in zip(counts, strides, spans, sizes, strict=True)
        ]
        less, more = tuple(n // 2 for n in total), tuple(n - n // 2 for n in total)
        before, after = (less, more) if auto == "SAME_UPPER" else (more, less)
        return Windows(kernel, strides, dilations, before, after, counts)
    if auto == "VALID":
        pads = (0,) * (2 * rank)
    before, after = pads[:rank], pads[rank:]
    counts = tuple(
        _count(size, span, stride, first, last, bool(spec.get("ceil_mode", 0)))
        for size, span, stride, first, last in zip(sizes, spans, strides, before, after, strict=True)
    )
    return Windows(kernel, strides, dilations, before, after, counts)


def _count(size: int, span: int, stride: int, before: int, after: int, ceil: bool) -> int:
    """Return the number of windows; with `ceil`, windows that start in the trailing padding are excluded."""
    travel = size + before + after - span
    if travel < 0:
        raise InputError(f"a window of {span} does not fit {size} with its padding")
    if not ceil:
        return travel // stride + 1
    count = math.ceil(travel / stride) + 1
    return count - 1 if (count - 1) * stride >= size + before else count


@computes("MaxPool")
def _max_pool(spec: OnnxNodeSpec, inputs: list[Any]) -> Sequence[Array]:
    """Compute MaxPool: the maximum of each window and, as the second output, its flat index in the tensor."""
    (x,) = inputs
    each = windows(spec, x.shape[2:], spec.get("kernel_shape", ()))
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    padded = each.padded(x, lowest)
    indices = each.padded(_flat_indices(x.shape, columns_first=bool(spec.get("storage_order", 0))), -1)
    best = where = None
    for offset in each.offsets():
        taken = each.taken(padded, offset)
        if best is None:
            best, where = taken.copy(), each.taken(indices, offset).copy() if spec.outputs > 1 else None
            continue
        if where is None:
            np.maximum(best, taken, out=best)
            continue
        here = each.taken(indices, offset)
        better = (taken > best) | ((where < 0) & (here >= 0))
        best, where = np.where(better, taken, best), np.where(better, here, where)
    assert best is not None
    return (best,) if where is None else (best, where)


def _flat_indices(shape: tuple[int, ...], *, columns_first: bool) -> Array:
    """Return the flat index of each element, in column-major order within an image if `columns_first`."""
    order = range(len(shape) - 1, 1, -1) if columns_first else range(2, len(shape))
    inner = np.arange(int(np.prod(shape[2:]))).reshape([shape[i] for i in order])
    if columns_first:
        inner = inner.transpose(range(inner.ndim - 1, -1, -1))
    outer = np.arange(shape[0] * shape[1]).reshape(*shape[:2], *(1,) * inner.ndim) * inner.size
    return outer + inner


@computes("AveragePool")
def _average_pool(spec: OnnxNodeSpec, inputs: list[Any]) -> Sequence[Array]:
    (x,) = inputs
    each = windows(spec, x.shape[2:], spec.get("kernel_shape", ()))
    ones = np.ones((1, 1, *x.shape[2:]), np.float64)
    if spec.get("count_include_pad", 0):
        # The mean includes explicit padding, but not the padding added by ceil_mode.
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
def _lp_pool(spec: OnnxNodeSpec, inputs: list[Any]) -> Sequence[Array]:
    (x,) = inputs
    each, p = windows(spec, x.shape[2:], spec.get("kernel_shape", ())), spec.get("p", 2)
    return ((_sums(each, np.abs(x).astype(np.float64) ** p) ** (1 / p)).astype(x.dtype),)


def _sums(each: Windows, x: Array) -> Array:
    """Compute the sum of each window."""
    padded = each.padded(x, 0)
    total = np.zeros((*x.shape[:2], *each.counts), x.dtype)
    for offset in each.offsets():
        total += each.taken(padded, offset)
    return total
