"""Operators on the rows of a tensor: softmax and its variants, normalizations, Fourier transforms."""

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
