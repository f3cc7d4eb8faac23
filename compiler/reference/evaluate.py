"""Evaluation of a whole graph or of one node, and the table of all operators."""

import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from compiler.ir.graph import Graph, GraphError, Node
from compiler.ir.tensor import IDENTITY, Tensor
from compiler.reference.activation import ACTIVATION
from compiler.reference.control import Body, Trips, run_control
from compiler.reference.conv import CONV
from compiler.reference.elementwise import ELEMENTWISE, LOGIC
from compiler.reference.node_invocation import (
    KERNELS,
    QUANTIZE,
    Array,
    Kernels,
    NodeInvocation,
    Operator,
    finished,
)
from compiler.reference.recurrent import RECURRENT
from compiler.reference.reduce import NORM, POOL, REDUCE, SOFTMAX
from compiler.reference.shape import SHAPE
from hw.errors import InputError, shown

#: Integer types that are not quantized.
_WIDE = ("int32", "int64", "bool")
#: Callback that receives a subgraph and its inputs.
SubgraphCallback = Callable[[Graph, Mapping[str, Array]], None]


def evaluate(
    graph: Graph,
    inputs: Mapping[str, Array],
    *,
    rounding: Kernels = "reference",
    keep: bool = False,
    on_subgraph: SubgraphCallback | None = None,
    trips: Trips | None = None,
) -> dict[str, Array]:
    """Evaluate a graph on its inputs.

    Parameters
    ----------
    graph : Graph
        The graph to evaluate.
    inputs : dict
        An array of the right shape and type for each input of the graph.
    rounding : "reference", "xnnpack" or "onnxruntime"
        Rounding of quantized operators: LiteRT's reference kernels, its default interpreter with XNNPACK, or
        onnxruntime.
    keep : bool
        True to return all tensors that are not constant, not only the outputs.
    on_subgraph : function, optional
        Callback that receives each executed subgraph and its inputs.
    trips : Trips, optional
        Counter of loop iterations, if this graph is part of a larger one.

    Raises
    ------
    InputError
        An input is missing, unknown, or of the wrong shape or type, or `run_node` rejects a node.
    WorkError
        A loop does not end.
    """
    _check(graph, inputs)
    trips = trips or Trips()
    values = {name: np.asarray(inputs[name]) for name in graph.inputs}
    uses_left = {} if keep else {name: len(graph.consumers(name)) for name in graph.tensors}
    wanted = set(graph.outputs)
    for node in graph:
        operands = [_value(graph.tensors[name], values) for name in node.inputs]
        values |= zip(
            node.outputs,
            run_node(graph, node, operands, rounding=rounding, on_subgraph=on_subgraph, trips=trips),
            strict=True,
        )
        for name in dict.fromkeys(() if keep else node.inputs):
            uses_left[name] -= 1
            if not uses_left[name] and name not in wanted:
                values.pop(name, None)
    if keep:
        return values
    return {name: _value(graph.tensors[name], values) for name in graph.outputs}


def run_node(
    graph: Graph,
    node: Node,
    inputs: Sequence[Array],
    *,
    rounding: Kernels = "reference",
    on_subgraph: SubgraphCallback | None = None,
    trips: Trips | None = None,
) -> list[Array]:
    """Evaluate one node on its inputs, including constants, in the operator's order.

    Raises
    ------
    InputError
        The number, shape or type of the inputs is wrong; the operator does not support a window, index or quantization;
        the result does not have the shape of the output tensor; or memory is exhausted.
    """
    if rounding not in KERNELS:
        raise InputError(f"rounding must be {' or '.join(KERNELS)}, not {shown(rounding)}")
    tensors = graph.ins(node)
    if len(inputs) != len(tensors):
        raise InputError(f"node {node.name!r} takes {len(tensors)} inputs, not {len(inputs)}")
    for tensor, value in zip(tensors, inputs, strict=True):
        _fits(tensor, value, "its input", node)
    if node.bodies:
        trips = trips or Trips()
        bodies = [_body(each, rounding, on_subgraph, trips) for each in node.bodies]
        outputs = [graph.tensors[name] for name in node.outputs]
        return run_control(node.name, node.op, node.attributes, inputs, bodies, outputs, trips)
    tensors, output = _as_integers(tensors, graph.out(node))
    call = NodeInvocation(node, tuple(tensors), tuple(inputs), output, rounding)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        try:
            result = finished(call, OPERATORS[node.op](call))
        except (ValueError, IndexError) as error:
            raise call.error(f"cannot be computed: {error}") from None
        except MemoryError:
            shapes = " and ".join(_kind(tensor) for tensor in (*tensors, call.output))
            raise call.error(f"there is too little memory to compute {shapes}") from None
    if result.shape != call.output.shape:
        raise call.error(
            f"makes shape {list(result.shape)}, but {call.output.name!r} is {list(call.output.shape)}"
        )
    return [result]


def _as_integers(tensors: Sequence[Tensor], output: Tensor) -> tuple[Sequence[Tensor], Tensor]:
    """Return the tensors of a node, without quantizations if all tensors contain plain integers.

    Plain integers are computed in their own type, without saturation or conversion to float32. An 8-bit output with a
    quantization always counts as quantized.
    """
    all_tensors = (*tensors, output)
    wide = all(each.dtype in _WIDE for each in tensors) and output.dtype in (*_WIDE, "float32")
    plain = output.quantization is None and all(each.dtype != "float32" for each in all_tensors)
    if not (wide or plain) or any(each.quantization not in (None, IDENTITY) for each in all_tensors):
        return tensors, output
    return [replace(each, quantization=None) for each in tensors], replace(output, quantization=None)


def _body(graph: Graph, rounding: Kernels, on_subgraph: SubgraphCallback | None, trips: Trips) -> Body:
    def run(inputs: Sequence[Array]) -> list[Array]:
        given = dict(zip(graph.inputs, inputs, strict=True))
        if on_subgraph:
            on_subgraph(graph, given)
        results = evaluate(graph, given, rounding=rounding, on_subgraph=on_subgraph, trips=trips)
        return [results[name] for name in graph.outputs]

    return run


def _value(tensor: Tensor, values: Mapping[str, Array]) -> Array:
    return values[tensor.name] if tensor.data is None else tensor.data


def _check(graph: Graph, inputs: Mapping[str, Array]) -> None:
    for name in inputs:
        if name not in graph.inputs:
            raise InputError(f"there is no input {shown(name)}; {graph.name!r} has {_named(graph)}")
    for name in graph.inputs:
        if name not in inputs:
            raise InputError(f"input {name!r} is missing; {graph.name!r} has {_named(graph)}")
        _fits(graph.tensors[name], inputs[name], "input")


def _named(graph: Graph) -> str:
    return ", ".join(f"{name!r}: {_kind(graph.tensors[name])}" for name in graph.inputs) or "none"


def _kind(tensor: Tensor | Array) -> str:
    return f"{tensor.dtype}{list(tensor.shape)}"


def _fits(tensor: Tensor, value: object, what: str, node: Node | None = None) -> None:
    """Raise InputError unless a value has a tensor's type and shape; called for every operand of every iteration."""
    if isinstance(value, np.ndarray) and value.shape == tensor.shape and value.dtype == tensor.dtype:
        return
    given = _kind(value) if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    where = f"node {node.name!r}: " if node else ""
    raise InputError(f"{where}{what} {tensor.name!r} must be {_kind(tensor)}, not {given}")


def onnx_node(call: NodeInvocation) -> Array:
    """Compute one output of an ONNX node.

    Raises
    ------
    GraphError
        The node cannot be computed, or its inputs are invalid.
    """
    return _computed(call, call.values, call["number"])


def function(call: NodeInvocation) -> Array:
    """Compute an elementwise ONNX function in single precision."""
    return _computed(call, (call.numbers().astype(np.float32),), 0)


OPERATORS: dict[str, Operator] = (
    CONV
    | ELEMENTWISE
    | ACTIVATION
    | POOL
    | REDUCE
    | SOFTMAX
    | NORM
    | SHAPE
    | QUANTIZE
    | LOGIC
    | RECURRENT
    | {"onnx": onnx_node, "function": function}
)


def _computed(call: NodeInvocation, values: Sequence[Array], number: int) -> Array:
    from compiler.reference.onnx_node_model import REFUSALS, line_of, node_model  # imported only if needed

    try:
        result = node_model(call["model"]).computed(values, number)
    except (*REFUSALS, DecodeError, binascii.Error) as error:
        raise call.error(f"{call['operator']} cannot be computed: {line_of(error)}") from None
    if result.dtype != call.output.dtype and result.dtype.kind not in "fiub":
        raise call.error(f"{call['operator']} makes {result.dtype}, not {call.output.dtype}")
    return result


def check_node(node: Node, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """Check an ONNX node of a compiled file, which another version of the compiler may have accepted.

    Raises
    ------
    GraphError
        The node is too expensive, or its model is damaged.
    """
    from compiler.reference.onnx_node_model import Given, check_work, node_model

    name = f"node {node.name!r} ({node.attributes['operator']})"
    try:
        held = node_model(node.attributes["model"])
    except (ValueError, DecodeError) as error:
        raise GraphError(f"{name}: its model is damaged: {error}") from None
    tensors: dict[str, Any] = dict(zip(held.inputs, inputs, strict=False))
    known = [tensors.get(text) for text in held.proto.input]
    try:
        given = [tensor and Given(tensor.shape, tensor.data) for tensor in known]
        check_work(held.spec, given, [tensor.shape for tensor in outputs])
    except InputError as error:
        raise GraphError(f"{name}: {error}; compile the model again") from None
