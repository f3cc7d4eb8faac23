"""Construction of a graph from nodes of another graph."""

from collections.abc import Iterable, Mapping

from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Tensor


def rebuild(
    graph: Graph,
    nodes: Iterable[Node],
    *,
    inputs: Iterable[str] | None = None,
    outputs: Iterable[str] | None = None,
    changed: Mapping[str, Tensor] | None = None,
) -> Graph:
    """Build a graph of the given nodes and the tensors that they use.

    Parameters
    ----------
    graph : Graph
        Source of the tensors.
    nodes : iterable of Node
        Nodes of the new graph in topological order.
    inputs, outputs : iterables of str, optional
        Inputs and outputs of the new graph; default: those of `graph`.
    changed : mapping, optional
        Replacement tensors by name.
    """
    new = Graph(graph.name)
    chosen = list(nodes)
    ins = list(graph.inputs if inputs is None else inputs)
    outs = list(graph.outputs if outputs is None else outputs)
    tensors = graph.tensors | dict(changed or {})
    for name in ins:
        new.add_input(tensors[name])
    for name in dict.fromkeys(name for node in chosen for name in (*node.inputs, *node.outputs)):
        if name not in new.tensors:
            new.add_tensor(tensors[name])
    for name in outs:
        if name not in new.tensors:
            new.add_tensor(tensors[name])
    for node in chosen:
        new.add_node(node)
    return new.finish(outs)


_TIMES = ":times_over_"


def times_over(graph: Graph, name: str) -> int:
    """Number of copies of the model's data in a tensor, because its consumer's weights were split into parts."""
    maker = graph.producer(name)
    _, found, count = maker.name.rpartition(_TIMES) if maker else ("", "", "")
    return int(count) if found else 1
