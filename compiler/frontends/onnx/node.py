"""Contents of an ONNX file as plain data, single-node models, and errors that name the node."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

from compiler.frontends.builder import WHERE_LISTED
from compiler.frontends.onnx.values import INTERFACE_FLOATS, ConstantValue, UnsupportedNodeError
from hw.errors import InputError, shown


@dataclass(frozen=True, eq=False)
class FileNode:
    """Node of the file, or node created by a rewrite.

    Parameters
    ----------
    name : str
        Name for messages, generated if the node has no name in the file.
    op : str
        Name of the operator, prefixed with its domain unless the domain is supported.
    inputs, outputs : tuple of str
        Tensor names; "" for an omitted tensor. Values captured by subgraphs come last among the inputs.
    attributes : dict
        Attributes as Python values; a subgraph is an OnnxModel.
    opset : int
        Version of ONNX's operator set.
    source : OnnxSource or None
        Protocol buffer of the node; None for a node created by a rewrite.
    origin : tuple of str
        Names and operators of the nodes of the file that a rewrite replaced by this node.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 17
    source: "OnnxSource | None" = field(default=None, repr=False)
    origin: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names and operators, in the file, of the nodes that this node stands for."""
        return (self.name, self.op, *self.origin)

    def int(self, key: str, default: int) -> int:
        """Return an integer attribute."""
        return self._typed(key, default, int, "an integer")

    def float(self, key: str, default: float) -> float:
        """Return a numeric attribute."""
        return float(self._typed(key, default, (int, float), "a number"))

    def text(self, key: str, default: str) -> str:
        """Return a string attribute."""
        value = self._typed(key, default.encode(), bytes, "text")
        return value.decode(errors="replace")

    def ints(self, key: str, default: "tuple[int, ...] | None" = None) -> "tuple[int, ...] | None":
        """Return an attribute that is a list of integers."""
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
    """Replace both branches of an If with a constant condition by the executed branch; return other nodes unchanged.

    Values that only the other branch captures are removed from the inputs.
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
    """Protocol buffer of a node, with the operator set versions of its model.

    Parameters
    ----------
    proto : onnx.NodeProto
        The node as stored in the file.
    versions : tuple of onnx.OperatorSetIdProto
        Operator sets that the model imports.
    """

    proto: onnx.NodeProto
    versions: tuple[onnx.OperatorSetIdProto, ...]


@dataclass(frozen=True)
class Declared:
    """Input or output as declared in the file.

    Parameters
    ----------
    name : str
        Name of the tensor.
    dtype : str
        Numpy type name; "" in subgraphs.
    shape : tuple or None
        Size of each dimension: an integer, a symbolic name, or None if unknown. None instead of a tuple if the rank is
        unknown.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None

    @property
    def held(self) -> str:
        """Type of the value inside the graph."""
        return "float32" if self.dtype in INTERFACE_FLOATS else self.dtype


@dataclass
class OnnxModel:
    """Model or subgraph as plain data.

    Parameters
    ----------
    nodes : list of FileNode
        Nodes in topological order.
    constants : dict
        Constants by name.
    inputs, outputs : list of Declared
        Inputs that are not constants, and outputs.
    captured : tuple of str
        Names that a subgraph reads from the enclosing graph.
    """

    nodes: list[FileNode]
    constants: dict[str, ConstantValue]
    inputs: list[Declared]
    outputs: list[Declared]
    captured: tuple[str, ...] = ()

    def used(self) -> "OnnxModel":
        """Return the model without dead nodes."""
        needed, live = {output.name for output in self.outputs}, []
        for node in reversed(self.nodes):
            if needed.intersection(node.outputs):
                needed.update(node.inputs)
                live.append(node)
        captured = tuple(name for name in self.captured if name in needed)
        return replace(self, nodes=live[::-1], captured=captured)


#: Maximum number of nodes of a pattern that a rewrite replaced by one node.
_MAX_REPLACED = 64


def with_origins(before: OnnxModel, after: OnnxModel) -> OnnxModel:
    """Return the rewritten model `after`, whose new nodes have the names of the nodes of `before` that they replace.

    These are the nodes between the inputs and the outputs of a new node that do not remain in the model.
    """
    old, remaining = set(before.nodes), set(after.nodes)
    producers = {name: node for node in before.nodes for name in node.outputs if node not in remaining}
    nodes: list[FileNode] = []
    for node in after.nodes:
        found: dict[FileNode, None] = {}
        waiting = [] if node in old else list(node.outputs)
        while waiting and len(found) < _MAX_REPLACED:
            producer = producers.get(waiting.pop())
            if producer is not None and producer not in found:
                found[producer] = None
                waiting += [name for name in producer.inputs if name not in node.inputs]
        names = dict.fromkeys(name for each in found for name in each.names)
        nodes.append(replace(node, origin=(*node.origin, *names)) if found else node)
    return replace(after, nodes=nodes)


#: Exceptions that undetected damage to a file may cause during conversion.
DAMAGE = (
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    OverflowError,
    ZeroDivisionError,
    AttributeError,
    MemoryError,
)
#: Maximum number of nodes listed in an error message.
_MAX_LISTED = 20

#: Name, operator and reason of a node.
Refused = tuple[str, str, str]


class UnsupportedNodesError(InputError):
    """Error for a model that has nodes without a conversion.

    Attributes
    ----------
    nodes : list of (str, str, str)
        Name, operator and reason of each unsupported node.
    """

    def __init__(self, nodes: list[Refused]):
        self.nodes = nodes
        named = listed(nodes)
        more = f" and {len(named) - _MAX_LISTED} more" if len(named) > _MAX_LISTED else ""
        super().__init__(
            f"there is no conversion for node {', '.join(named[:_MAX_LISTED])}{more}{WHERE_LISTED}"
        )


def listed(nodes: Sequence[Refused]) -> list[str]:
    """Return descriptions of unsupported nodes: name, operator and reason."""
    return [f"{shown(name)} ({shown(op)[1:-1]}{': ' if why else ''}{why})" for name, op, why in nodes]


def check_inputs(given: Sequence[object], least: int, most: int | None) -> None:
    """Raise InputError unless there are `least` to `most` inputs and the first `least` inputs are not omitted."""
    if len(given) < least or (most is not None and len(given) > most):
        raise InputError(f"must have {_input_count(least, most)}, not {len(given)}")
    for number, each in enumerate(given[:least], 1):
        if not each:
            raise InputError(f"input {number} must not be omitted")


def _input_count(least: int, most: int | None) -> str:
    """Return the allowed number of inputs as text for a message."""
    if most is None:
        return f"at least {least} input{'s' * (least != 1)}"
    if least == most:
        return f"{least} input{'s' * (least != 1)}"
    return f"{least} {'or' if most == least + 1 else 'to'} {most} inputs"


@contextmanager
def naming(node: FileNode) -> Iterator[None]:
    """Return a context manager that prefixes errors, except UnsupportedNodeError, with the node's name."""
    try:
        yield
    except UnsupportedNodeError:
        raise
    except InputError as error:
        where = f"node {shown(node.name)}"
        named = str(error).startswith(where)  # the message of the graph names the node already
        raise InputError(f"{error}" if named else f"{where}: {error}") from None
    except DAMAGE as error:
        raise InputError(f"node {shown(node.name)}: damaged: {error or type(error).__name__}") from None


def check_operator(node: NodeProto, opset: int) -> None:
    """Raise InputError if ONNX's operator sets up to `opset` do not define the node's operator."""
    if node.domain in ("", "ai.onnx") and not onnx.defs.has(node.op_type, opset, ""):
        raise InputError(
            f"node {shown(node.name or node.op_type)}: ONNX's operator set {opset} has no operator "
            f"{shown(node.op_type)}"
        )


def one_node(
    node: NodeProto,
    arrays: Mapping[str, NDArray],
    inputs: Sequence[str],
    opset: int,
    outputs: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
) -> ModelProto:
    """Return a model of one node, in which arrays that are not listed in `inputs` are constants."""
    output_types = {name: value for name, value in zip(node.output, outputs or (), strict=False) if name}
    graph = helper.make_graph(
        [node],
        node.name or node.op_type,
        [helper.make_tensor_value_info(name, _type_of(arrays[name]), arrays[name].shape) for name in inputs],
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(np.dtype(output_types[name][0])), output_types[name][1]
            )
            if name in output_types
            else ValueInfoProto(name=name)
            for name in node.output
            if name
        ],
        [numpy_helper.from_array(array, name) for name, array in arrays.items() if name not in inputs],
    )
    imports = [helper.make_opsetid("", opset)] + [helper.make_opsetid(node.domain, 1)] * bool(node.domain)
    model = helper.make_model(graph, opset_imports=imports)
    if not output_types:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    if any(value.type.WhichOneof("value") is None for value in model.graph.output):
        title = shown(node.name or node.op_type)
        raise InputError(f"node {title}: its output types cannot be inferred: give outputs_info")
    return model


def _type_of(array: NDArray) -> int:
    try:
        return helper.np_dtype_to_tensor_dtype(array.dtype)
    except (KeyError, ValueError):
        raise InputError(f"an input must be an array of numbers, not of {array.dtype}") from None
