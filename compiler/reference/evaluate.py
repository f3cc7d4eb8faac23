"""Computes a whole graph or one node of it."""

import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from compiler.ir.graph import Graph, GraphError, Node
from compiler.ir.tensor import Quantization, Tensor
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
from compiler.reference.normalization import NORM, SOFTMAX
from compiler.reference.reduce import POOL, REDUCE
from compiler.reference.shape import SHAPE
from hw.errors import InputError, shown

#: Integers that are no quantized numbers, and what says so.
_WIDE = ("int32", "int64", "bool")
_ONE = Quantization((1.0,), (0,))
#: Gets a subgraph and its inputs.
Watch = Callable[[Graph, Mapping[str, Array]], None]


def evaluate(
    graph: Graph,
    inputs: Mapping[str, Array],
    *,
    rounding: Kernels = "reference",
    keep: bool = False,
    watch: Watch | None = None,
    trips: Trips | None = None,
) -> dict[str, Array]:
    """Evaluate a graph on its inputs.

    Parameters
    ----------
    graph : Graph
    inputs : dict
        An array for each input of the graph, of its shape and type.
    rounding : "reference", "xnnpack" or "onnxruntime"
        Whether quantized operators round as LiteRT's reference kernels, as its default interpreter, or as onnxruntime.
    keep : bool
        Give every tensor that is no constant, not only the outputs.
    watch : function, optional
        Gets every subgraph that runs, and its inputs.
    trips : Trips, optional
        Iterations that loops may take, where this is part of something larger.

    Raises
    ------
    InputError
        An input is missing, unknown, or of another shape or type; or as `run_node` says.
    WorkError
        A loop does not end.
    """
    _check(graph, inputs)
    trips = trips or Trips()
    values = {name: np.asarray(inputs[name]) for name in graph.inputs}
    left = {} if keep else {name: len(graph.consumers(name)) for name in graph.tensors}
    wanted = set(graph.outputs)
    for node in graph:
        operands = [_value(graph.tensors[name], values) for name in node.inputs]
        values |= zip(
            node.outputs,
            run_node(graph, node, operands, rounding=rounding, watch=watch, trips=trips),
            strict=True,
        )
        for name in dict.fromkeys(() if keep else node.inputs):
            left[name] -= 1
            if not left[name] and name not in wanted:
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
    watch: Watch | None = None,
    trips: Trips | None = None,
) -> list[Array]:
    """Evaluate one node on its inputs, including constants, in the operator's order.

    Raises
    ------
    InputError
        The number of inputs, a shape or type is wrong; a window, index or quantization is none the operator can have;
        the result is not of the shape the graph says; there is too little memory.
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
        bodies = [_body(each, rounding, watch, trips) for each in node.bodies]
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
    """The tensors of a node on integers that stand for themselves, without that meaning.

    Arithmetic on them is that of their type, which neither saturates nor goes through float32. Bytes with a meaning
    are quantized numbers.
    """
    every = (*tensors, output)
    wide = all(each.dtype in _WIDE for each in tensors) and output.dtype in (*_WIDE, "float32")
    plain = output.quantization is None and all(each.dtype != "float32" for each in every)
    if not (wide or plain) or any(each.quantization not in (None, _ONE) for each in every):
        return tensors, output
    return [replace(each, quantization=None) for each in tensors], replace(output, quantization=None)


def _body(graph: Graph, rounding: Kernels, watch: Watch | None, trips: Trips) -> Body:
    def run(inputs: Sequence[Array]) -> list[Array]:
        given = dict(zip(graph.inputs, inputs, strict=True))
        if watch:
            watch(graph, given)
        made = evaluate(graph, given, rounding=rounding, watch=watch, trips=trips)
        return [made[name] for name in graph.outputs]

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
    """Refuse what is not of a tensor's type and shape; this runs for every operand of every iteration."""
    if isinstance(value, np.ndarray) and value.shape == tensor.shape and value.dtype == tensor.dtype:
        return
    given = _kind(value) if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    where = f"node {node.name!r}: " if node else ""
    raise InputError(f"{where}{what} {tensor.name!r} must be {_kind(tensor)}, not {given}")


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
    | {"onnx": onnx_node, "function": function}
)


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
