"""Subgraphs that exporters write for one operator: GELU, SiLU, hard swish, layer normalization, RMS normalization."""

import math
from collections.abc import Callable
from dataclasses import replace

from compiler.frontends.onnx_file import FileNode, Model
from compiler.frontends.onnx_view import View

#: Factors of a product are looked for so deep.
_DEPTH = 6


def recognize(model: Model) -> Model:
    """The model with such subgraphs as one node each."""
    for change in (_activation, _norm, _scaled, _shifted):
        view = View(model)
        nodes = [change(view, node) or node for node in model.nodes]
        model = replace(model, nodes=nodes).used()
    return model


def _near(number: float | None, wanted: float) -> bool:
    return number is not None and math.isclose(number, wanted, rel_tol=1e-3)


def _as(node: FileNode, op: str, inputs: tuple[str, ...], **attributes: object) -> FileNode:
    return replace(node, op=op, inputs=inputs, attributes=attributes)


def _product(view: View, name: str, depth: int = _DEPTH) -> tuple[float, list[str]]:
    """A value as a number times other values, in order of their names."""
    node = view.made_by(name, "Mul", "Div", "Pow")
    if node is None or len(node.inputs) != 2 or not depth:
        return 1.0, [name]
    number = view.scalar(node.inputs[1])
    if node.op == "Pow":
        if number not in (2.0, 3.0):
            return 1.0, [name]
        factor, leaves = _product(view, node.inputs[0], depth - 1)
        return factor**number, sorted(leaves * int(number))
    if node.op == "Div":
        if not number:
            return 1.0, [name]
        factor, leaves = _product(view, node.inputs[0], depth - 1)
        return factor / number, leaves
    total, leaves = 1.0, list[str]()
    for part in node.inputs:
        number = view.scalar(part)
        factor, more = (number, []) if number is not None else _product(view, part, depth - 1)
        total, leaves = total * factor, leaves + more
    return total, sorted(leaves)


def _sum_with(view: View, name: str, number: float) -> str | None:
    """What is added to a number to make a value."""
    node = view.made_by(name, "Add")
    if node is None or len(node.inputs) != 2:
        return None
    for one, other in (node.inputs, node.inputs[::-1]):
        if _near(view.scalar(one), number):
            return other
    return None


def _activation(view: View, node: FileNode) -> FileNode | None:
    """A product of x and a function of x."""
    if node.op not in ("Mul", "Div"):
        return None
    factor, leaves = _product(view, node.outputs[0])
    if len(leaves) != 2 or leaves[0] == leaves[1]:
        return None
    for x, other in (leaves, leaves[::-1]):
        for match in (_silu, _hard_swish, _gelu):
            found = match(view, node, x, other, factor)
            if found is not None:
                return found
    return None


def _silu(view: View, node: FileNode, x: str, other: str, factor: float) -> FileNode | None:
    gate = view.made_by(other, "Sigmoid")
    return (
        _as(node, "Silu", (x,)) if gate is not None and gate.inputs == (x,) and _near(factor, 1.0) else None
    )


def _hard_swish(view: View, node: FileNode, x: str, other: str, factor: float) -> FileNode | None:
    gate = view.made_by(other, "HardSigmoid", "Clip")
    if gate is None or not gate.inputs:
        return None
    if gate.op == "HardSigmoid":
        usual = _near(gate.float("alpha", 0.2), 1 / 6) and _near(gate.float("beta", 0.5), 0.5)
        return _as(node, "HardSwish", (x,)) if usual and gate.inputs == (x,) and _near(factor, 1.0) else None
    low, high = (view.scalar(name) for name in (*gate.inputs[1:], "", "")[:2])
    low, high = (
        (gate.float("min", 1.0) if low is None else low),
        (gate.float("max", 0.0) if high is None else high),
    )
    shifted = _sum_with(view, gate.inputs[0], 3.0)
    fits = shifted == x and low == 0 and high == 6 and _near(factor, 1 / 6)
    return _as(node, "HardSwish", (x,)) if fits else None


def _gelu(view: View, node: FileNode, x: str, other: str, factor: float) -> FileNode | None:
    inner = _sum_with(view, other, 1.0)
    bent = view.made_by(inner, "Erf", "Tanh") if inner is not None else None
    if bent is None or not _near(factor, 0.5):
        return None
    scale, leaves = _product(view, bent.inputs[0])
    if bent.op == "Erf":
        fits = leaves == [x] and _near(scale, math.sqrt(0.5))
        return _as(node, "Gelu", (x,)) if fits else None
    cubic = _near(scale, math.sqrt(2 / math.pi)) and (
        (len(leaves) == 1 and _cubic(view, leaves[0], x))
        or (len(leaves) == 2 and x in leaves and _even(view, leaves[leaves[0] == x], x))
    )
    return _as(node, "Gelu", (x,), approximate=b"tanh") if cubic else None


def _cubic(view: View, name: str, x: str) -> bool:
    """X + 0.044715 x**3."""
    node = view.made_by(name, "Add")
    if node is None or x not in node.inputs or len(node.inputs) != 2:
        return False
    scale, leaves = _product(view, node.inputs[node.inputs[0] == x])
    return _near(scale, 0.044715) and leaves == [x, x, x]


def _even(view: View, name: str, x: str) -> bool:
    """1 + 0.044715 x**2."""
    rest = _sum_with(view, name, 1.0)
    if rest is None:
        return False
    scale, leaves = _product(view, rest)
    return _near(scale, 0.044715) and leaves == [x, x]


def _norm(view: View, node: FileNode) -> FileNode | None:
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
        factor, leaves = _product(view, mean.inputs[0])
        axes = _axes(view, mean)
        if factor != 1.0 or len(leaves) != 2 or leaves[0] != leaves[1] or axes is None:
            continue
        centred = _centred(view, top, axes)
        if centred is not None and (leaves[0] == top or _centred(view, leaves[0], axes) == centred):
            return _as(node, "LayerNormalization", (centred,), only=axes, epsilon=epsilon)
        if leaves[0] == top:
            return _as(node, "RMSNormalization", (top,), only=axes, epsilon=epsilon)
    return None


def _quotient(view: View, node: FileNode) -> tuple[str, FileNode] | None:
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


def _centred(view: View, name: str, axes: int) -> str | None:
    """What a value is, less its mean."""
    node = view.made_by(name, "Sub")
    mean = view.made_by(node.inputs[1], "ReduceMean") if node is not None and len(node.inputs) == 2 else None
    if node is None or mean is None or mean.inputs[0] != node.inputs[0] or _axes(view, mean) != axes:
        return None
    return node.inputs[0]


def _axes(view: View, node: FileNode) -> int | None:
    """The one axis of a mean that keeps its dimensions."""
    axes = node.ints("axes")
    if axes is None and len(node.inputs) == 2 and node.inputs[1] in view.constants:
        axes = tuple(view.constants[node.inputs[1]].integers())
    return axes[0] if axes is not None and len(axes) == 1 and node.int("keepdims", 1) else None


def _with(ops: tuple[str, ...], op: str, count: int) -> Callable[[View, FileNode], FileNode | None]:
    """The change that makes an operator with a constant after a normalization its further input."""

    def change(view: View, node: FileNode) -> FileNode | None:
        if node.op != op or len(node.inputs) != 2:
            return None
        for name, other in (node.inputs, node.inputs[::-1]):
            norm, value = view.made_by(name, *ops), view.constants.get(other)
            # A row: it needs no rank to see that it lies along the last dimension.
            if norm is not None and len(norm.inputs) == count and value is not None and len(value.shape) == 1:
                return replace(norm, inputs=(*norm.inputs, other), outputs=node.outputs)
        return None

    return change


_scaled = _with(("LayerNormalization", "RMSNormalization"), "Mul", 1)
_shifted = _with(("LayerNormalization",), "Add", 2)
