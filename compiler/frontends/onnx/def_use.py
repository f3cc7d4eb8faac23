"""Def-use chains of an ONNX graph, for pattern matching."""

import math
from dataclasses import replace

from compiler.frontends.onnx.node import FileNode, OnnxModel

#: Factors of a product are looked for so deep.
_DEPTH = 6


class DefUse:
    """Producers and consumers of the values of a model.

    Parameters
    ----------
    model : Model
        The model; it must not change while this is used.
    """

    def __init__(self, model: OnnxModel):
        self.constants = model.constants
        self.makers = {name: node for node in model.nodes for name in node.outputs}
        self.users: dict[str, list[FileNode]] = {}
        for node in model.nodes:
            for name in node.inputs:
                self.users.setdefault(name, []).append(node)
        self.outputs = {output.name for output in model.outputs}

    def only_user(self, name: str) -> FileNode | None:
        """The one node that reads a value, if there is just one reader."""
        users = self.users.get(name, [])
        return users[0] if len(users) == 1 and name not in self.outputs else None

    def made_by(self, name: str, *ops: str) -> FileNode | None:
        """The node that makes a value, if it has one of these operators."""
        node = self.makers.get(name)
        return node if node is not None and node.op in ops and all(node.inputs[:1]) and node.inputs else None

    def scalar(self, name: str) -> float | None:
        """The one number that a constant holds."""
        value = self.constants.get(name)
        return None if value is None or value.data.size != 1 or len(value.shape) > 1 else value.scalar()

    def product(self, name: str, depth: int = _DEPTH) -> tuple[float, list[str]]:
        """A value as a number times other values, in order of their names."""
        node = self.made_by(name, "Mul", "Div", "Pow")
        if node is None or len(node.inputs) != 2 or not depth:
            return 1.0, [name]
        number = self.scalar(node.inputs[1])
        if node.op == "Pow":
            if number not in (2.0, 3.0):
                return 1.0, [name]
            factor, leaves = self.product(node.inputs[0], depth - 1)
            return factor**number, sorted(leaves * int(number))
        if node.op == "Div":
            if not number:
                return 1.0, [name]
            factor, leaves = self.product(node.inputs[0], depth - 1)
            return factor / number, leaves
        total, leaves = 1.0, list[str]()
        for part in node.inputs:
            number = self.scalar(part)
            factor, more = (number, []) if number is not None else self.product(part, depth - 1)
            total, leaves = total * factor, leaves + more
        return total, sorted(leaves)

    def sum_with(self, name: str, number: float) -> str | None:
        """What is added to a number to make a value."""
        node = self.made_by(name, "Add")
        if node is None or len(node.inputs) != 2:
            return None
        for one, other in (node.inputs, node.inputs[::-1]):
            if near(self.scalar(one), number):
                return other
        return None


def near(number: float | None, wanted: float) -> bool:
    """A number is another but for its rounding in exporters."""
    return number is not None and math.isclose(number, wanted, rel_tol=1e-3)


def instead(node: FileNode, op: str, inputs: tuple[str, ...], **attributes: object) -> FileNode:
    """A node that makes what another made."""
    return replace(node, op=op, inputs=inputs, attributes=attributes)
