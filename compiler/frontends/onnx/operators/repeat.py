"""ONNX operators that repeat elements: Expand and Tile."""

from collections.abc import Sequence
from typing import Any

from compiler.frontends.onnx.emit import Emitter
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.operators.picked import check_count, picked, spread
from compiler.frontends.onnx.operators.shape import renamed, with_ones
from compiler.frontends.onnx.registry import converts, known
from compiler.frontends.onnx.values import Value, broadcast, check_size
from hw.errors import InputError, shown


@converts("Expand", inputs=(2, 2))
def _expand(emitter: Emitter, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, sizes = inputs
    shape = broadcast([x.shape, tuple(known(sizes, "a shape").integers())])
    check_size(shape)
    ranked = with_ones(emitter, node.outputs[0], x, set(range(len(shape) - len(x.shape))))
    return [renamed(spread(emitter, node, ranked, shape, "spread"), node.outputs[0])]


@converts("Tile", inputs=(2, 2))
def _tile(emitter: Emitter, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, times = emitter.flow(inputs[0]), known(inputs[1], "repeats").integers()
    if len(times) != x.rank or min(times, default=1) < 1:
        raise InputError(
            f"repeats {shown(times)} must be {x.rank} positive numbers for shape {list(x.shape)}"
        )
    check_size(tuple(n * count for n, count in zip(x.shape, times, strict=True)))
    for axis, count in enumerate(times):
        if count > 1:
            check_count(x.shape[axis] * count)
            x = picked(emitter, node, x, list(range(x.shape[axis])) * count, axis)
    return [renamed(x, node.outputs[0])]
