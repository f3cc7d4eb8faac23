"""Conversion of TFLite control flow and comparisons."""

from dataclasses import replace

import numpy as np
import tflite

from compiler.frontends.builder import GraphBuilder
from compiler.frontends.tflite.elementwise import broadcast
from compiler.frontends.tflite.registry import TfliteConversion, converts
from compiler.ir.graph import Graph
from compiler.ir.tensor import Tensor
from hw.errors import InputError

#: Trip count of a loop; TFLite's loops have no limit.
_ENDLESS = (1 << 63) - 1
#: Operator of the graph, and True if the operands are swapped, for each TFLite operator.
_COMPARISONS = {
    "LESS": ("less", False),
    "LESS_EQUAL": ("less_equal", False),
    "GREATER": ("less", True),
    "GREATER_EQUAL": ("less_equal", True),
    "EQUAL": ("equal", False),
    "LOGICAL_AND": ("logical_and", False),
    "LOGICAL_OR": ("logical_or", False),
}


def inline(build: GraphBuilder, graph: Graph, inputs: list[Tensor], prefix: str) -> list[Tensor]:
    """Inline the nodes of a subgraph into a graph and return the outputs of the subgraph."""
    if len(inputs) != len(graph.inputs):
        raise InputError(f"a subgraph takes {len(graph.inputs)} inputs, not {len(inputs)}")
    tensors = dict(zip(graph.inputs, inputs, strict=True))

    def tensor_of(name: str) -> Tensor:
        if name not in tensors:
            tensors[name] = replace(graph.tensors[name], name=build.fresh(prefix + name))
            if tensors[name].constant:
                build.graph.add_tensor(tensors[name])
        return tensors[name]

    for node in graph:
        ins, outs = ([tensor_of(name) for name in names] for names in (node.inputs, node.outputs))
        build.nodes(prefix + node.name, node.op, ins, outs, node.bodies, **node.attributes)
    return [tensor_of(name) for name in graph.outputs]


@converts("IF")
def _if(c: TfliteConversion) -> None:
    options = c.options(tflite.IfOptions)
    bodies = [c.operator.subgraph(i) for i in (options.ThenSubgraphIndex(), options.ElseSubgraphIndex())]
    c.build.nodes(c.operator.name, "if", c.given(1), c.outputs, tuple(bodies))


@converts("WHILE")
def _while(c: TfliteConversion) -> None:
    """Convert to a loop whose condition is evaluated once before the loop and at the end of each iteration."""
    name, build = c.operator.name, c.build
    options, states = c.options(tflite.WhileOptions), c.given(1)
    condition, body = (
        c.operator.subgraph(i) for i in (options.CondSubgraphIndex(), options.BodySubgraphIndex())
    )
    if len(condition.outputs) != 1:
        raise c.error("its condition must have one output")
    (first,) = inline(build, condition, states, f"{name}/first/")
    inner = GraphBuilder(name)
    inner.graph.add_input(Tensor("iteration", (), "int64"))
    given = [
        inner.graph.add_input(replace(body.tensors[each], name=inner.fresh(each))) for each in body.inputs
    ]
    results = inline(inner, body, given, "body/")
    (again,) = inline(inner, condition, results, "condition/")
    inner.graph.finish([tensor.name for tensor in (again, *results)])
    trips = build.constant(f"{name}:trips", np.array(_ENDLESS, np.int64))
    build.nodes(
        name,
        "loop",
        [first, trips, *states],
        c.outputs,
        (inner.graph,),
        states=len(states),
        scanned=(),
        stacked=(),
    )


def _compared(c: TfliteConversion) -> tuple[Tensor, Tensor]:
    """Return the operands of a comparison; LiteRT compares stored integers of int16, except for equality."""
    a, b = c.given(2)[:2]
    broadcast(c, a, b)
    if a.dtype == "int16" and c.kind not in ("EQUAL", "NOT_EQUAL"):
        c.expect_equal_scales(a, b)
    return a, b


@converts(*_COMPARISONS)
def _compare(c: TfliteConversion) -> None:
    op, swapped = _COMPARISONS[c.kind]
    a, b = _compared(c)
    c.make(op, [b, a] if swapped else [a, b])


@converts("NOT_EQUAL")
def _differ(c: TfliteConversion) -> None:
    a, b = _compared(c)
    same = c.build.between(c.output, f"{c.output.name}:same")
    c.make("logical_not", [c.build.node(f"{c.operator.name}:same", "equal", [a, b], same)])


@converts("LOGICAL_NOT")
def _not(c: TfliteConversion) -> None:
    c.make("logical_not", c.given(1)[:1])
