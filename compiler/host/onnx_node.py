"""Operators of ONNX that the graph has no other form for, computed by ONNX's own reference in numpy."""

import base64
import binascii
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from compiler.host.call import Array, Call
from compiler.ir.graph import GraphError, Node
from compiler.ir.tensor import Tensor


def onnx_node(call: Call) -> Array:
    """One output of an ONNX node.

    Raises
    ------
    GraphError
        The reference refuses the node or its inputs.
    """
    return _computed(call, call.values, call["number"])


def function(call: Call) -> Array:
    """A function of each number, in single precision as ONNX has it."""
    return _computed(call, (call.numbers().astype(np.float32),), 0)


def _computed(call: Call, values: Sequence[Array], number: int) -> Array:
    try:
        evaluator = _evaluator(call["model"])
        (made,) = evaluator.run([f"output{number}"], dict(zip(evaluator.input_names, values, strict=True)))
    except _REFUSALS as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise call.error(f"{call['operator']} cannot be computed: {line}") from None
    result = np.asarray(made)
    if result.dtype != call.output.dtype and result.dtype.kind not in "fiub":
        raise call.error(f"{call['operator']} makes {result.dtype}, not {call.output.dtype}")
    return result


def check_node(node: Node, inputs: Sequence[Tensor]) -> None:
    """Refuse a node of a compiled file that its maker should have refused.

    Raises
    ------
    GraphError
        ONNX's reference would compute it as if it said something else, or there is none in it.
    """
    from compiler.host.onnx_reference import Given, LeftOutError, check_reference

    name = f"node {node.name!r} ({node.attributes['operator']})"
    try:
        (proto,) = _model(node.attributes["model"]).graph.node
    except (ValueError, DecodeError) as error:
        raise GraphError(f"{name}: its model is damaged: {error}") from None
    given = iter(inputs)
    try:
        known = [next(given, None) if text else None for text in proto.input]
        check_reference(proto, [tensor and Given(tensor.shape, tensor.data) for tensor in known])
    except LeftOutError as error:
        raise GraphError(
            f"{name}: {error} is left out by ONNX's reference; compile the model again"
        ) from None


@functools.lru_cache(64)
def _evaluator(text: str) -> Any:
    """The reference's evaluator of a node; imported here because few models need it."""
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(_model(text))


def _model(text: str) -> Any:
    """The model of one node that a text holds."""
    import onnx

    model = onnx.ModelProto.FromString(base64.b64decode(text, validate=True))
    graphs = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
    if len(model.graph.node) != 1 or model.functions:
        raise ValueError("must be a model of one node")
    if any(attribute.type in graphs for attribute in model.graph.node[0].attribute):
        raise ValueError("must hold no graphs")
    return model


#: What the reference raises where inputs do not fit.
_REFUSALS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError,
    MemoryError, DecodeError, binascii.Error,
)  # fmt: skip
