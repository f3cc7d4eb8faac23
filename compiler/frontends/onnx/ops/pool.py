"""ONNX pooling, reductions and nearest-neighbour resizing."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.ops.conv import WindowSpec, as_given, as_images, flat, sizes_of, window
from compiler.frontends.onnx.ops.indexing import picked
from compiler.frontends.onnx.ops.shape import kept_order, renamed
from compiler.frontends.onnx.registry import choice, converts, integers, known
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


@converts("MaxPool", "AveragePool", inputs=(1, 1))
def _pool(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    (given,) = inputs
    rank = len(given.shape)
    if rank not in (3, 4):
        raise UnsupportedNodeError(f"pooling over shape {list(given.shape)}")
    kernel = sizes_of(node, "kernel_shape", rank - 2, 0, 1)
    slide = flat(window(node, given.shape[2:], kernel), rank)
    mean = node.op == "AveragePool"
    x = emitter.movable(as_images(emitter, node, given))
    kind = emitter.arithmetic(node, x) if mean else x.kind
    more: dict[str, Any] = {"count_pads": False} if mean else {}
    pads = slide.pads
    if mean and node.int("count_include_pad", 0) and any(pads):
        # The file's own pads are zeros like others; what rounding up adds behind them is not counted.
        floor = {**node.attributes, "ceil_mode": 0}
        own = flat(window(replace(node, attributes=floor), given.shape[2:], kernel), rank).pads
        pads = tuple(every - counted for every, counted in zip(pads, own, strict=True))
        x = _framed(emitter, node, x, own) if any(own) else x
    if max(slide.dilations) > 1:
        if mean and any(pads):
            raise UnsupportedNodeError("an average with dilations over padding that is not counted")
        x, slide = _closed_up(emitter, node, x, replace(slide, before=pads[:2], after=pads[2:]))
        pads = slide.pads
    made = emitter.emit(
        node,
        "avg_pool2d" if mean else "max_pool2d",
        [emitter.operand(x, x.order, kind)],
        (*x.shape[:2], *slide.outputs),
        x.order,
        kind,
        kernel=slide.kernel,
        strides=slide.strides,
        pads=pads,
        **more,
    )
    return [as_given(emitter, node, made, given)]


def _closed_up(
    emitter: OnnxGraphBuilder, node: FileNode, x: DynamicValue, slide: WindowSpec
) -> tuple[DynamicValue, WindowSpec]:
    """Images whose windows have no gaps: elements under each window side by side, and the window over them.

    Where a window reaches beyond the image, one of its other elements is there again, which is no greater than itself.
    """
    made = slide
    for i in (0, 1):
        if slide.dilations[i] == 1:
            continue
        size, taps = x.shape[2 + i], np.arange(slide.kernel[i]) * slide.dilations[i]
        places = np.arange(slide.outputs[i])[:, None] * slide.strides[i] + taps - slide.before[i]
        inside = (places >= 0) & (places < size)
        if not inside.any(1).all():
            raise UnsupportedNodeError("a window with dilations that is all padding")
        first = np.take_along_axis(places, inside.argmax(1)[:, None], 1)
        x = picked(emitter, node, x, np.where(inside, places, first).reshape(-1).tolist(), 2 + i)
        made = _at(made, i, strides=slide.kernel[i], dilations=1, before=0, after=0)
    return x, made


def _at(slide: WindowSpec, i: int, **sizes: int) -> WindowSpec:
    """A window with other sizes along one dimension."""
    changed = {key: list(getattr(slide, key)) for key in sizes}
    for key, size in sizes.items():
        changed[key][i] = size
    return replace(slide, **{key: tuple(values) for key, values in changed.items()})


def _framed(
    emitter: OnnxGraphBuilder, node: FileNode, x: DynamicValue, pads: tuple[int, ...]
) -> DynamicValue:
    """Images with zeros around them: so many on top, left, below, right."""
    top, left, bottom, right = pads
    batch, channels, height, width = x.shape
    shape = (batch, channels, top + height + bottom, left + width + right)
    edges = ((0, 0), (top, bottom), (left, right), (0, 0))
    return emitter.emit(node, "pad", [x.tensor], shape, x.order, x.kind, "framed", pads=edges, value=0.0)


@converts("GlobalAveragePool", "GlobalMaxPool", inputs=(1, 1))
def _global_pool(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x = emitter.flow(inputs[0])
    if x.rank < 3:
        raise InputError(f"pools over shape {list(x.shape)}, which has no spatial dimensions")
    op = "reduce_mean" if node.op == "GlobalAveragePool" else "reduce_max"
    return [_reduced(emitter, node, op, x, set(range(2, x.rank)), keep=True)]


@converts("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", inputs=(1, 2))
def _reduce(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, given = inputs
    x = emitter.flow(x)
    axes = integers(node, "axes", given)
    if not axes and node.int("noop_with_empty_axes", 0):
        return [renamed(x, node.outputs[0])]
    chosen = {counted_from_front(axis, x.rank) for axis in axes or range(x.rank)}
    op = "reduce_" + node.op[len("Reduce") :].lower()
    return [_reduced(emitter, node, op, x, chosen, keep=bool(node.int("keepdims", 1)))]


def _reduced(
    emitter: OnnxGraphBuilder, node: FileNode, op: str, x: DynamicValue, axes: set[int], *, keep: bool
) -> DynamicValue:
    """A reduction over dimensions of the file."""
    if not axes:
        return DynamicValue(node.outputs[0], x.tensor, x.order, x.real)
    if op in ("reduce_max", "reduce_min"):
        x = emitter.movable(x)
        kind = x.kind
    else:
        kind = emitter.arithmetic(node, x)
    shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape) if keep or i not in axes)
    order = x.order if keep else kept_order(x.order, axes)
    places = tuple(sorted(x.order.index(i) for i in axes))
    return emitter.emit(
        node, op, [emitter.operand(x, x.order, kind)], shape, order, kind, axes=places, keep=keep
    )


@converts("CumSum", inputs=(2, 2))
def _cumsum(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, given = emitter.flow(inputs[0]), known(inputs[1], "an axis").scalar()
    if given is None:
        raise InputError("its axis must be one number")
    kind = emitter.arithmetic(node, x)
    return [
        emitter.emit(
            node,
            "cumsum",
            [emitter.operand(x, x.order, kind)],
            x.shape,
            x.order,
            kind,
            axis=x.order.index(counted_from_front(int(given), x.rank)),
            exclusive=bool(node.int("exclusive", 0)),
            reverse=bool(node.int("reverse", 0)),
        )
    ]


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
