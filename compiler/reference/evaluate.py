"""A whole graph, or one node of it, computed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Quantization, Tensor
from compiler.reference.control import Body, Trips, run_control
from compiler.reference.node_invocation import KERNELS, Array, Kernels, NodeInvocation, finished
from compiler.reference.registry import OPERATORS
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
