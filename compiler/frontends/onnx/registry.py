"""The registry of ONNX conversions, the operator versions they are for, and the interface they see."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import onnx

from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode, OnnxModel, check_inputs
from compiler.frontends.onnx.values import ConstantValue, UnsupportedNodeError, Value
from hw.errors import InputError, shown


class OnnxReader(Protocol):
    """Who converts the nodes of a graph of the file, and of subgraphs (`convert.py`)."""

    def inside(self, model: OnnxModel, constants: Mapping[str, ConstantValue]) -> "OnnxReader":
        """The same for a subgraph, some of whose inputs and captured values are known."""
        ...

    def emitter(self, room: int) -> OnnxGraphBuilder:
        """What builds a graph of its own for the nodes."""
        ...

    def convert(self, emitter: OnnxGraphBuilder, values: dict[str, Value]) -> None:
        """Add what the nodes become; values get what they make. Raises UnsupportedError if that cannot be done."""
        ...


#: Domain of ONNX's own operators.
DEFAULT = ""
#: Operators before this set broadcast by attributes of their own.
LEAST = 7


def versions_of(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """By domain; that of ONNX's own operators has two names."""
    found: dict[str, int] = {}
    for each in imports:
        domain = DEFAULT if each.domain == "ai.onnx" else each.domain
        found[domain] = max(each.version, found.get(domain, each.version))
    return found


def check_version(version: int) -> None:
    """Refuse a version of ONNX's own operators that is too old or too new to be read."""
    if version < LEAST:
        raise InputError(
            f"operator set must be {LEAST} or later, not {version}; onnx.version_converter updates it"
        )
    if version > (most := onnx.defs.onnx_opset_version()):
        raise InputError(
            f"operator set must be {most} or earlier, the last that onnx {onnx.__version__} has, not {version}"
        )


_Input = TypeVar("_Input")
#: From the builder, the node and its inputs (as many as it can have, None where absent) to its outputs.
Function = Callable[[OnnxGraphBuilder, FileNode, list[Any]], Sequence[Value]]


@dataclass(frozen=True)
class OnnxConversion:
    """How one operator is converted, and how many inputs it must and can have; None: any number."""

    function: Function
    least: int
    most: int | None

    def __call__(
        self, emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Value | None]
    ) -> Sequence[Value]:
        """Convert a node."""
        return self.function(emitter, node, self.checked(inputs))

    def checked(self, inputs: "list[_Input | None]") -> "list[_Input | None]":
        """The inputs, or their names, filled up with None."""
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        most = len(inputs) if self.most is None else self.most
        check_inputs([v is not None for v in inputs], self.least, self.most)
        return inputs + [None] * (most - len(inputs))


#: By operator.
CONVERSIONS: dict[str, OnnxConversion] = {}


def converts(*ops: str, inputs: tuple[int, int | None]) -> Callable[[Function], Function]:
    """Register a function as the conversion of operators, with their numbers of inputs."""

    def enter(function: Function) -> Function:
        CONVERSIONS.update(dict.fromkeys(ops, OnnxConversion(function, *inputs)))
        return function

    return enter


def known(value: Value | None, what: str) -> ConstantValue:
    """A value that must be known beforehand."""
    if not isinstance(value, ConstantValue):
        raise UnsupportedNodeError(f"{what} that is not constant")
    return value


def integers(node: FileNode, key: str, value: Value | None) -> tuple[int, ...] | None:
    """What is an attribute in old operator sets and an input in later ones; None if neither is there."""
    if value is not None:
        return tuple(known(value, key).integers())
    return node.ints(key)


def choice(node: FileNode, key: str, default: str, *choices: str) -> str:
    """An attribute that must be one of several texts."""
    value = node.text(key, default)
    if value not in choices:
        raise InputError(f"attribute {key} must be one of {', '.join(choices)}, not {shown(value)}")
    return value
