"""Operators of ONNX that the graph has no other form for."""

import binascii
from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from compiler.ir.graph import GraphError, Node
from compiler.ir.tensor import Tensor
from compiler.reference.node_invocation import Array, NodeInvocation
from hw.errors import InputError


def onnx_node(call: NodeInvocation) -> Array:
    """One output of an ONNX node.

    Raises
    ------
    GraphError
        The node or its inputs are refused.
    """
    return _computed(call, call.values, call["number"])


def function(call: NodeInvocation) -> Array:
    """A function of each number, in single precision as ONNX has it."""
    return _computed(call, (call.numbers().astype(np.float32),), 0)


def _computed(call: NodeInvocation, values: Sequence[Array], number: int) -> Array:
    from compiler.reference.onnx_node_model import REFUSALS, line_of, node_model  # few models need it

    try:
        result = node_model(call["model"]).computed(values, number)
    except (*REFUSALS, DecodeError, binascii.Error) as error:
        raise call.error(f"{call['operator']} cannot be computed: {line_of(error)}") from None
    if result.dtype != call.output.dtype and result.dtype.kind not in "fiub":
        raise call.error(f"{call['operator']} makes {result.dtype}, not {call.output.dtype}")
    return result


def check_node(node: Node, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """Refuse a node of a compiled file that its maker should have refused.

    Raises
    ------
    GraphError
        ONNX's reference would compute it as if it said something else, it would take for ever, or there is none in it.
    """
    from compiler.reference.onnx_node_model import (
        Given,
        LeftOutError,
        check_reference,
        check_work,
        node_model,
    )

    name = f"node {node.name!r} ({node.attributes['operator']})"
    try:
        held = node_model(node.attributes["model"])
    except (ValueError, DecodeError) as error:
        raise GraphError(f"{name}: its model is damaged: {error}") from None
    tensors: dict[str, Any] = dict(zip(held.inputs, inputs, strict=False))
    known = [tensors.get(text) for text in held.proto.input]
    try:
        given = [tensor and Given(tensor.shape, tensor.data) for tensor in known]
        check_reference(held.proto, given)
        check_work(held.asked, given, [tensor.shape for tensor in outputs])
    except LeftOutError as error:
        raise GraphError(
            f"{name}: {error} is left out by ONNX's reference; compile the model again"
        ) from None
    except InputError as error:
        raise GraphError(f"{name}: {error}; compile the model again") from None
