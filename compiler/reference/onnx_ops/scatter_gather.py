"""Operators that gather or scatter elements by index, or pad tensors."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.reference.onnx_ops.registry import Array, OnnxNodeSpec, computes
from hw.errors import InputError


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
