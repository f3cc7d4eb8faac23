"""Sliding windows over images with any number of dimensions: pools, convolutions; and integer matrix products."""

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


def _convolved(spec: OnnxNodeSpec, x: Array, w: Array) -> Array:
    """Compute the sums of products of a convolution, without bias."""
    groups = spec.get("group", 1)
    each = windows(spec, x.shape[2:], w.shape[2:])
    padded, sums = each.padded(x, 0), np.zeros((x.shape[0], w.shape[0], *each.counts), x.dtype)
    inputs, outputs = x.shape[1] // groups, w.shape[0] // groups
    for offset in each.offsets():
        taken = each.taken(padded, offset)
        for group in range(groups):
            part = taken[:, group * inputs : (group + 1) * inputs]
            span = slice(group * outputs, (group + 1) * outputs)
            sums[:, span] += np.moveaxis(np.tensordot(part, w[(span, slice(None), *offset)], (1, 1)), -1, 1)
    return sums


def _channels(values: Array, rank: int) -> Array:
    """Reshape values per output channel to broadcast along dimension 1."""
    return values.reshape(-1, *(1,) * (rank - 2))


@computes("Conv")
def _conv(spec: OnnxNodeSpec, inputs: list[Any]) -> Sequence[Array]:
    x, w, bias = [*inputs, None][:3]
    sums = _convolved(spec, x.astype(np.float64), w.astype(np.float64))
    return ((sums if bias is None else sums + _channels(bias, x.ndim)).astype(x.dtype),)


@computes("ConvTranspose")
def _conv_transpose(spec: OnnxNodeSpec, inputs: list[Any]) -> Sequence[Array]:
    """Compute a transposed convolution: add a multiple of the kernel for each input element, then crop the padding."""
    x, w, bias = [*inputs, None][:3]
    rank, groups = x.ndim - 2, spec.get("group", 1)
    ones = (1,) * rank
    strides, dilations = spec.get("strides", ones), spec.get("dilations", ones)
    extra = spec.get("output_padding", (0,) * rank)
    spans = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    whole = [(n - 1) * s + span for n, s, span in zip(x.shape[2:], strides, spans, strict=True)]
    before, sizes = _cut(spec, x.shape[2:], whole, strides, extra)
    room = [max(a, b + n) for a, b, n in zip(whole, before, sizes, strict=True)]
    check_room((x.shape[0], w.shape[1] * groups, *room))
    made = np.zeros((x.shape[0], w.shape[1] * groups, *room))
    inputs_, outputs = x.shape[1] // groups, w.shape[1]
    for offset in np.ndindex(*w.shape[2:]):
        where = tuple(
            slice(o * d, o * d + (n - 1) * s + 1, s)
            for o, d, n, s in zip(offset, dilations, x.shape[2:], strides, strict=True)
        )
        for group in range(groups):
            span = slice(group * inputs_, (group + 1) * inputs_)
            part = np.tensordot(x[:, span].astype(np.float64), w[(span, slice(None), *offset)], (1, 0))
            chosen = slice(group * outputs, (group + 1) * outputs)
            made[(slice(None), chosen, *where)] += np.moveaxis(part, -1, 1)
    kept = tuple(slice(b, b + n) for b, n in zip(before, sizes, strict=True))
    made = made[(slice(None), slice(None), *kept)]
    return ((made if bias is None else made + _channels(bias, x.ndim)).astype(x.dtype),)


def _cut(
    spec: OnnxNodeSpec,
    shape: Sequence[int],
    whole: Sequence[int],
    strides: Sequence[int],
    extra: Sequence[int],
) -> tuple[list[int], list[int]]:
    """Return the number of elements cropped at the start of each dimension, and the number that remains."""
    rank, auto = len(whole), spec.text("auto_pad", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    wanted = spec.get("output_shape", None)
    if wanted is None and auto.startswith("SAME"):
        wanted = [min(n * s, size) for n, s, size in zip(shape, strides, whole, strict=True)]
    if wanted is None:
        pads = spec.get("pads", (0,) * (2 * rank)) if auto == "NOTSET" else (0,) * (2 * rank)
        ends = zip(whole, pads[:rank], pads[rank:], extra, strict=True)
        return list(pads[:rank]), [n - first - last + more for n, first, last, more in ends]
    sizes = [int(n) for n in wanted][-rank:]
    total = [max(0, n + more - size) for n, more, size in zip(whole, extra, sizes, strict=True)]
    first = [n // 2 if auto == "SAME_UPPER" else n - n // 2 for n in total]
    return first, sizes


@computes("ConvInteger")
def _conv_integer(spec: OnnxNodeSpec, inputs: list[Any]) -> Sequence[Array]:
    x, w, x_zero, w_zero = [*inputs, None, None][:4]
    return (_convolved(spec, _centred(x, x_zero), _centred(w, w_zero, 0)).astype(np.int32),)


@computes("QLinearConv")
def _qlinear_conv(spec: OnnxNodeSpec, inputs: list[Any]) -> Sequence[Array]:
    x, x_scale, x_zero, w, w_scale, w_zero, scale, zero, bias = [*inputs, None][:9]
    sums = _convolved(spec, _centred(x, x_zero), _centred(w, w_zero, 0))
    if bias is not None:
        sums = sums + _channels(bias, x.ndim)
    factor = np.reshape(x_scale, -1)[0] * w_scale / np.reshape(scale, -1)[0]
    return (_requantized(sums, _channels(np.atleast_1d(factor), x.ndim), zero),)


def _centred(values: Array, zero: Array | None, axis: int | None = None) -> Array:
    """Return integers minus their zero point (optionally per index of an axis) as float64, in which sums are exact."""
    values = values.astype(np.float64)
    if zero is None:
        return values
    zero = zero.astype(np.float64)
    if zero.size == 1:
        return values - zero.reshape(-1)[0]
    return values - (zero if axis is None else zero.reshape(-1, *(1,) * (values.ndim - axis - 1)))


def _requantized(sums: Array, factor: Array, zero: Array) -> Array:
    """Convert sums to an output's scale by a multiplication in single precision, with ties to even."""
    zero = zero.reshape(-1)[0]
    steps = np.rint(sums.astype(np.float32) * factor.astype(np.float32)) + float(zero)
    limits = np.iinfo(zero.dtype)
    return np.clip(steps, limits.min, limits.max).astype(zero.dtype)


def _rows(values: Any, rank: int) -> Any:
    """Reshape one value per row of a left operand into a column, or a single value into a scalar."""
    if values is None or values.size == 1:
        return None if values is None else values.reshape(())
    return values[:, None] if values.ndim == 1 and rank > 1 else values


@computes("MatMulInteger")
def _matmul_integer(spec: OnnxNodeSpec, inputs: list[Any]) -> Sequence[Array]:
    a, b, a_zero, b_zero = [*inputs, None, None][:4]
    return ((_centred(a, _rows(a_zero, a.ndim)) @ _centred(b, b_zero)).astype(np.int32),)


@computes("QLinearMatMul")
def _qlinear_matmul(spec: OnnxNodeSpec, inputs: list[Any]) -> Sequence[Array]:
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = inputs
    sums = _centred(a, _rows(a_zero, a.ndim)) @ _centred(b, b_zero)
    factor = _rows(a_scale, a.ndim) * (b_scale.reshape(()) if b_scale.size == 1 else b_scale)
    return (_requantized(sums, factor / np.reshape(scale, -1)[0], zero),)
