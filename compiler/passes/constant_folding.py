"""Constant folding."""

from typing import cast

from numpy.typing import NDArray

from compiler.ir.graph import Graph
from compiler.ir.rebuild import rebuild
from compiler.ir.tensor import Tensor
from compiler.reference import run_node


def fold_constants(graph: Graph) -> Graph:
    """Replace nodes whose inputs are all constant by constants, except those that compute outputs of the model."""
    changed: dict[str, Tensor] = {}
    left = []
    for node in graph:
        inputs = [changed.get(name, graph.tensors[name]) for name in node.inputs]
        wanted = set(node.outputs) & set(graph.outputs)  # a node makes each output of a model
        if node.bodies or not inputs or wanted or not all(tensor.constant for tensor in inputs):
            left.append(node)
            continue
        results = run_node(graph, node, [cast(NDArray, tensor.data) for tensor in inputs])
        for name, data in zip(node.outputs, results, strict=True):
            old = graph.tensors[name]
            changed[name] = Tensor(name, old.shape, old.dtype, old.quantization, data)
    return rebuild(graph, left, changed=changed) if changed else graph
