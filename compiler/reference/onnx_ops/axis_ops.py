"""Operators along axes: softmax and its variants, normalizations, Fourier transforms, indices and padding."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.reference.onnx_ops.registry import Array, OnnxNodeSpec, computes
from hw.errors import InputError


@computes("LogSoftmax", "Softmax", "Hardmax")
def _softmax(spec: OnnxNodeSpec, inputs: list[Any]) -> Sequence[Array]:
    """Compute a softmax or variant along one axis or, before operator set 13, over all dimensions from the axis on."""
    (x,) = inputs
    axis = spec.get("axis", -1 if spec.version >= 13 else 1)
    rows = x
    if spec.version < 13:
        axis += x.ndim if axis < 0 else 0
        rows, axis = x.reshape(int(np.prod(x.shape[:axis])), -1), -1
    if spec.op == "Hardmax":
        made = np.zeros_like(rows)
        np.put_along_axis(made, np.expand_dims(np.argmax(rows, axis), axis), 1, axis)
        return (made.reshape(x.shape),)
    centred = rows - np.max(rows, axis, keepdims=True)
    total = np.sum(np.exp(centred), axis, keepdims=True)
    made = centred - np.log(total) if spec.op == "LogSoftmax" else np.exp(centred) / total
    return (made.reshape(x.shape).astype(x.dtype),)


@computes("LpNormalization")
def _lp_normalization(spec: OnnxNodeSpec, inputs: list[Any]) -> Sequence[Array]:
    (x,) = inputs
    axis, p = spec.get("axis", -1), spec.get("p", 2)
    sizes = np.abs(x).astype(np.float64)
    norm = np.sum(sizes**p, axis, keepdims=True) ** (1 / p)
    return (np.where(norm == 0, 0, x / np.where(norm == 0, 1, norm)).astype(x.dtype),)


@computes("MeanVarianceNormalization")
def _mean_variance(spec: OnnxNodeSpec, inputs: list[Any]) -> Sequence[Array]:
    (x,) = inputs
    axes = tuple(spec.get("axes", (0, 2, 3)))
    centred = x.astype(np.float64) - np.mean(x, axes, np.float64, keepdims=True)
    spread = np.sqrt(np.mean(centred**2, axes, keepdims=True))
    return ((centred / (spread + 1e-9)).astype(x.dtype),)


@computes("GlobalLpPool")
def _global_lp(spec: OnnxNodeSpec, inputs: list[Any]) -> Sequence[Array]:
    (x,) = inputs
    p, axes = spec.get("p", 2), tuple(range(2, x.ndim))
    return ((np.sum(np.abs(x).astype(np.float64) ** p, axes, keepdims=True) ** (1 / p)).astype(x.dtype),)


@computes("LRN")
def _local_response(spec: OnnxNodeSpec, inputs: list[Any]) -> Sequence[Array]:
    """Compute LRN: divide each value by a power of the sum of squares over adjacent channels."""
    (x,) = inputs
    size = spec.get("size", 1)
    channel, count = np.arange(x.shape[1]), x.shape[1]
    first = np.maximum(channel - (size - 1) // 2, 0)
    last = np.minimum(channel + size // 2 + 1, count)
    squares = np.insert(x.astype(np.float64) ** 2, 0, 0, 1)
    sums = np.cumsum(squares, 1)
    near = sums[:, last] - sums[:, first]
    scale = spec.get("bias", 1.0) + spec.get("alpha", 1e-4) / size * near
    return ((x / scale ** spec.get("beta", 0.75)).astype(x.dtype),)


@computes("STFT")
def _stft(spec: OnnxNodeSpec, inputs: list[Any]) -> Sequence[Array]:
    """Compute the STFT of signals (batch, length, 1 or 2); real and imaginary parts are along the last axis."""
    signal, step, window, length = [*inputs, None, None][:4]
    step = int(np.reshape(step, -1)[0])
    size = int(np.reshape(length, -1)[0]) if length is not None else None
    if window is not None:
        size = window.shape[0]
    if size is None or step < 1 or not 1 <= size <= signal.shape[1]:
        raise InputError(f"frames of {size} by {step} do not fit a signal of {signal.shape[1]}")
    samples = signal[..., 0] + (1j * signal[..., 1] if signal.shape[-1] == 2 else 0)
    starts = np.arange(0, signal.shape[1] - size + 1, step)
    frames = samples[:, starts[:, None] + np.arange(size)]
    if window is not None:
        frames = frames * window
    spectra = np.fft.fft(frames.astype(np.complex128))
    if spec.get("onesided", 1):
        spectra = spectra[..., : size // 2 + 1]
    return (np.stack([spectra.real, spectra.imag], -1).astype(signal.dtype),)


def _within(indices: Array, size: int) -> Array:
    """Convert possibly negative indices to non-negative ones; raise an error for indices out of range."""
    if indices.size and (indices.min() < -size or indices.max() >= size):
        raise InputError(f"indices must be within {-size}..{size - 1}, not {indices.min()}..{indices.max()}")
    return np.where(indices < 0, indices + size, indices)


def _along_axis(indices: Array, axis: int) -> tuple[Any, ...]:
    """Return index arrays that hold the position of each element of `indices`, with the coordinate along `axis`
    replaced by the element's value.
    """
    selection: list[Any] = list(np.indices(indices.shape, sparse=True))
    selection[axis] = indices
    return tuple(selection)


@computes("GatherElements")
def _gather_elements(spec: OnnxNodeSpec, inputs: list[Any]) -> Sequence[Array]:
    x, indices = inputs
    axis = spec.get("axis", 0) % x.ndim
    return (x[_along_axis(_within(indices, x.shape[axis]), axis)],)


@computes("Scatter")
def _scatter(spec: OnnxNodeSpec, inputs: list[Any]) -> Sequence[Array]:
    """Compute Scatter: copy a tensor and replace the elements at given indices along an axis."""
    x, indices, updates = inputs
    axis = spec.get("axis", 0) % x.ndim
    result = x.copy()
    result[_along_axis(_within(indices, x.shape[axis]), axis)] = updates
    return (result,)


@computes("OneHot")
def _one_hot(spec: OnnxNodeSpec, inputs: list[Any]) -> Sequence[Array]:
    indices, depth, values = inputs
    depth, axis = int(np.reshape(depth, -1)[0]), spec.get("axis", -1) % (indices.ndim + 1)
    hot = np.trunc(indices).astype(np.int64)
    hot = np.where(hot < 0, hot + depth, hot)
    along = np.arange(depth).reshape(-1, *(1,) * (indices.ndim - axis))
    off, on = values
    return (np.where(np.expand_dims(hot, axis) == along, on, off).astype(values.dtype),)


@computes("Pad")
def _pad(spec: OnnxNodeSpec, inputs: list[Any]) -> Sequence[Array]:
    """Pad a tensor; negative padding crops elements first."""
    x, given, value, axes = [*inputs, None, None, None][:4]
    pads = [int(n) for n in (spec.get("pads", ()) if given is None else given)]
    value = spec.get("value", 0.0) if value is None else np.reshape(value, -1)[0]
    padded_axes = range(x.ndim) if axes is None else [int(axis) % x.ndim for axis in axes]
    before, after = [0] * x.ndim, [0] * x.ndim
    for axis, first, last in zip(padded_axes, pads[: len(pads) // 2], pads[len(pads) // 2 :], strict=True):
        before[axis], after[axis] = first, last
    cut = tuple(
        slice(max(0, -b), size - max(0, -a)) for b, a, size in zip(before, after, x.shape, strict=True)
    )
    widths = [(max(0, b), max(0, a)) for b, a in zip(before, after, strict=True)]
    mode = spec.text("mode", "constant", "constant", "reflect", "edge", "wrap")
    if mode == "constant":
        return (np.pad(x[cut], widths, constant_values=value),)
    return (np.pad(x[cut], widths, mode=mode),)  # pyright: ignore[reportCallIssue, reportArgumentType]
