"""A node of ONNX by itself, and the reference that computes it."""

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

from compiler.reference.onnx_ops import Array, Asked, own
from compiler.reference.onnx_ops.registry import MOST_STEPS, steps
from hw.errors import InputError, shown

#: Activations of one direction that the reference computes, whatever the attribute says.
_USUAL = {"LSTM": (b"Sigmoid", b"Tanh", b"Tanh"), "GRU": (b"Sigmoid", b"Tanh"), "RNN": (b"Tanh",)}


class LeftOutError(InputError):
    """The reference would compute a node as if it said something else; the message names the attribute or input."""


class Given(NamedTuple):
    """Static facts about an input of a node: its contents only if it is constant."""

    shape: tuple[int, ...]
    data: NDArray | None


def check_reference(proto: onnx.NodeProto, inputs: Sequence[Given | None]) -> None:
    """Refuse a node that ONNX's reference would compute as if it said something else.

    Raises
    ------
    LeftOutError
        The message names the attribute or input.
    """
    if proto.op_type in _USUAL:
        _check_recurrent(proto, inputs)


def check_work(asked: Asked, inputs: Sequence[Given | None], outputs: Sequence[tuple[int, ...]]) -> int:
    """Steps that a node takes, about.

    Raises
    ------
    InputError
        It takes more than the host may.
    """
    count = steps(asked, [value and value.shape for value in inputs], outputs)
    if count > MOST_STEPS:
        raise InputError(f"it takes the host {count:,} steps, more than {MOST_STEPS:,}")
    return count


def _check_recurrent(proto: onnx.NodeProto, inputs: Sequence[Given | None]) -> None:
    """LSTM, GRU and RNN: all sequences run to their end, through the usual functions."""
    given = {a.name: helper.get_attribute_value(a) for a in proto.attribute}
    usual = _USUAL[proto.op_type]
    wanted = tuple(given.get("activations", usual))
    if wanted not in (usual, 2 * usual):
        names = ", ".join(name.decode(errors="replace") for name in wanted)
        raise LeftOutError(f"activations {shown(names)} (only {b', '.join(usual).decode()})")
    if "clip" in given:
        raise LeftOutError(f"clip of {given['clip']:.6g}")
    if given.get("input_forget", 0):
        raise LeftOutError("input_forget, the coupling of gates")
    lengths = inputs[4] if len(inputs) > 4 else None
    steps = inputs[0].shape[1 if given.get("layout", 0) else 0] if inputs[0] is not None else 0
    if lengths is not None and (lengths.data is None or not np.all(lengths.data == steps)):
        raise LeftOutError(f"sequence_lens other than the {steps} steps of all sequences")


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
