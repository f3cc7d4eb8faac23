"""ONNX's Loop and Scan in one form, and all iterations of it one after the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode, OnnxModel
from compiler.frontends.onnx.ops.shape import renamed
from compiler.frontends.onnx.registry import CONVERSIONS
from compiler.frontends.onnx.subgraphs import inline
from compiler.frontends.onnx.values import ConstantValue, UnsupportedNodeError, Value, counted_from_front
from compiler.ir.control import truth


@dataclass(frozen=True)
class ScanAxis:
    """Along which dimension of a value slices are taken or put together, and whether from its end."""

    axis: int
    sign: int


@dataclass(frozen=True)
class Loop:
    """A Loop or Scan.

    Parameters
    ----------
    node : FileNode
        It.
    body : Model
        Its subgraph.
    trips, condition : Value
        Most iterations, and whether there is a first one.
    states, scanned : list of Value
        What goes in.
    values : dict
        What the subgraph reads from outside.
    ins : int
        The subgraph's inputs in front of its states: number of the iteration and condition, or none.
    axes, stacks : list of Axis
        Of what is scanned, and of what is stacked.
    """

    node: FileNode
    body: OnnxModel
    trips: Value
    condition: Value
    states: list[Value]
    scanned: list[Value]
    values: dict[str, Value]
    ins: int
    axes: list[ScanAxis]
    stacks: list[ScanAxis]

    @property
    def names(self) -> list[str]:
        """Inputs of the subgraph."""
        return [each.name for each in self.body.inputs]

    def made(self, values: Mapping[str, Value]) -> tuple[Value, list[Value], list[Value]]:
        """The next condition, the next states and slices to be stacked."""
        ends = [values[each.name] for each in self.body.outputs]
        going = ends.pop(0) if self.ins else true()
        return going, ends[: len(self.states)], ends[len(self.states) :]


def true() -> ConstantValue:
    """The condition of a loop that has none."""
    return ConstantValue("true", np.array(True))


def unrolled(
    emitter: OnnxGraphBuilder, loop: Loop, trips: int, error: UnsupportedNodeError
) -> Sequence[Value]:
    """All iterations one after the other; the error is raised if their number depends on the data after all."""
    going, states, count = loop.condition, loop.states, 0
    stacks: list[list[Value]] = [[] for _ in loop.stacks]
    while count < trips and isinstance(going, ConstantValue) and truth(going.data):
        values, names = dict(loop.values), loop.names
        if loop.ins:
            values[names[0]] = ConstantValue(names[0], np.array(count, np.int64))
            values[names[1]] = replace(true(), name=names[1])
        slices = [
            _slice(emitter, loop.node, value, each, count)
            for value, each in zip(loop.scanned, loop.axes, strict=True)
        ]
        values |= zip(names[loop.ins :], [*states, *slices], strict=True)
        made = inline(emitter, loop.body, values)
        going, states, parts = loop.made(dict(zip((o.name for o in loop.body.outputs), made, strict=True)))
        for stack, part in zip(stacks, parts, strict=True):
            stack.append(part)
        count += 1
    if count < trips and not isinstance(going, ConstantValue):
        raise error
    made = [renamed(value, name) for value, name in zip(states, loop.node.outputs, strict=False)]
    names = loop.node.outputs[len(states) :]
    for name, parts, each in zip(names, stacks, loop.stacks, strict=False):
        made.append(_joined(emitter, loop.node, name, parts, each))
    return made


def _slice(emitter: OnnxGraphBuilder, node: FileNode, value: Value, each: ScanAxis, count: int) -> Value:
    """A slice of what is scanned."""
    index = count if each.sign > 0 else value.shape[each.axis] - 1 - count
    if isinstance(value, ConstantValue):
        return ConstantValue(f"{value.name}:{count}", value.numbers().take(index, each.axis))
    where = ConstantValue("index", np.array(index, np.int64))
    wanted = replace(
        node, op="Gather", inputs=("", ""), outputs=(f"{value.name}:{count}",), attributes={"axis": each.axis}
    )
    return CONVERSIONS["Gather"](emitter, wanted, [value, where])[0]


def _joined(
    emitter: OnnxGraphBuilder, node: FileNode, name: str, parts: list[Value], each: ScanAxis
) -> Value:
    """Slices put together."""
    if not parts:
        raise UnsupportedNodeError("outputs with a slice from each of no iterations")
    axis = counted_from_front(each.axis, len(parts[0].shape) + 1)
    axes = ConstantValue("axes", np.array([axis], np.int64))
    rows: list[Value | None] = []
    for number, part in enumerate(parts[:: each.sign]):
        row = replace(
            node, op="Unsqueeze", inputs=("", ""), outputs=(f"{name}:{number}",), attributes={}, opset=13
        )
        rows.append(CONVERSIONS["Unsqueeze"](emitter, row, [part, axes])[0])
    whole_node = replace(
        node, op="Concat", inputs=("",) * len(rows), outputs=(name,), attributes={"axis": axis}
    )
    return CONVERSIONS["Concat"](emitter, whole_node, rows)[0]
