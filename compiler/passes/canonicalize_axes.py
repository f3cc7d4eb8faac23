"""Moves the axis of axis-wise operators to the last dimension by transposes."""

from dataclasses import replace

from compiler.ir.graph import Graph, Node
from compiler.ir.ops import OPS
from compiler.ir.rebuild import rebuild
from compiler.ir.tensor import Tensor


def turn_axes(graph: Graph) -> Graph:
    """The same graph with every quantized softmax and cumulated sum along the last dimension.

    What the host computes in real numbers it computes along any dimension.
    """
    made: dict[str, Tensor] = {}
    nodes: list[Node] = []
    for node in graph:
        x = graph.ins(node)[0] if node.inputs else None
        if OPS[node.op].last_axis and x is not None and x.quantization and _axis(node, x) != len(x.shape) - 1:
            nodes += _turned(graph, node, x, made)
        else:
            nodes.append(node)
    return rebuild(graph, nodes, changed=made) if made else graph


def _axis(node: Node, x: Tensor) -> int:
    return node.attributes["axis"] % len(x.shape)


def _turned(graph: Graph, node: Node, x: Tensor, made: dict[str, Tensor]) -> list[Node]:
    """A transpose, the operator, the transpose back: an exchange of two dimensions is its own inverse."""
    last, axis = len(x.shape) - 1, _axis(node, x)
    perm = list(range(last + 1))
    perm[axis], perm[last] = last, axis
    shape = tuple(x.shape[i] for i in perm)
    before = replace(x, name=_fresh(graph, made, f"{x.name}:turned"), shape=shape, data=None)
    made[before.name] = before
    y = graph.out(node)
    after = replace(y, name=_fresh(graph, made, f"{y.name}:turned"), shape=shape)
    made[after.name] = after
    return [
        Node(f"{node.name}:turn", "transpose", (x.name,), (before.name,), {"perm": tuple(perm)}),
        replace(
            node, inputs=(before.name,), outputs=(after.name,), attributes=node.attributes | {"axis": last}
        ),
        Node(f"{node.name}:turn back", "transpose", (after.name,), (y.name,), {"perm": tuple(perm)}),
    ]


def _fresh(graph: Graph, made: dict[str, Tensor], name: str) -> str:
    """Return an unused tensor name."""
    while name in graph.tensors or name in made:
        name += "'"
    return name
