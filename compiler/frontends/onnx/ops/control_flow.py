"""Conversion of ONNX's If, Loop and Scan to nodes with subgraphs; loops that cannot be nodes are unrolled."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.ops.shape import renamed
from compiler.frontends.onnx.registry import converts, integers
from compiler.frontends.onnx.subgraphs import (
    Form,
    Loop,
    ScanAxis,
    Subgraph,
    apart,
    body_of,
    common,
    exact,
    flows,
    inline,
    natural,
    operand,
    outside,
    subgraph,
    true,
    unrolled,
)
from compiler.frontends.onnx.values import (
    FLOAT,
    ConstantValue,
    DynamicValue,
    UnsupportedNodeError,
    Value,
    ValueType,
    counted_from_front,
    plain,
)
from compiler.ir.control import truth, whole
from compiler.ir.tensor import Tensor
from compiler.passes.control_flow import MAX_UNROLLED_ITERATIONS
from hw.errors import InputError

BOOL = ValueType("bool")


def condition_of(emitter: OnnxGraphBuilder, value: Value) -> Tensor:
    """Return a condition as a tensor; raise InputError if it is not a single bool."""
    if natural(value)[0] != BOOL or len([n for n in value.shape if n != 1]):
        raise InputError(f"a condition must be one bool, not {natural(value)[0].dtype}{list(value.shape)}")
    return emitter.operand(value, plain(len(value.shape)), BOOL)


@converts("If", inputs=(1, None))
def _if(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    (condition, *more), values = apart(node, inputs)
    bodies = [body_of(node, key) for key in ("then_branch", "else_branch")]
    if more or condition is None:
        raise InputError(f"must have one input, not {len(more) + 1}")
    for body in bodies:
        if len(body.outputs) != len(node.outputs):
            raise InputError(f"has {len(node.outputs)} outputs, but a subgraph of it {len(body.outputs)}")
        if body.inputs:
            raise InputError(f"a subgraph of it has inputs ({body.inputs[0].name!r}), but must have none")
    test = condition_of(emitter, condition)
    if isinstance(condition, ConstantValue):
        inlined = inline(emitter, bodies[0 if condition.data.reshape(-1)[0] else 1], values)
        return [renamed(value, name) for value, name in zip(inlined, node.outputs, strict=True)]
    parts = [subgraph(emitter, body, {}, values) for body in bodies]
    outputs: list[DynamicValue] = []
    for number, name in enumerate(node.outputs):
        ends = [part.values[body.outputs[number].name] for part, body in zip(parts, bodies, strict=True)]
        form = common(ends, "subgraphs whose outputs are")
        for part, end in zip(parts, ends, strict=True):
            part.add(end, form)
        outputs.append(outside(emitter, name, parts[0].outputs[-1], form))
    emitter.build.nodes(
        node.name,
        "if",
        [test, *flows(values)],
        [flow.tensor for flow in outputs],
        tuple(part.graph() for part in parts),
    )
    return outputs


_INTEGER = ValueType("int64")
#: Maximum number of conversions of a subgraph until the types of its states have converged.
_MAX_ATTEMPTS = 4
#: Trip count of a loop without a limit.
_ENDLESS = (1 << 63) - 1


@converts("Loop", inputs=(0, None))
def _loop(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    body, (given, values) = body_of(node, "body"), apart(node, inputs)
    count = len(body.inputs) - 2
    if count < 0 or len(given) != 2 + count:
        raise InputError(
            f"its subgraph must have as many inputs as it is given, {len(given)}, not {len(body.inputs)}"
        )
    trips, condition, *rest = given
    states = [value for value in rest if value is not None]
    stacked = len(body.outputs) - 1 - count
    if stacked < 0 or len(node.outputs) > count + stacked or len(states) < count:
        raise InputError(f"a subgraph of {count} states must have {1 + count} outputs or more")
    endless = ConstantValue("endless", np.array(_ENDLESS, np.int64))
    return _converted(
        emitter,
        Loop(
            node,
            body,
            endless if trips is None else trips,
            true() if condition is None else condition,
            states,
            [],
            values,
            2,
            [],
            [ScanAxis(0, 1)] * stacked,
        ),
    )


@converts("Scan", inputs=(0, None))
def _scan(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    if node.opset < 9:
        raise UnsupportedNodeError("its operator set must be 9 or later")
    body, (own, values), scans = body_of(node, "body"), apart(node, inputs), node.int("num_scan_inputs", 0)
    count, given = len(body.inputs) - scans, [value for value in own if value is not None]
    if scans < 1 or count < 0 or len(given) != len(body.inputs) or len(body.outputs) < count:
        raise InputError(f"{len(own)} inputs and {scans} that are scanned do not fit its subgraph")
    scanned = given[count:]
    axes = _axes(node, "input", scans, [len(value.shape) for value in scanned])
    stacks = _axes(node, "output", len(body.outputs) - count, None)
    lengths = {value.shape[each.axis] for value, each in zip(scanned, axes, strict=True)}
    if len(lengths) != 1:
        raise InputError(
            f"all scanned values must be of equal length, not {', '.join(map(str, sorted(lengths)))}"
        )
    trips = ConstantValue("length", np.array(lengths.pop(), np.int64))
    return _converted(
        emitter, Loop(node, body, trips, true(), given[:count], scanned, values, 0, axes, stacks)
    )


def _axes(node: FileNode, what: str, count: int, ranks: list[int] | None) -> list[ScanAxis]:
    """Return the axes and directions of the scanned inputs or stacked outputs; `ranks` is None for outputs."""
    axes = integers(node, f"scan_{what}_axes", None) or (0,) * count
    backward = integers(node, f"scan_{what}_directions", None) or (0,) * count
    if len(axes) != count or len(backward) != count or not set(backward) <= {0, 1}:
        raise InputError(f"scan_{what}_axes and scan_{what}_directions must be {count}, directions 0 or 1")
    if ranks is not None:
        if not all(ranks):
            raise InputError("a scanned value must have dimensions")
        axes = [counted_from_front(axis, rank) for axis, rank in zip(axes, ranks, strict=True)]
    return [ScanAxis(axis, -1 if back else 1) for axis, back in zip(axes, backward, strict=True)]


def _converted(emitter: OnnxGraphBuilder, loop: Loop) -> Sequence[Value]:
    """Convert a loop to a node of the graph, or unroll the loop if a node is not possible."""
    given = natural(loop.trips)
    if given[0].dtype != "int64" or max(loop.trips.shape, default=1) > 1:
        raise InputError(f"its trip count must be one int64, not {given[0].dtype}{list(loop.trips.shape)}")
    try:
        return _as_node(emitter, loop)
    except UnsupportedNodeError as error:
        trips = (
            whole(loop.trips.data) if isinstance(loop.trips, ConstantValue) else MAX_UNROLLED_ITERATIONS + 1
        )
        if not isinstance(loop.condition, ConstantValue) or trips > MAX_UNROLLED_ITERATIONS:
            raise
        return unrolled(emitter, loop, trips, error)


def _as_node(emitter: OnnxGraphBuilder, loop: Loop) -> Sequence[Value]:
    """Add a loop node and return its outputs."""
    node, (part, forms) = loop.node, _converged(emitter, loop)
    condition, states, slices = loop.made(part.values)
    part.outputs.append(condition_of(part.emitter, condition))
    for state, form in zip(states, forms, strict=True):
        part.add(state, form)
    outs = [
        outside(emitter, name, tensor, form)
        for name, tensor, form in zip(node.outputs, part.outputs[1:], forms, strict=False)
    ]
    stacks, signs = _stacked(emitter, loop, part, condition, slices)
    operands = [
        condition_of(emitter, loop.condition),
        operand(emitter, loop.trips, (_INTEGER, plain(len(loop.trips.shape)))),
        *(operand(emitter, value, form) for value, form in zip(loop.states, forms, strict=True)),
        *(_scanned(emitter, value, each) for value, each in zip(loop.scanned, loop.axes, strict=True)),
        *flows(loop.values),
    ]
    states_out = outs + [
        outside(emitter, "", tensor, form)
        for tensor, form in zip(part.outputs[1 + len(outs) : 1 + len(forms)], forms[len(outs) :], strict=True)
    ]
    emitter.build.nodes(
        node.name,
        "loop",
        operands,
        [flow.tensor for flow in (*states_out, *stacks)],
        (part.graph(),),
        states=len(forms),
        scanned=tuple(each.sign for each in loop.axes),
        stacked=signs,
    )
    return [*states_out, *stacks]


def _subgraph(emitter: OnnxGraphBuilder, loop: Loop, forms: list[Form]) -> Subgraph:
    """Convert the subgraph for states of the given types and dimension orders (`forms`)."""
    names, inputs = loop.names, dict[str, tuple[Form, tuple[int, ...]]]()
    values: dict[str, Value] = dict(loop.values)
    inputs[names[0] if loop.ins else "iteration"] = ((_INTEGER, ()), ())
    if loop.ins:
        values[names[1]] = replace(true(), name=names[1])
    states = names[loop.ins : loop.ins + len(forms)]
    for name, form, value in zip(states, forms, loop.states, strict=True):
        inputs[name] = (form, value.shape)
    for name, value, each in zip(names[loop.ins + len(forms) :], loop.scanned, loop.axes, strict=True):
        kind, order = natural(value)
        shape = (*value.shape[: each.axis], *value.shape[each.axis + 1 :])
        rest = tuple(i - (i > each.axis) for i in order if i != each.axis)
        inputs[name] = ((kind, rest), shape)
    if len(inputs) != 1 + len(forms) + len(loop.scanned):
        raise InputError("its subgraph has two inputs of one name")
    part = subgraph(emitter, loop.body, inputs, values)
    for name, value in zip(states, loop.states, strict=True):
        result = loop.made(part.values)[1][states.index(name)]
        if result.shape != value.shape:
            raise UnsupportedNodeError(
                f"the shape of a state must not change from {list(value.shape)} to {list(result.shape)}"
            )
    return part


def _converged(emitter: OnnxGraphBuilder, loop: Loop) -> tuple[Subgraph, list[Form]]:
    """Convert the subgraph repeatedly until its results have the types and dimension orders of its states.

    Initial states are converted to the types that the subgraph computes, if the conversion is lossless.
    """
    forms = [natural(value) for value in loop.states]
    for attempt in range(_MAX_ATTEMPTS):
        part = _subgraph(emitter, loop, forms)
        _, states, _ = loop.made(part.values)
        triples = zip(loop.states, states, forms, strict=True)
        wanted = [_next_form(first, result, form, first_time=not attempt) for first, result, form in triples]
        if wanted == forms:
            return part, forms
        # Types of states depend on one another; from the second attempt on, floating-point values are float32.
        forms = [
            (FLOAT, plain(len(form[1]))) if attempt and (form[0].real or form[0] == FLOAT) else form
            for form in wanted
        ]
    raise UnsupportedNodeError("the types of its states change from iteration to iteration")


def _next_form(first: Value, result: Value, form: Form, *, first_time: bool) -> Form:
    """Return the type and dimension order to try next for a state that changes from `first` to `result`."""
    kind, order = natural(result)
    if (kind, order) == form:
        return form
    if first_time and kind.real and kind.quantization is not None and exact(first, kind):
        return kind, order
    if kind.real or kind == FLOAT:
        if form[0] == FLOAT:
            return form
        if form[0].real:
            return FLOAT, plain(len(order))
    return common([first, result], "a state that is")


def _stacked(
    emitter: OnnxGraphBuilder, loop: Loop, part: Subgraph, condition: Value, slices: list[Value]
) -> tuple[list[DynamicValue], tuple[int, ...]]:
    """Return the stacked outputs of the loop and their directions, and add their slices to the subgraph's outputs."""
    names, stacks, signs = loop.node.outputs[len(loop.states) :], list[DynamicValue](), list[int]()
    for name, value, each in zip(names, slices, loop.stacks, strict=False):
        trips = _trips(emitter, loop, condition)
        kind, order = natural(value)
        part.add(value, (kind, order))
        tensor, axis = part.outputs[-1], counted_from_front(each.axis, len(order) + 1)
        whole_order = (axis, *(i + (i >= axis) for i in order))
        stacks.append(outside(emitter, name, tensor, (kind, whole_order), (trips, *tensor.shape)))
        signs.append(each.sign)
    return stacks, tuple(signs)


def _trips(emitter: OnnxGraphBuilder, loop: Loop, condition: Value) -> int:
    """Return the constant number of iterations, which is a dimension of stacked outputs.

    Parameters
    ----------
    emitter : OnnxGraphBuilder
        Builder of the graph that contains the loop.
    loop : Loop
        The loop to convert.
    condition : Value
        Condition that each iteration computes for the next iteration.
    """
    first, trips = loop.condition, loop.trips
    if not (
        isinstance(first, ConstantValue)
        and isinstance(trips, ConstantValue)
        and isinstance(condition, ConstantValue)
    ):
        advice = [
            f"--bind {each.tensor.name}=..."
            for each in (trips, first)
            if isinstance(each, DynamicValue) and each.tensor.name in emitter.build.graph.inputs
        ]
        raise UnsupportedNodeError(
            "an output has a slice for each iteration, and the number of iterations is not constant"
            + (f"; make the number constant with {' '.join(advice)}" if advice else "")
        )
    count = whole(trips.data) if truth(first.data) else 0
    count = count if truth(condition.data) else min(count, 1)
    if not count:
        raise UnsupportedNodeError("an output has a slice for each iteration, but there are no iterations")
    return count


def _scanned(emitter: OnnxGraphBuilder, value: Value, each: ScanAxis) -> Tensor:
    """Return a scanned value with the scanned dimension first."""
    kind, order = natural(value)
    return operand(emitter, value, (kind, (each.axis, *(i for i in order if i != each.axis))))
