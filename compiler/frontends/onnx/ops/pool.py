"""ONNX pooling and reductions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.ops.conv import WindowSpec, as_given, as_images, flat, sizes_of, window
from compiler.frontends.onnx.ops.gather import picked
from compiler.frontends.onnx.ops.shape import kept_order, renamed
from compiler.frontends.onnx.registry import converts, integers, known
from compiler.frontends.onnx.values import DynamicValue, UnsupportedNodeError, Value, counted_from_front
from hw.errors import InputError


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
