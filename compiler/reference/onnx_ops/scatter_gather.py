"""Operators that pick elements by number, put them elsewhere, or pad with them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.reference.onnx_ops.registry import Array, Asked, computes
from hw.errors import InputError


def _within(places: Array, size: int) -> Array:
    """Places that may count from the end, which must exist."""
    if places.size and (places.min() < -size or places.max() >= size):
        raise InputError(f"indices must be within {-size}..{size - 1}, not {places.min()}..{places.max()}")
    return np.where(places < 0, places + size, places)


def _beside(places: Array, axis: int) -> tuple[Any, ...]:
    """For each element of `places`: where it is, but along an axis the place that it says."""
    where: list[Any] = list(np.indices(places.shape, sparse=True))
    where[axis] = places
    return tuple(where)


@computes("GatherElements")
def _gather_elements(asked: Asked, inputs: list[Any]) -> Sequence[Array]:
    x, places = inputs
    axis = asked.get("axis", 0) % x.ndim
    return (x[_beside(_within(places, x.shape[axis]), axis)],)


@computes("Scatter")
def _scatter(asked: Asked, inputs: list[Any]) -> Sequence[Array]:
    """Scatter and ScatterElements, with optional reduction."""
    x, places, updates = inputs
    axis = asked.get("axis", 0) % x.ndim
    made = x.copy()
    made[_beside(_within(places, x.shape[axis]), axis)] = updates
    return (made,)


@computes("OneHot")
def _one_hot(asked: Asked, inputs: list[Any]) -> Sequence[Array]:
    places, depth, values = inputs
    depth, axis = int(np.reshape(depth, -1)[0]), asked.get("axis", -1) % (places.ndim + 1)
    whole = np.trunc(places).astype(np.int64)
    whole = np.where(whole < 0, whole + depth, whole)
    along = np.arange(depth).reshape(-1, *(1,) * (places.ndim - axis))
    off, on = values
    return (np.where(np.expand_dims(whole, axis) == along, on, off).astype(values.dtype),)


@computes("Pad")
def _pad(asked: Asked, inputs: list[Any]) -> Sequence[Array]:
    """Elements are cut off where the padding is negative, then what is left is padded."""
    x, given, value, axes = [*inputs, None, None, None][:4]
    pads = [int(n) for n in (asked.get("pads", ()) if given is None else given)]
    value = asked.get("value", 0.0) if value is None else np.reshape(value, -1)[0]
    chosen = range(x.ndim) if axes is None else [int(axis) % x.ndim for axis in axes]
    before, after = [0] * x.ndim, [0] * x.ndim
    for axis, first, last in zip(chosen, pads[: len(pads) // 2], pads[len(pads) // 2 :], strict=True):
        before[axis], after[axis] = first, last
    cut = tuple(
        slice(max(0, -b), size - max(0, -a)) for b, a, size in zip(before, after, x.shape, strict=True)
    )
    widths = [(max(0, b), max(0, a)) for b, a in zip(before, after, strict=True)]
    mode = asked.text("mode", "constant", "constant", "reflect", "edge", "wrap")
    if mode == "constant":
        return (np.pad(x[cut], widths, constant_values=value),)
    return (np.pad(x[cut], widths, mode=mode),)  # pyright: ignore[reportCallIssue, reportArgumentType]
