"""Rewrites of a float graph into operators whose quantized forms the accelerator has."""

from compiler.ir.graph import Graph, Node
from compiler.ir.rebuild import rebuild
from compiler.ir.tensor import Tensor

#: Maximum window size of average pooling on the accelerator.
_MOST_TAPS = 255


def means_as_pools(graph: Graph) -> Graph:
    """Replace means over whole images by equivalent average pooling."""
    changed: dict[str, Tensor] = {}
    nodes: list[Node] = []
    for node in graph:
        if not _is_global_mean(graph, node):
            nodes.append(node)
            continue
        x, y = graph.ins(node)[0], graph.out(node)
        pooled = (x.shape[0], 1, 1, x.shape[3])
        made = y.name if y.shape == pooled else f"{y.name}:pooled"
        window = {"kernel": x.shape[1:3], "strides": (1, 1), "pads": (0, 0, 0, 0), "count_pads": False}
        nodes.append(Node(node.name, "avg_pool2d", node.inputs, (made,), window))
        if made != y.name:
            changed[made] = Tensor(made, pooled, y.dtype)
            nodes.append(Node(f"{node.name}:flat", "reshape", (made,), node.outputs, {"shape": y.shape}))
    return rebuild(graph, nodes, changed=changed)


def _is_global_mean(graph: Graph, node: Node) -> bool:
    if node.op != "reduce_mean":
        return False
    x = graph.ins(node)[0]
    if x.dtype != "float32" or len(x.shape) != 4 or {axis % 4 for axis in node.attributes["axes"]} != {1, 2}:
        return False
    return x.shape[1] * x.shape[2] <= _MOST_TAPS
