"""Contents of an ONNX file as plain data, models of one node, and errors with the node's name."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

from compiler.frontends.onnx.values import ConstantValue, UnsupportedNodeError
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


#: What arithmetic on a damaged file's numbers may raise where no check has seen the damage.
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
#: So many nodes are named in one message.
_MOST_NAMED = 20

#: Name, operator and reason of a node.
Refused = tuple[str, str, str]


class UnsupportedNodesError(InputError):
    """Nodes that there is no conversion for.

    Attributes
    ----------
    nodes : list of (str, str, str)
        Name, operator and reason of each.
    """

    def __init__(self, nodes: list[Refused]):
        self.nodes = nodes
        named = listed(nodes)
        more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        super().__init__(f"there is no conversion for node {', '.join(named[:_MOST_NAMED])}{more}")


def listed(nodes: Sequence[Refused]) -> list[str]:
    """Each node with its operator and its reason, as text."""
    return [f"{shown(name)} ({shown(op)[1:-1]}{': ' if why else ''}{why})" for name, op, why in nodes]


def check_inputs(given: Sequence[object], least: int, most: int | None) -> None:
    """InputError unless there are from `least` to `most` inputs, the first `least` of them not left out."""
    if len(given) < least or (most is not None and len(given) > most):
        raise InputError(f"must have {_counted(least, most)}, not {len(given)}")
    for number, each in enumerate(given[:least], 1):
        if not each:
            raise InputError(f"input {number} must not be left out")


def _counted(least: int, most: int | None) -> str:
    """A number of inputs, in words that read on."""
    if most is None:
        return f"at least {least} input{'s' * (least != 1)}"
    if least == most:
        return f"{least} input{'s' * (least != 1)}"
    return f"{least} {'or' if most == least + 1 else 'to'} {most} inputs"


@contextmanager
def naming(node: FileNode) -> Iterator[None]:
    """Name the node in errors; an UnsupportedError goes through as it is."""
    try:
        yield
    except UnsupportedNodeError:
        raise
    except InputError as error:
        where = f"node {shown(node.name)}"
        named = str(error).startswith(where)  # by the graph, which says more
        raise InputError(f"{error}" if named else f"{where}: {error}") from None
    except DAMAGE as error:
        raise InputError(f"node {shown(node.name)}: damaged: {error or type(error).__name__}") from None


def check_operator(node: NodeProto, opset: int) -> None:
    """InputError if no operator set of ONNX's own up to this one has the node's operator."""
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
    """A model of one node; arrays that are not among the inputs are constants."""
    made = {name: value for name, value in zip(node.output, outputs or (), strict=False) if name}
    graph = helper.make_graph(
        [node],
        node.name or node.op_type,
        [helper.make_tensor_value_info(name, _type_of(arrays[name]), arrays[name].shape) for name in inputs],
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(np.dtype(made[name][0])), made[name][1]
            )
            if name in made
            else ValueInfoProto(name=name)
            for name in node.output
            if name
        ],
        [numpy_helper.from_array(array, name) for name, array in arrays.items() if name not in inputs],
    )
    imports = [helper.make_opsetid("", opset)] + [helper.make_opsetid(node.domain, 1)] * bool(node.domain)
    model = helper.make_model(graph, opset_imports=imports)
    if not made:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    if any(value.type.WhichOneof("value") is None for value in model.graph.output):
        title = shown(node.name or node.op_type)
        raise InputError(f"node {title}: its outputs' types do not follow from its inputs: give outputs_info")
    return model


def _type_of(array: NDArray) -> int:
    try:
        return helper.np_dtype_to_tensor_dtype(array.dtype)
    except (KeyError, ValueError):
        raise InputError(f"an input must be an array of numbers, not of {array.dtype}") from None
