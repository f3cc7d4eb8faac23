"""ONNX nodes rewritten into others before their conversion, so that there is one conversion for each computation."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from compiler.frontends.onnx.errors import check_inputs
from compiler.frontends.onnx.node import FileNode, OnnxModel
from compiler.frontends.onnx.values import ConstantValue, UnsupportedNodeError
from hw.errors import InputError

#: From a node to those that do the same, in order.
Expansion = Callable[[OnnxModel, FileNode], list[FileNode]]
_EXPANSIONS: dict[str, Expansion] = {}


def expand(model: OnnxModel) -> OnnxModel:
    """Operators on integers as operators on real numbers between dequantizations and quantizations."""
    nodes: list[FileNode] = []
    for node in model.nodes:
        expansion = _EXPANSIONS.get(node.op)
        try:
            nodes += [node] if expansion is None else expansion(model, node)
        except InputError as error:
            # The message of the rest of the reader names the node and collects what is not supported.
            nodes.append(replace(node, op=":refused", attributes={"error": error, "op": node.op}))
    return replace(model, nodes=nodes)


def expands(*ops: str) -> Callable[[Expansion], Expansion]:
    """Enter a function as that which rewrites operators."""

    def enter(function: Expansion) -> Expansion:
        _EXPANSIONS.update(dict.fromkeys(ops, function))
        return function

    return enter


class Parts:
    """Nodes that together do what one did, which must have from `least` to `most` inputs."""

    def __init__(self, model: OnnxModel, node: FileNode, least: int, most: int):
        check_inputs(node.inputs, least, most)
        self.model, self.node, self.nodes = model, node, list[FileNode]()
        self.inputs = (*node.inputs, *[""] * (most - len(node.inputs)))

    def add(self, op: str, inputs: tuple[str, ...], part: str, **attributes: object) -> str:
        """A node of an operator; returns its output. The one without a part makes the output of them all."""
        node = self.node
        output = f"{node.name}:{part}" if part else node.outputs[0]
        name = f"{node.name}:{part}" if part else node.name
        kept = (
            {} if part else {k: v for k, v in node.attributes.items() if k not in ("opset", "channels_last")}
        )
        self.nodes.append(FileNode(name, op, inputs, (output,), kept | attributes, node.opset))
        return output

    def real(self, at: int, part: str, axis: int = 1) -> str:
        """The real number of inputs `at` (integers, scale, zero point)."""
        self._known(at + 1)
        return self.add("DequantizeLinear", self.inputs[at : at + 3], part, axis=axis)

    def finish(self, op: str, inputs: tuple[str, ...], at: int, **attributes: object) -> list[FileNode]:
        """The operator itself, and the quantization by inputs `at` (scale, zero point)."""
        self._known(at)
        output = f"{self.node.name}:real"
        self.add(op, inputs, "", **attributes)
        self.nodes[-1] = replace(self.nodes[-1], outputs=(output,))
        scale = (output, *self.inputs[at : at + 2])
        self.nodes.append(
            FileNode(
                f"{self.node.name}:quantize",
                "QuantizeLinear",
                scale,
                self.node.outputs[:1],
                {},
                self.node.opset,
            )
        )
        return self.nodes

    def _known(self, at: int) -> None:
        """Refuse a scale or zero point that flows."""
        for name, what in zip(self.inputs[at : at + 2], ("a scale", "a zero point"), strict=True):
            if name:
                self.fixed(name, what)

    def constant(self, part: str, data: np.ndarray) -> str:
        """A constant that the nodes use."""
        name = f"{self.node.name}:{part}"
        self.model.constants[name] = ConstantValue(name, data)
        return name

    def whole(self, at: int, *numbers: int) -> None:
        """Refuse inputs `numbers`, the scale or zero point of input `at`, that have several for one that flows."""
        given = [self.model.constants.get(self.inputs[number]) for number in numbers]
        if self.inputs[at] not in self.model.constants and any(
            v is not None and v.data.size > 1 for v in given
        ):
            raise UnsupportedNodeError(
                f"{self.inputs[at]!r} is not constant: its scale and its zero point must be one number each"
            )

    def fixed(self, name: str, what: str) -> ConstantValue:
        """An input that must be known."""
        value = self.model.constants.get(name)
        if value is None:
            raise UnsupportedNodeError(f"{what} that is not constant")
        return value
