"""Convolutions with any number of dimensions, and integer matrix products."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.reference.onnx_ops.registry import Array, OnnxNodeSpec, computes
from compiler.reference.onnx_ops.windows import check_room, windows


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
