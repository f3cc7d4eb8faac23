"""Subgraphs that exporters write for one operator: GELU, SiLU, hard swish, normalizations."""

import math
from collections.abc import Callable
from dataclasses import replace

from compiler.frontends.onnx.def_use import DefUse, instead, near
from compiler.frontends.onnx.node import FileNode, OnnxModel
from compiler.frontends.onnx.norms import NORMALIZATIONS

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
