"""ONNX's If."""

from collections.abc import Sequence
from typing import Any

from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.ops.shape import renamed
from compiler.frontends.onnx.registry import converts
from compiler.frontends.onnx.subgraphs import (
    apart,
    body_of,
    common,
    flows,
    inline,
    natural,
    outside,
    subgraph,
)
from compiler.frontends.onnx.values import ConstantValue, DynamicValue, Kind, Value, plain
from compiler.ir.tensor import Tensor
from hw.errors import InputError

BOOL = Kind("bool")


def condition_of(emitter: OnnxGraphBuilder, value: Value) -> Tensor:
    """One bool."""
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
        made = inline(emitter, bodies[0 if condition.data.reshape(-1)[0] else 1], values)
        return [renamed(value, name) for value, name in zip(made, node.outputs, strict=True)]
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
