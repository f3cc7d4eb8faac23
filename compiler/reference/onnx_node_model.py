"""Single-node ONNX models: decoding, checks, cost limits and execution on the host."""

import base64
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from compiler.reference.onnx_ops import Array, OnnxNodeSpec, own
from compiler.reference.onnx_ops.registry import MAX_STEPS, steps
from hw.errors import InputError


class Given(NamedTuple):
    """Shape of a node's input, and its contents if it is constant."""

    shape: tuple[int, ...]
    data: NDArray | None


def check_work(spec: OnnxNodeSpec, inputs: Sequence[Given | None], outputs: Sequence[tuple[int, ...]]) -> int:
    """Estimate the number of elementary operations of a node, and check it against the limit.

    Raises
    ------
    InputError
        The node exceeds the limit for host operators.
    """
    count = steps(spec, [value and value.shape for value in inputs], outputs)
    if count > MAX_STEPS:
        raise InputError(f"it takes the host {count:,} steps, more than {MAX_STEPS:,}")
    return count


#: Exceptions that ONNX's reference raises for nodes that it does not implement or for invalid inputs.
REFUSALS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
    MemoryError,
    OSError,
    InputError,
)


@dataclass(frozen=True)
class NodeModel:
    """Decoded model of one node.

    Attributes
    ----------
    spec : OnnxNodeSpec
        Operator, version and attributes of the node.
    inputs : tuple of str
        Names of the inputs that are passed to `computed`.
    held : dict
        Constants stored in the model because they have no elements, which the graph's tensors cannot represent.
    """

    model: onnx.ModelProto
    spec: OnnxNodeSpec
    inputs: tuple[str, ...]
    held: dict[str, Array]

    @property
    def proto(self) -> onnx.NodeProto:
        """Protocol buffer of the node."""
        return self.model.graph.node[0]

    def computed(self, values: Sequence[Array], number: int) -> Array:
        """Compute one output of the node.

        Raises
        ------
        REFUSALS
            The node cannot be computed with these inputs.
        """
        given = dict(zip(self.inputs, values, strict=True)) | self.held
        function = own(self.spec)
        if function is None:
            (result,) = self._evaluator.run([f"output{number}"], given)
            return np.asarray(result)
        spec = replace(self.spec, outputs=number + 1)
        return np.asarray(function(spec, [given.get(name) for name in self.proto.input])[number])

    def known(self) -> None:
        """Check that the node is implemented here or by ONNX's reference implementation.

        Raises
        ------
        REFUSALS
            Neither implements the node.
        """
        if own(self.spec) is None:
            assert self._evaluator

    @functools.cached_property
    def _evaluator(self) -> Any:
        return ReferenceEvaluator(self.model)


@functools.lru_cache(64)
def node_model(text: str) -> NodeModel:
    """Decode the model in the attribute of an ONNX node.

    Raises
    ------
    ValueError, DecodeError
        The string is not a model of exactly one node, or the node has subgraphs, which could contain endless loops.
    """
    model = onnx.ModelProto.FromString(base64.b64decode(text, validate=True))
    graphs = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
    if len(model.graph.node) != 1 or model.functions:
        raise ValueError("must be a model of one node")
    (node,) = model.graph.node
    if any(attribute.type in graphs for attribute in node.attribute):
        raise ValueError("must hold no graphs")
    held = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    versions = {each.domain: each.version for each in model.opset_import}
    domain = "" if node.domain == "ai.onnx" else node.domain
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    op = node.op_type if not domain else f"{domain}:{node.op_type}"
    spec = OnnxNodeSpec(op, versions.get(domain, 1), attributes, len(node.output))
    given = tuple(dict.fromkeys(name for name in node.input if name and name not in held))
    return NodeModel(model, spec, given, held)


def text_of(model: onnx.ModelProto) -> str:
    """Serialize a model and encode it in base 64."""
    return base64.b64encode(model.SerializeToString(deterministic=True)).decode()


def line_of(error: BaseException) -> str:
    """Return the first line of a library's error message, shortened to 200 characters."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip()
    return line if len(line) <= 200 else f"{line[:197].rsplit(' ', 1)[0]} ..."
