"""A new graph from parts of an old one."""

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
    """A graph of some nodes in their order, with the tensors they touch.

    Parameters
    ----------
    graph : Graph
        Where tensors come from.
    nodes : iterable of Node
        In an order in which they can run.
    inputs, outputs : iterables of str, optional
        Those of the new graph; by default the old one's.
    changed : mapping, optional
        Tensors that are others now, by name.
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
    """How often a tensor holds what the model has there once, because its reader has parts of weights."""
    maker = graph.producer(name)
    _, found, count = maker.name.rpartition(_TIMES) if maker else ("", "", "")
    return int(count) if found else 1
