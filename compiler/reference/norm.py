"""Normalizations over the axis and all that follow it."""

import numpy as np

from compiler.reference.node_invocation import Array, NodeInvocation, Operator, Real


def _normalized(call: NodeInvocation, *, centre: bool) -> Array:
    x = call.numbers().astype(np.float64)
    axes = tuple(range(range(x.ndim)[call["axis"]], x.ndim))
    if centre:
        x = x - x.mean(axes, keepdims=True)
    result: Real = x / np.sqrt((x * x).mean(axes, keepdims=True) + call["epsilon"])
    if len(call.values) > 1:
        result = result * call.numbers(1)
    return result + call.numbers(2) if len(call.values) > 2 else result


NORM: dict[str, Operator] = {
    "layer_norm": lambda call: _normalized(call, centre=True),
    "rms_norm": lambda call: _normalized(call, centre=False),
}
