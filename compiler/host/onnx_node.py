"""Operators of ONNX that the graph has no other form for, computed by ONNX's own reference in numpy."""

import base64
import binascii
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from compiler.host.call import Array, Call


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


@functools.lru_cache(64)
def _evaluator(text: str) -> Any:
    """The reference's evaluator of a node; imported here because few models need it."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    model = onnx.ModelProto.FromString(base64.b64decode(text, validate=True))
    graphs = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
    if len(model.graph.node) != 1 or model.functions:
        raise ValueError("must be a model of one node")
    if any(attribute.type in graphs for attribute in model.graph.node[0].attribute):
        raise ValueError("must hold no graphs")
    return ReferenceEvaluator(model)


#: What the reference raises where inputs do not fit.
_REFUSALS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError,
    MemoryError, DecodeError, binascii.Error,
)  # fmt: skip
