"""Formats output values for `mla run --show`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.tensor import Tensor

#: Maximum number of samples to print.
MAX_SAMPLES = 4
#: Number of classes listed per sample.
TOP_CLASSES = 5
#: Array size above which NumPy abbreviates the values, and line width in characters.
_THRESHOLD, _WIDTH = 64, 110


def show_outputs(tensors: Sequence[Tensor], outputs: Mapping[str, NDArray]) -> list[str]:
    """Return lines with the values of the first samples and the top classes of class scores.

    Parameters
    ----------
    tensors : sequence of Tensor
        Outputs of the model; their quantization gives the real values of integers.
    outputs : dict of array
        Values by output name; the first axis indexes samples.
    """
    lines = []
    for tensor in tensors:
        samples = outputs[tensor.name]
        best = top_classes(tensor, samples[:MAX_SAMPLES])
        for number, sample in enumerate(samples[:MAX_SAMPLES]):
            lines += _values(tensor.name, number, sample)
            if best is not None:
                lines.append(f"  top {len(best[number])}: " + ", ".join(map(_class, best[number])))
        left_out = len(samples) - MAX_SAMPLES
        if left_out > 0:
            lines.append(f"{tensor.name}: {left_out:,} more samples are not shown (--out writes all)")
    return lines


def top_classes(tensor: Tensor, samples: NDArray) -> list[list[dict[str, Any]]] | None:
    """Return the top classes per sample, best first; None if the output is not a vector of class scores.

    Class scores are one vector per sample, floating-point or quantized. Each class has its index (`class`), its real
    `score`, and the integer it is `stored` as (None for floating-point outputs).
    """
    first = samples[0]
    one_axis = first.size > 1 and max(first.shape) == first.size
    if not one_axis or (first.dtype.kind != "f" and tensor.quantization is None):
        return None
    return [_best(tensor, sample.reshape(-1)) for sample in samples]


def _best(tensor: Tensor, scores: NDArray) -> list[dict[str, Any]]:
    q = tensor.quantization
    real = scores if q is None or not q.whole else q.dequantized(scores)
    stored = scores.dtype.kind != "f"
    return [
        {
            "class": int(index),
            "score": float(real[index]),
            "stored": int(scores[index]) if stored else None,
        }
        for index in np.argsort(-scores.astype(np.float64), kind="stable")[:TOP_CLASSES]
    ]


def _values(name: str, number: int, sample: NDArray) -> list[str]:
    """Format the values of a sample, on one line if they fit."""
    text = np.array2string(
        np.asarray(sample), max_line_width=_WIDTH, threshold=_THRESHOLD, separator=", "
    ).splitlines()
    title = f"{name}, sample {number}:"
    return [f"{title} {text[0]}"] if len(text) == 1 else [title, *(f"  {line}" for line in text)]


def _class(best: Mapping[str, Any]) -> str:
    stored = "" if best["stored"] is None else f", stored {best['stored']}"
    return f"class {best['class']} ({best['score']:.4g}{stored})"
