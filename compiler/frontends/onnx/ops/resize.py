"""ONNX nearest-neighbour resizing."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.ops.shape import renamed
from compiler.frontends.onnx.registry import choice, converts, known
from compiler.frontends.onnx.values import (
    ConstantValue,
    DynamicValue,
    UnsupportedNodeError,
    Value,
    channels_last,
    counted_from_front,
    plain,
)
from compiler.reference.onnx_ops.resize import ResizeAxis, nearest, resized
from hw.errors import InputError, shown

#: Largest side of a resized image.
_MOST = 1 << 20


@converts("Resize", "Upsample", inputs=(1, 4))
def _resize(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x = emitter.movable(emitter.flow(inputs[0]))
    if choice(node, "mode", "nearest", "nearest", "linear", "bilinear", "cubic") != "nearest":
        raise UnsupportedNodeError(f"resizing by {node.text('mode', '')}")
    scales, shape = _resized(node, x, inputs)
    if x.rank != 4 or shape[:2] != x.shape[:2]:
        raise UnsupportedNodeError(f"resizing shape {list(x.shape)} to {list(shape)}")
    if shape == x.shape:
        return [renamed(x, node.outputs[0])]
    x = emitter.in_order(x, channels_last(4))
    centers = _centers(node, x.shape[2:], shape[2:], scales[2:])
    if centers is None:
        return [_gathered(emitter, node, x, shape, scales)]
    return [
        emitter.emit(
            node, "resize_nearest", [x.tensor], shape, x.order, x.kind, size=shape[2:], centers=centers
        )
    ]


def _resized(node: FileNode, x: DynamicValue, inputs: list[Any]) -> tuple[list[float], tuple[int, ...]]:
    """Scale and size of each dimension."""
    scale_input, size_input = (inputs[1], None) if before_11(node) else inputs[2:4]
    axes = node.ints("axes") or plain(x.rank)
    if node.text("keep_aspect_ratio_policy", "stretch") != "stretch" or len(set(axes)) != len(axes):
        raise UnsupportedNodeError("resizing that keeps the ratio of the sides")
    scales, shape = [1.0] * x.rank, list(x.shape)
    places = [counted_from_front(axis, x.rank) for axis in axes]
    if size_input is not None and known(size_input, "sizes").data.size:
        sizes = size_input.integers()
        if len(sizes) != len(places) or not all(0 < size < _MOST for size in sizes):
            raise InputError(
                f"sizes {shown(sizes)} do not fit shape {list(x.shape)}; each must be 1 to {_MOST - 1:,}"
            )
        for i, size in zip(places, sizes, strict=True):
            scales[i], shape[i] = float(np.float32(size) / np.float32(x.shape[i])), size
        return scales, tuple(shape)
    factors = (
        node.attributes.get("scales") if scale_input is None else known(scale_input, "scales").real().tolist()
    )
    if not isinstance(factors, tuple | list) or len(factors) != len(places):
        raise InputError(f"must have {len(places)} scales")
    for i, factor in zip(places, factors, strict=True):
        if not (math.isfinite(factor) and factor > 0 and 1 <= (size := resized(x.shape[i], factor)) < _MOST):
            raise InputError(f"scale {factor} of size {x.shape[i]} does not make 1 to {_MOST - 1:,}")
        scales[i], shape[i] = factor, size
    return scales, tuple(shape)


def _gathered(
    emitter: OnnxGraphBuilder, node: FileNode, x: DynamicValue, shape: tuple[int, ...], scales: list[float]
) -> DynamicValue:
    """Rows, then columns, picked by number."""
    for axis, part in ((2, "rows"), (3, "")):
        picked = _picked(node, x.shape[axis], shape[axis], scales[axis]).astype(np.int32)
        places = emitter.constant(f"{node.name}:places{axis}", ConstantValue(node.name, picked))
        made = (*x.shape[:axis], shape[axis], *x.shape[axis + 1 :])
        x = emitter.emit(
            node, "gather", [x.tensor, places], made, x.order, x.kind, part, axis=x.order.index(axis)
        )
    return x


def _centers(node: FileNode, old: tuple[int, ...], new: tuple[int, ...], scales: list[float]) -> bool | None:
    """Whether the graph's operator measures from centres to pick the elements that the file's picks; None: neither."""
    wanted = [_picked(node, *v) for v in zip(old, new, scales, strict=True)]
    for centers in (False, True):
        made = [
            np.minimum(np.floor((np.arange(n) + 0.5 * centers) * (size / n)), size - 1)
            for size, n in zip(old, new, strict=True)
        ]
        if all(np.array_equal(a, b) for a, b in zip(wanted, made, strict=True)):
            return centers
    return None


def _picked(node: FileNode, size: int, count: int, scale: float) -> np.ndarray:
    """Which element of `size` each of `count` outputs is."""
    if before_11(node):
        return nearest("asymmetric", "simple", ResizeAxis(size, count, scale))
    mode = node.text("coordinate_transformation_mode", "half_pixel")
    if mode == "tf_crop_and_resize":
        raise UnsupportedNodeError(f"resizing by {shown(mode)}")
    return nearest(mode, node.text("nearest_mode", "round_prefer_floor"), ResizeAxis(size, count, scale))


def before_11(node: FileNode) -> bool:
    """Whether the operator is one from before there were modes."""
    return node.op == "Upsample" or node.opset < 11
