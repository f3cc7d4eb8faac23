"""TFLite's control flow, and the comparisons that decide about it."""

from dataclasses import replace

import numpy as np
import tflite

from compiler.frontends.build import GraphBuilder
from compiler.frontends.tflite_ops import CONVERTERS, Operator, converts, given_inputs, options_of
from compiler.ir.graph import Graph
from compiler.ir.tensor import Tensor
from hw.errors import InputError

#: Loops have no trip count here.
_ENDLESS = (1 << 63) - 1
#: Operators of the graph, and whether the operands change places.
_COMPARISONS = {
    "LESS": ("less", False), "LESS_EQUAL": ("less_equal", False), "GREATER": ("less", True),
    "GREATER_EQUAL": ("less_equal", True), "EQUAL": ("equal", False), "LOGICAL_AND": ("logical_and", False),
    "LOGICAL_OR": ("logical_or", False),
}  # fmt: skip
#: Operators of models that keep state from one sample to the next.
STATE = frozenset(("CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE"))
_REDUCTIONS = {
    "SUM": "reduce_sum", "MEAN": "reduce_mean", "REDUCE_MAX": "reduce_max", "REDUCE_MIN": "reduce_min",
}  # fmt: skip


def inline(build: GraphBuilder, graph: Graph, inputs: list[Tensor], prefix: str) -> list[Tensor]:
    """Outputs of a subgraph whose nodes become part of a graph."""
    if len(inputs) != len(graph.inputs):
        raise InputError(f"a subgraph takes {len(graph.inputs)} inputs, not {len(inputs)}")
    made = dict(zip(graph.inputs, inputs, strict=True))

    def tensor_of(name: str) -> Tensor:
        if name not in made:
            made[name] = replace(graph.tensors[name], name=build.fresh(prefix + name))
            if made[name].constant:
                build.graph.add_tensor(made[name])
        return made[name]

    for node in graph:
        ins, outs = ([tensor_of(name) for name in part] for part in (node.inputs, node.outputs))
        build.nodes(prefix + node.name, node.op, ins, outs, node.bodies, **node.attributes)
    return [tensor_of(name) for name in graph.outputs]


@converts("IF")
def _if(build: GraphBuilder, operator: Operator, inputs: list[Tensor | None], outputs: list[Tensor]) -> None:
    options = options_of(operator, tflite.IfOptions)
    bodies = [operator.subgraph(i) for i in (options.ThenSubgraphIndex(), options.ElseSubgraphIndex())]
    build.nodes(operator.name, "if", given_inputs(operator, inputs, 1), outputs, tuple(bodies))


@converts("WHILE")
def _while(
    build: GraphBuilder, operator: Operator, inputs: list[Tensor | None], outputs: list[Tensor]
) -> None:
    """The condition once before the loop, then at the end of each iteration."""
    options, states = options_of(operator, tflite.WhileOptions), given_inputs(operator, inputs, 1)
    condition, body = (
        operator.subgraph(i) for i in (options.CondSubgraphIndex(), options.BodySubgraphIndex())
    )
    if len(condition.outputs) != 1:
        raise InputError(f"operator {operator.name!r}: its condition must have one output")
    (first,) = inline(build, condition, states, f"{operator.name}/first/")
    inner = GraphBuilder(operator.name)
    inner.graph.add_input(Tensor("iteration", (), "int64"))
    given = [
        inner.graph.add_input(replace(body.tensors[name], name=inner.fresh(name))) for name in body.inputs
    ]
    made = inline(inner, body, given, "body/")
    (going,) = inline(inner, condition, made, "condition/")
    inner.graph.finish([tensor.name for tensor in (going, *made)])
    trips = build.constant(f"{operator.name}:trips", np.array(_ENDLESS, np.int64))
    build.nodes(
        operator.name, "loop", [first, trips, *states], outputs, (inner.graph,),
        states=len(states), scanned=(), stacked=(),
    )  # fmt: skip


@converts(*_COMPARISONS)
def _compare(
    build: GraphBuilder, operator: Operator, inputs: list[Tensor | None], outputs: list[Tensor]
) -> None:
    op, turned = _COMPARISONS[operator.kind]
    a, b = given_inputs(operator, inputs, 2)
    build.node(operator.name, op, [b, a] if turned else [a, b], outputs[0])


@converts("LOGICAL_NOT")
def _not(build: GraphBuilder, operator: Operator, inputs: list[Tensor | None], outputs: list[Tensor]) -> None:
    build.node(operator.name, "logical_not", given_inputs(operator, inputs, 1), outputs[0])


@converts(*_REDUCTIONS)
def _reduce(
    build: GraphBuilder, operator: Operator, inputs: list[Tensor | None], outputs: list[Tensor]
) -> None:
    x, axes = given_inputs(operator, inputs, 2)
    if axes.data is None:
        raise InputError(f"operator {operator.name!r}: its axes must be constants")
    keep = bool(options_of(operator, tflite.ReducerOptions).KeepDims())
    rank = len(x.shape)
    chosen = tuple(int(axis) % max(rank, 1) for axis in axes.data.reshape(-1))
    build.node(operator.name, _REDUCTIONS[operator.kind], [x], outputs[0], axes=chosen, keep=keep)


__all__ = ["CONVERTERS", "STATE"]
