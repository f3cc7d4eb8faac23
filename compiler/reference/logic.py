"""Comparisons and what is made of them: the conditions of control flow."""

from collections.abc import Callable

import numpy as np

from compiler.reference.node_invocation import Array, NodeInvocation, Operator


def _comparing(function: Callable[..., Array]) -> Operator:
    """An operator on the numbers that its operands stand for."""

    def compare(call: NodeInvocation) -> Array:
        return np.asarray(function(*(call.numbers(i) for i in range(len(call.values)))))

    return compare


LOGIC: dict[str, Operator] = {
    "equal": _comparing(np.equal),
    "less": _comparing(np.less),
    "less_equal": _comparing(np.less_equal),
    "logical_and": _comparing(np.logical_and),
    "logical_or": _comparing(np.logical_or),
    "logical_not": _comparing(np.logical_not),
}
