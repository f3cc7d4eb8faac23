"""Registry of ONNX operator conversions, supported operator set versions, and helpers for attributes and inputs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import onnx

from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode, OnnxModel, check_inputs
from compiler.frontends.onnx.values import ConstantValue, UnsupportedNodeError, Value, ValueType
from hw.errors import InputError, shown


class OnnxReader(Protocol):
    """Interface through which the conversions of nodes with subgraphs use the importer (`importer.py`)."""

    def inside(self, model: OnnxModel, constants: Mapping[str, ConstantValue]) -> "OnnxReader":
        """Return a reader for a subgraph; `constants` holds its inputs and captured values that are constant."""
        ...

    def emitter(self, room: int, known: Mapping[str, ValueType] | None = None) -> OnnxGraphBuilder:
        """Return a new graph builder, whose new constants may have at most `room` elements in total."""
        ...

    def convert(self, emitter: OnnxGraphBuilder, values: dict[str, Value]) -> None:
        """Convert the nodes and add their outputs to `values`, or raise UnsupportedNodeError if one is unsupported."""
        ...


#: Domain of ONNX's own operators.
DEFAULT = ""
#: Oldest supported operator set; in earlier ones, attributes control broadcasting.
MIN_OPSET = 7


def versions_of(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Return the operator set version of each domain; the two names of ONNX's own domain are merged."""
    found: dict[str, int] = {}
    for each in imports:
        domain = DEFAULT if each.domain == "ai.onnx" else each.domain
        found[domain] = max(each.version, found.get(domain, each.version))
    return found


def check_version(version: int) -> None:
    """Raise InputError if an operator set version is too old or too new."""
    if version < MIN_OPSET:
        raise InputError(
            f"operator set must be {MIN_OPSET} or later, not {version}; onnx.version_converter updates it"
        )
    if version > (most := onnx.defs.onnx_opset_version()):
        raise InputError(
            f"operator set must be {most} or earlier, the last that onnx {onnx.__version__} has, not {version}"
        )


_Input = TypeVar("_Input")
#: Conversion function: takes the builder, the node and its inputs (padded with None) and returns the outputs: values,
#: sequences, or None for outputs that are not read.
Function = Callable[[OnnxGraphBuilder, FileNode, list[Any]], Sequence[Any]]


@dataclass(frozen=True)
class OnnxConversion:
    """Conversion of one operator.

    Parameters
    ----------
    function : callable
        Function that converts a node; its list of inputs is padded with None to length `most`.
    least : int
        Minimum number of inputs.
    most : int or None
        Maximum number of inputs; None: any number.
    """

    function: Function
    least: int
    most: int | None

    def __call__(
        self, emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Value | None]
    ) -> Sequence[Any]:
        """Convert a node."""
        return self.function(emitter, node, self.checked(inputs))

    def checked(self, inputs: "list[_Input | None]") -> "list[_Input | None]":
        """Return the inputs or input names, padded with None, or raise InputError if their number is wrong."""
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        most = len(inputs) if self.most is None else self.most
        check_inputs([v is not None for v in inputs], self.least, self.most)
        return inputs + [None] * (most - len(inputs))


#: Conversions by operator.
CONVERSIONS: dict[str, OnnxConversion] = {}


def converts(*ops: str, inputs: tuple[int, int | None]) -> Callable[[Function], Function]:
    """Register the decorated function as the conversion of `ops`; `inputs` is their least and largest input count."""

    def register(function: Function) -> Function:
        CONVERSIONS.update(dict.fromkeys(ops, OnnxConversion(function, *inputs)))
        return function

    return register


def known(value: Value | None, what: str) -> ConstantValue:
    """Return the value if it is constant, or raise UnsupportedNodeError otherwise."""
    if not isinstance(value, ConstantValue):
        raise UnsupportedNodeError(f"{what} must be constant")
    return value


def integers(node: FileNode, key: str, value: Value | None) -> tuple[int, ...] | None:
    """Return the integers of attribute `key` (old operator sets) or input `value` (later ones); None without either."""
    if value is not None:
        return tuple(known(value, key).integers())
    return node.ints(key)


def choice(node: FileNode, key: str, default: str, *choices: str) -> str:
    """Return a string attribute, or raise InputError if it is not one of the choices."""
    value = node.text(key, default)
    if value not in choices:
        raise InputError(f"attribute {key} must be one of {', '.join(choices)}, not {shown(value)}")
    return value
