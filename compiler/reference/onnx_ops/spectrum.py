"""The short-time Fourier transform."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.reference.onnx_ops.registry import Array, Asked, computes
from hw.errors import InputError


@computes("STFT")
def _stft(asked: Asked, inputs: list[Any]) -> Sequence[Array]:
    """Spectra of frames of signals (batch, length, 1 or 2), real and imaginary part last."""
    signal, step, window, length = [*inputs, None, None][:4]
    step = int(np.reshape(step, -1)[0])
    size = int(np.reshape(length, -1)[0]) if length is not None else None
    if window is not None:
        size = window.shape[0]
    if size is None or step < 1 or not 1 <= size <= signal.shape[1]:
        raise InputError(f"frames of {size} by {step} do not fit a signal of {signal.shape[1]}")
    whole = signal[..., 0] + (1j * signal[..., 1] if signal.shape[-1] == 2 else 0)
    starts = np.arange(0, signal.shape[1] - size + 1, step)
    frames = whole[:, starts[:, None] + np.arange(size)]
    if window is not None:
        frames = frames * window
    spectra = np.fft.fft(frames.astype(np.complex128))
    if asked.get("onesided", 1):
        spectra = spectra[..., : size // 2 + 1]
    return (np.stack([spectra.real, spectra.imag], -1).astype(signal.dtype),)
