"""TFLite MINIMUM and MAXIMUM, as clipping or as a reduction of the stacked operands."""

import math

import numpy as np

from compiler.frontends.tflite.elementwise import broadcast
from compiler.frontends.tflite.registry import TfliteConversion, converts
from compiler.ir.tensor import Tensor

#: Most elements of a constant that is spread.
_MOST = 1 << 26


@converts("MAXIMUM", "MINIMUM")
def _extreme(c: TfliteConversion) -> None:
    a, b = c.given(2)[:2]
    shape, greatest = broadcast(c, a, b), c.kind == "MAXIMUM"
    if a.constant and not b.constant:
        a, b = b, a
    limit = _number(b)
    if limit is not None and a.shape == shape:
        low, high = (limit, math.inf) if greatest else (-math.inf, limit)
        c.make("clip", [a], low=low, high=high)
        return
    beside = [_beside(c, f"operand{i}", tensor, shape) for i, tensor in enumerate((a, b))]
    both = c.build.between(c.output, f"{c.output.name}:both", (*beside[0].shape[:1], 2, *beside[0].shape[2:]))
    both = c.build.node(f"{c.operator.name}:both", "concat", beside, both, axis=1)
    made = c.build.between(c.output, f"{c.output.name}:flat", (both.shape[0], both.shape[2]))
    op = "reduce_max" if greatest else "reduce_min"
    if made.shape == shape:
        c.make(op, [both], axes=(1,), keep=False)
        return
    c.build.node(f"{c.operator.name}:extreme", op, [both], made, axes=(1,), keep=False)
    c.make_shaped(made)


def _number(tensor: Tensor) -> float | None:
    """The one number that a constant is."""
    if tensor.data is None or (tensor.quantization is not None and not tensor.quantization.whole):
        return None
    if np.unique(tensor.data).size != 1:
        return None
    first = tensor.data.reshape(-1)[:1]
    number = float((first if tensor.quantization is None else tensor.quantization.dequantized(first))[0])
    return None if math.isnan(number) else number


def _beside(c: TfliteConversion, part: str, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """An operand spread over a shape, as rows of their own: (first dimension, 1, all others)."""
    first = shape[0] if shape else 1
    whole = (first, 1, math.prod(shape) // first)
    if x.data is not None:
        if math.prod(shape) > _MOST:
            raise c.error(f"a constant spread over {list(shape)} has more than {_MOST:,} elements")
        data = np.ascontiguousarray(np.broadcast_to(x.data, shape)).reshape(whole)
        return c.build.constant(f"{x.name}:{part}", data, x.quantization)
    x = c.reshaped(f"{part}:rank", x, (1,) * (len(shape) - len(x.shape)) + x.shape)
    for axis, size in enumerate(shape):
        if x.shape[axis] != size:
            x = c.rows(f"{part}:spread{axis}", x, axis, [0] * size)
    return c.reshaped(part, x, whole)
