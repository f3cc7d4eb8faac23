"""Final import step: outputs as the ONNX file declares them, without unused nodes."""

import logging
from dataclasses import replace

from compiler.frontends.onnx.graph_builder import ONE, OnnxGraphBuilder
from compiler.frontends.onnx.node import Declared
from compiler.frontends.onnx.values import FLOAT, Kind, UnsupportedNodeError, Value, plain
from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Tensor
from hw.errors import InputError

_log = logging.getLogger(__name__)


def with_outputs(emitter: OnnxGraphBuilder, outputs: list[Declared], values: dict[str, Value]) -> Graph:
    """The graph with the outputs of the file, under their names and of their types; shapes are those that follow."""
    names: dict[str, str] = {}
    for declared in outputs:
        try:
            tensor = _output(emitter, declared, values[declared.name])
        except ValueError as error:
            raise InputError(f"output {declared.name!r}: {error}") from None
        given = tensor.name in emitter.build.graph.inputs and tensor.name != declared.name
        if tensor.constant or given or tensor.name in names:
            copy = emitter.build.between(tensor, f"{tensor.name}:copy")
            tensor = emitter.build.node(
                f"{declared.name}:copy", "reshape", [tensor], copy, shape=tensor.shape
            )
        names[tensor.name] = declared.name
    return _needed(emitter.build.graph, names)


def _output(emitter: OnnxGraphBuilder, declared: Declared, value: Value) -> Tensor:
    """The tensor of an output."""
    if declared.shape is not None and (
        len(declared.shape) != len(value.shape)
        or any(isinstance(n, int) and n != size for n, size in zip(declared.shape, value.shape, strict=True))
    ):
        sizes = ", ".join(str(size if size is not None else "?") for size in declared.shape)
        _log.warning(
            "output %r is declared as [%s], but has shape %s, which it keeps",
            declared.name,
            sizes,
            list(value.shape),
        )
    flow = emitter.flow(value)
    if declared.dtype in ("float16", "float32"):
        real = emitter.operand(flow, plain(flow.rank), FLOAT)
        if declared.dtype == "float32":
            return real
        half = Tensor(emitter.build.fresh(f"{declared.name}:half"), real.shape, "float16")
        return emitter.build.node(f"{declared.name}:half", "dequantize", [real], half)
    tensor = emitter.in_order(flow, plain(flow.rank)).tensor
    if flow.real or tensor.dtype == "float32":  # integers that are computed as real numbers
        tensor = emitter.operand(flow, plain(flow.rank), FLOAT)
        return emitter.convert("quantize", tensor, Kind(declared.dtype, ONE))
    if tensor.dtype != declared.dtype:
        raise UnsupportedNodeError(
            f"output {declared.name!r} must be of the type it is declared as, {declared.dtype}, not {tensor.dtype}"
        )
    return tensor


def _needed(graph: Graph, names: dict[str, str]) -> Graph:
    """What outputs need, with tensors under new names; inputs stay even if nothing reads them."""
    needed, kept = set(names), list[Node]()
    for node in reversed(list(graph)):
        if needed.intersection(node.outputs):
            needed.update(node.inputs, node.outputs)
            kept.append(node)
    wanted = set(names.values())
    called = dict(names)
    for name in graph.tensors:
        if name not in called and name in wanted:
            called[name] = _unused(name, graph, wanted)
    made = Graph(graph.name)
    for name in graph.inputs:
        made.add_input(graph.tensors[name])
    for name, tensor in graph.tensors.items():
        if name in needed and name not in graph.inputs:
            made.add_tensor(replace(tensor, name=called.get(name, name)))
    for node in reversed(kept):
        ins, outs = (tuple(called.get(name, name) for name in part) for part in (node.inputs, node.outputs))
        made.add_node(replace(node, inputs=ins, outputs=outs))
    return made.finish(list(names.values()))


def _unused(name: str, graph: Graph, wanted: set[str]) -> str:
    """A name for a tensor whose own an output has."""
    number, wish = 1, f"{name}:inside"
    while wish in graph.tensors or wish in wanted:
        number += 1
        wish = f"{name}:inside.{number}"
    return wish
