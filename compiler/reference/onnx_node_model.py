"""A node of ONNX by itself, as the graph holds it, and what computes it."""

import base64
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from compiler.reference.onnx_ops import Array, Asked, own
from hw.errors import InputError

#: What is raised where ONNX's reference does not have a node, or inputs do not fit.
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
    """A model of one node.

    Attributes
    ----------
    asked : Asked
        The node.
    inputs : tuple of str
        Names of those that are given when it is computed.
    held : dict
        Constants that it has with it: those that no tensor can be, as they are empty.
    """

    model: onnx.ModelProto
    asked: Asked
    inputs: tuple[str, ...]
    held: dict[str, Array]

    @property
    def proto(self) -> onnx.NodeProto:
        """The node."""
        return self.model.graph.node[0]

    def computed(self, values: Sequence[Array], number: int) -> Array:
        """One of its outputs.

        Raises
        ------
        REFUSALS
            The node cannot be computed with such inputs.
        """
        given = dict(zip(self.inputs, values, strict=True)) | self.held
        function = own(self.asked)
        if function is None:
            (made,) = self._evaluator.run([f"output{number}"], given)
            return np.asarray(made)
        asked = replace(self.asked, outputs=number + 1)
        return np.asarray(function(asked, [given.get(name) for name in self.proto.input])[number])

    def known(self) -> None:
        """Refuse a node that nothing computes.

        Raises
        ------
        REFUSALS
            ONNX's reference does not have it.
        """
        if own(self.asked) is None:
            assert self._evaluator

    @functools.cached_property
    def _evaluator(self) -> Any:
        return ReferenceEvaluator(self.model)


@functools.lru_cache(64)
def node_model(text: str) -> NodeModel:
    """The model that a text holds.

    Raises
    ------
    ValueError, DecodeError
        It is none of one node, or has graphs inside, which could be endless.
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
    asked = Asked(op, versions.get(domain, 1), attributes, len(node.output))
    given = tuple(dict.fromkeys(name for name in node.input if name and name not in held))
    return NodeModel(model, asked, given, held)


def text_of(model: onnx.ModelProto) -> str:
    """A model as text."""
    return base64.b64encode(model.SerializeToString(deterministic=True)).decode()


def line_of(error: BaseException) -> str:
    """The first line of what a library says."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip()
    return line if len(line) <= 200 else f"{line[:197].rsplit(' ', 1)[0]} ..."
