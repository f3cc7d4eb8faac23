"""Steps that extend a random graph with operators that move elements."""

import math
from typing import Any

import numpy as np

from compiler.ir.tensor import Tensor
from tests.support.strategies.graph_builder import MOST, GraphBuilder, Shape


def _moved(g: GraphBuilder, op: str, inputs: list[Tensor], shape: Shape, **attributes: Any) -> Tensor:
    """Add a node whose output usually has the quantization of its input."""
    like = inputs[0] if g.choose((1, 1, 0)) else None
    return g.made(op, inputs, shape, like=like, **attributes)


def transpose(g: GraphBuilder) -> Tensor:
    """Add a transpose with a random permutation."""
    x = g.any(lambda t: len(t.shape) > 1, lambda: (g.size(6), g.size(9), g.size(20)))
    perm = list(range(len(x.shape)))
    for i in range(len(perm) - 1):
        j = g.whole(i, len(perm) - 1)
        perm[i], perm[j] = perm[j], perm[i]
    return _moved(g, "transpose", [x], tuple(x.shape[i] for i in perm), perm=tuple(perm))


def reshape(g: GraphBuilder) -> Tensor:
    """Add a reshape to rows."""
    x = g.rows()
    first = g.choose([i for i in range(1, x.elements + 1) if x.elements % i == 0])
    shape = g.choose(((x.elements // first, first), (1, x.elements // first, 1, first)))
    return g.made("reshape", [x], shape, like=x, shape=shape)


def concat(g: GraphBuilder) -> Tensor:
    """Add a concatenation with tensors that differ in size along one dimension, or with the tensor itself."""
    x = g.rows()
    axis = g.whole(0, len(x.shape) - 1)
    inputs = [x]
    for _ in range(g.whole(1, 2)):
        shape = (*x.shape[:axis], g.size(6), *x.shape[axis + 1 :])

        def fits(t: Tensor, axis: int = axis) -> bool:
            same = [t.shape[:axis], t.shape[axis + 1 :]] == [x.shape[:axis], x.shape[axis + 1 :]]
            return same and len(t.shape) == len(x.shape) and t.dtype == x.dtype

        inputs.append(g.any(fits, lambda shape=shape: shape))
    inputs = [t for t in inputs if t.dtype == x.dtype]
    size = sum(t.shape[axis] for t in inputs)
    return _joined(g, inputs, (*x.shape[:axis], size, *x.shape[axis + 1 :]), axis)


def _joined(g: GraphBuilder, inputs: list[Tensor], shape: Shape, axis: int) -> Tensor:
    if math.prod(shape) > MOST:
        return inputs[0]
    return _moved(g, "concat", inputs, shape, axis=axis)


def cut(g: GraphBuilder) -> Tensor:
    """Add a slice of each dimension, at random with steps or reversed."""
    x = g.rows()
    starts, sizes, steps = [], [], []
    for total in x.shape:
        step = g.choose((1, 1, 2, 3, -1))
        size = g.whole(1, (total - 1) // abs(step) + 1)
        start = g.whole(0, total - 1 - (size - 1) * abs(step))
        starts.append(start if step > 0 else start + size - 1)
        sizes.append(size)
        steps.append(step)
    return _moved(g, "slice", [x], tuple(sizes), starts=tuple(starts), sizes=tuple(sizes), steps=tuple(steps))


def split(g: GraphBuilder) -> Tensor:
    """Add two slices that split a dimension; later operators may read both."""
    x = g.any(lambda t: max(t.shape, default=0) > 1, lambda: (g.size(9), 2 * g.size(10)))
    axis = g.choose([i for i, size in enumerate(x.shape) if size > 1])
    at = g.whole(1, x.shape[axis] - 1)
    halves = []
    for start, size in ((0, at), (at, x.shape[axis] - at)):
        sizes = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        starts = tuple(start if i == axis else 0 for i in range(len(sizes)))
        halves.append(
            g.made("slice", [x], sizes, like=x, starts=starts, sizes=sizes, steps=(1,) * len(sizes))
        )
    return halves[g.choose((1, 0))]


def pad(g: GraphBuilder) -> Tensor:
    """Add padding with a constant value."""
    x = g.rows()
    pads = tuple((g.whole(0, 2), g.whole(0, 2)) for _ in x.shape)
    shape = tuple(size + sum(pair) for size, pair in zip(x.shape, pads, strict=True))
    if math.prod(shape) > MOST:
        return x
    return _moved(g, "pad", [x], shape, pads=pads, value=g.choose((0.0, 0.5, -3.0)))


def gather(g: GraphBuilder) -> Tensor:
    """Add a gather along a random axis."""
    x = g.rows()
    axis = g.whole(0, len(x.shape) - 1)
    count = g.whole(1, 5)
    if x.elements // x.shape[axis] * count > MOST:
        return x
    chosen = g.rng.integers(-x.shape[axis], x.shape[axis], count).astype(np.int32)
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    return _moved(g, "gather", [x, g.held(chosen, None)], shape, axis=axis)


def resize(g: GraphBuilder) -> Tensor:
    """Add a resize of an image."""
    x = g.image()
    n, h, w, c = x.shape
    size = tuple(g.choose((2 * total, max(total // 2, 1), g.size(12))) for total in (h, w))
    if n * math.prod(size) * c > MOST:
        return x
    return _moved(g, "resize_nearest", [x], (n, *size, c), size=size, centers=g.chance())


MOVES = {
    "transpose": transpose,
    "reshape": reshape,
    "concat": concat,
    "slice": cut,
    "split": split,
    "pad": pad,
    "gather": gather,
    "resize": resize,
}
