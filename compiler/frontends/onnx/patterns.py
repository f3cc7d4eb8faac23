"""Subgraphs that exporters write for one operator: GELU, SiLU, hard swish, normalizations."""

import math
from collections.abc import Callable
from dataclasses import replace

from compiler.frontends.onnx.def_use import DefUse, instead, near
from compiler.frontends.onnx.node import FileNode, OnnxModel


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

#: Operators that the graph has as parts of others only.
_ONLY_IN_PATTERNS = ("Erf", "Sqrt")

Change = Callable[[DefUse, FileNode], FileNode | None]


def recognize(model: OnnxModel) -> OnnxModel:
    """The model with such subgraphs as one node each."""
    model = _changed(model, (_activation, *NORMALIZATIONS), through=False)
    if any(node.op in _ONLY_IN_PATTERNS for node in model.nodes):
        model = _changed(model, (_gelu_alone, *NORMALIZATIONS), through=True)
    return model


def _changed(model: OnnxModel, changes: tuple[Change, ...], *, through: bool) -> OnnxModel:
    """The model after changes to its nodes.

    With `through`, quantizations inside of a subgraph do not hide it: one that has an operator which there is only as
    part of a subgraph could not be converted otherwise. What it rounds in between is lost.
    """
    for change in changes:
        before = _quantized_again(model) if through else {}
        seen = [replace(n, inputs=tuple(before.get(name, name) for name in n.inputs)) for n in model.nodes]
        view, nodes, after = DefUse(replace(model, nodes=seen)), list[FileNode](), dict[str, str]()
        for node, shown in zip(model.nodes, seen, strict=True):
            if node.outputs[0] in before:
                after.setdefault(before[node.outputs[0]], node.outputs[0])
            found = change(view, shown)
            if found is not None:
                found = replace(found, inputs=tuple(after.get(name, name) for name in found.inputs))
            nodes.append(found or node)
        model = replace(model, nodes=nodes).used()
    return model


def _quantized_again(model: OnnxModel) -> dict[str, str]:
    """For each value that was quantized and dequantized: what it was before."""
    quantized = {node.outputs[0]: node.inputs[0] for node in model.nodes if node.op == "QuantizeLinear"}
    before: dict[str, str] = {}
    for node in model.nodes:
        if node.op == "DequantizeLinear" and node.inputs[0] in quantized:
            name = quantized[node.inputs[0]]
            before[node.outputs[0]] = before.get(name, name)
    return before


def _activation(view: DefUse, node: FileNode) -> FileNode | None:
    """A product of x and a function of x."""
    if node.op not in ("Mul", "Div"):
        return None
    factor, leaves = view.product(node.outputs[0])
    if len(leaves) != 2 or leaves[0] == leaves[1]:
        return None
    for x, other in (leaves, leaves[::-1]):
        for match in (_silu, _hard_swish, _gelu):
            found = match(view, node, x, other, factor)
            if found is not None:
                return found
    return None


def _gelu_alone(view: DefUse, node: FileNode) -> FileNode | None:
    """A GELU, but none of the activations whose parts the graph has."""
    found = _activation(view, node)
    return found if found is not None and found.op == "Gelu" else None


def _silu(view: DefUse, node: FileNode, x: str, other: str, factor: float) -> FileNode | None:
    gate = view.made_by(other, "Sigmoid")
    return (
        instead(node, "Silu", (x,))
        if gate is not None and gate.inputs == (x,) and near(factor, 1.0)
        else None
    )


def _hard_swish(view: DefUse, node: FileNode, x: str, other: str, factor: float) -> FileNode | None:
    gate = view.made_by(other, "HardSigmoid", "Clip")
    if gate is None or not gate.inputs:
        return None
    if gate.op == "HardSigmoid":
        usual = near(gate.float("alpha", 0.2), 1 / 6) and near(gate.float("beta", 0.5), 0.5)
        return (
            instead(node, "HardSwish", (x,)) if usual and gate.inputs == (x,) and near(factor, 1.0) else None
        )
    low, high = (view.scalar(name) for name in (*gate.inputs[1:], "", "")[:2])
    low, high = (
        (gate.float("min", 1.0) if low is None else low),
        (gate.float("max", 0.0) if high is None else high),
    )
    shifted = view.sum_with(gate.inputs[0], 3.0)
    fits = shifted == x and low == 0 and high == 6 and near(factor, 1 / 6)
    return instead(node, "HardSwish", (x,)) if fits else None


def _gelu(view: DefUse, node: FileNode, x: str, other: str, factor: float) -> FileNode | None:
    inner = view.sum_with(other, 1.0)
    bent = view.made_by(inner, "Erf", "Tanh") if inner is not None else None
    if bent is None or not near(factor, 0.5):
        return None
    scale, leaves = view.product(bent.inputs[0])
    if bent.op == "Erf":
        fits = leaves == [x] and near(scale, math.sqrt(0.5))
        return instead(node, "Gelu", (x,)) if fits else None
    cubic = near(scale, math.sqrt(2 / math.pi)) and (
        (len(leaves) == 1 and _cubic(view, leaves[0], x))
        or (len(leaves) == 2 and x in leaves and _even(view, leaves[leaves[0] == x], x))
    )
    return instead(node, "Gelu", (x,), approximate=b"tanh") if cubic else None


def _cubic(view: DefUse, name: str, x: str) -> bool:
    """X + 0.044715 x**3."""
    node = view.made_by(name, "Add")
    if node is None or x not in node.inputs or len(node.inputs) != 2:
        return False
    scale, leaves = view.product(node.inputs[node.inputs[0] == x])
    return near(scale, 0.044715) and leaves == [x, x, x]


def _even(view: DefUse, name: str, x: str) -> bool:
    """1 + 0.044715 x**2."""
    rest = view.sum_with(name, 1.0)
    if rest is None:
        return False
    scale, leaves = view.product(rest)
    return near(scale, 0.044715) and leaves == [x, x]
