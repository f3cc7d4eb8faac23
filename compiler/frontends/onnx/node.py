"""Contents of an ONNX file as plain data."""

from dataclasses import dataclass, field, replace
from typing import Any

import onnx

from compiler.frontends.onnx.values import ConstantValue
from hw.errors import InputError, shown


@dataclass(frozen=True, eq=False)
class FileNode:
    """A node of the file, or one that a rewrite made.

    Parameters
    ----------
    name : str
        For messages; made up if the file has none.
    op : str
        Operator; with its domain if that is none that is known.
    inputs, outputs : tuple of str
        Names; "" for one that is absent.
    attributes : dict
        As Python has them; a subgraph is a Model. What subgraphs read from outside are the last of the inputs.
    opset : int
        Version of the operators.
    source : Source or None
        The file's own words; None for a node that a rewrite made.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 17
    source: "OnnxSource | None" = field(default=None, repr=False)

    def int(self, key: str, default: int) -> int:
        """An attribute that is an integer."""
        return self._typed(key, default, int, "an integer")

    def float(self, key: str, default: float) -> float:
        """An attribute that is a number."""
        return float(self._typed(key, default, (int, float), "a number"))

    def text(self, key: str, default: str) -> str:
        """An attribute that is text."""
        value = self._typed(key, default.encode(), bytes, "text")
        return value.decode(errors="replace")

    def ints(self, key: str, default: "tuple[int, ...] | None" = None) -> "tuple[int, ...] | None":
        """An attribute that is a list of integers."""
        value = self.attributes.get(key)
        if value is None:
            return default
        if not isinstance(value, tuple) or not all(isinstance(v, int) for v in value):
            raise InputError(f"attribute {key} must be integers, not {shown(value)}")
        return value

    def _typed(self, key: str, default: Any, kinds: Any, what: str) -> Any:
        value = self.attributes.get(key, default)
        if not isinstance(value, kinds):
            raise InputError(f"attribute {key} must be {what}, not {shown(value)}")
        return value


def taken(node: FileNode, condition: ConstantValue | None) -> FileNode:
    """An If whose condition is known, with the branch that runs in place of both; any other node as it is.

    What only the other branch reads is no input any more.
    """
    keys = ("then_branch", "else_branch")
    bodies = [node.attributes.get(key) for key in keys]
    if node.op != "If" or condition is None or condition.data.size != 1:
        return node
    body = bodies[0 if condition.data.reshape(-1)[0] else 1]
    if not all(isinstance(each, OnnxModel) for each in bodies) or not isinstance(body, OnnxModel):
        return node
    inputs = (*node.inputs[:1], *body.captured)
    return replace(node, inputs=inputs, attributes=node.attributes | dict.fromkeys(keys, body))


@dataclass(frozen=True, eq=False)
class OnnxSource:
    """A node as the file has it, with the versions of all operators."""

    proto: onnx.NodeProto
    versions: tuple[onnx.OperatorSetIdProto, ...]


@dataclass(frozen=True)
class Declared:
    """An input or output as the file declares it; sizes that are not known are a name or None."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None

    @property
    def held(self) -> str:
        """The type that the graph computes on."""
        return "float32" if self.dtype == "float16" else self.dtype


@dataclass
class OnnxModel:
    """A file."""

    nodes: list[FileNode]
    constants: dict[str, ConstantValue]
    inputs: list[Declared]
    outputs: list[Declared]
    captured: tuple[str, ...] = ()  # of a subgraph: what it reads from outside

    def used(self) -> "OnnxModel":
        """Without the nodes that no output needs."""
        needed, kept = {output.name for output in self.outputs}, []
        for node in reversed(self.nodes):
            if needed.intersection(node.outputs):
                needed.update(node.inputs)
                kept.append(node)
        captured = tuple(name for name in self.captured if name in needed)
        return replace(self, nodes=kept[::-1], captured=captured)
