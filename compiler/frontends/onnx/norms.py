"""Subgraphs that exporters write for layer normalization and RMS normalization."""

from collections.abc import Callable
from dataclasses import replace

from compiler.frontends.onnx.def_use import DefUse, instead
from compiler.frontends.onnx.node import FileNode


def _norm(view: DefUse, node: FileNode) -> FileNode | None:
    """X divided by the root of its mean square, or centred x by that of its variance."""
    found = _quotient(view, node)
    if found is None:
        return None
    top, root = found
    total = view.made_by(root.inputs[0], "Add")
    if total is None:
        return None
    for one, other in (total.inputs, total.inputs[::-1]):
        epsilon, mean = view.scalar(one), view.made_by(other, "ReduceMean")
        if epsilon is None or mean is None:
            continue
        factor, leaves = view.product(mean.inputs[0])
        axes = _axes(view, mean)
        if factor != 1.0 or len(leaves) != 2 or leaves[0] != leaves[1] or axes is None:
            continue
        centred = _centred(view, top, axes)
        if centred is not None and (leaves[0] == top or _centred(view, leaves[0], axes) == centred):
            return instead(node, "LayerNormalization", (centred,), only=axes, epsilon=epsilon)
        if leaves[0] == top:
            return instead(node, "RMSNormalization", (top,), only=axes, epsilon=epsilon)
    return None


def _quotient(view: DefUse, node: FileNode) -> tuple[str, FileNode] | None:
    """What is divided, and the square root that divides it."""
    if len(node.inputs) != 2:
        return None
    if node.op == "Div":
        root = view.made_by(node.inputs[1], "Sqrt")
        return None if root is None else (node.inputs[0], root)
    if node.op != "Mul":
        return None
    for top, other in (node.inputs, node.inputs[::-1]):
        inverse = view.made_by(other, "Reciprocal", "Div")
        if inverse is None or (inverse.op == "Div" and view.scalar(inverse.inputs[0]) != 1.0):
            continue
        root = view.made_by(inverse.inputs[-1], "Sqrt")
        if root is not None:
            return top, root
    return None


def _centred(view: DefUse, name: str, axes: int) -> str | None:
    """What a value is, less its mean."""
    node = view.made_by(name, "Sub")
    mean = view.made_by(node.inputs[1], "ReduceMean") if node is not None and len(node.inputs) == 2 else None
    if node is None or mean is None or mean.inputs[0] != node.inputs[0] or _axes(view, mean) != axes:
        return None
    return node.inputs[0]


def _axes(view: DefUse, node: FileNode) -> int | None:
    """The one axis of a mean that keeps its dimensions."""
    axes = node.ints("axes")
    if axes is None and len(node.inputs) == 2 and node.inputs[1] in view.constants:
        axes = tuple(view.constants[node.inputs[1]].integers())
    return axes[0] if axes is not None and len(axes) == 1 and node.int("keepdims", 1) else None


def _with(ops: tuple[str, ...], op: str, count: int) -> Callable[[DefUse, FileNode], FileNode | None]:
    """The change that makes an operator with a constant after a normalization its further input."""

    def change(view: DefUse, node: FileNode) -> FileNode | None:
        if node.op != op or len(node.inputs) != 2:
            return None
        for name, other in (node.inputs, node.inputs[::-1]):
            norm, value = view.made_by(name, *ops), view.constants.get(other)
            # A row: it needs no rank to see that it lies along the last dimension.
            if norm is not None and len(norm.inputs) == count and value is not None and len(value.shape) == 1:
                return replace(norm, inputs=(*norm.inputs, other), outputs=node.outputs)
        return None

    return change


#: The changes, one after the other.
NORMALIZATIONS = (
    _norm,
    _with(("LayerNormalization", "RMSNormalization"), "Mul", 1),
    _with(("LayerNormalization",), "Add", 2),
)
