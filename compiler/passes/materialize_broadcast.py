"""Materializes broadcasts of quantized operands that the hardware does not support."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from compiler.ir.graph import Graph, Node
from compiler.ir.ops import BINARY_OPS
from compiler.ir.rebuild import rebuild
from compiler.ir.tensor import Tensor
from compiler.layers.elementwise import laid_over
from compiler.layers.lookup_tables import EIGHT_BITS, is_unary

#: So many elements of a constant that is repeated, and of a tensor that is repeated element by element.
_MOST = 1 << 22


def spread_operands(graph: Graph) -> Graph:
    """The same graph whose quantized sums, differences and products have operands that the machine takes.

    It takes one of the shape of the result, and beside it one of that shape too, or a row that is the same for all,
    or of products a number for each row. Others become such by being repeated along dimensions of size one.
    """
    wanting = {node.name for node in graph if node.op in BINARY_OPS and _wanting(graph, node)}
    if not wanting:
        return graph
    made: dict[str, Tensor] = {}
    nodes: list[Node] = []
    for node in graph:
        nodes += _repeated(graph, node, made) if node.name in wanting else [node]
    return rebuild(graph, nodes, changed=made)


def _wanting(graph: Graph, node: Node) -> bool:
    """Return True if a node is quantized to 8 bits and the hardware does not support its broadcast."""
    ins, out = graph.ins(node), graph.out(node)
    eight = all(
        tensor.dtype in EIGHT_BITS and tensor.quantization is not None and tensor.quantization.whole
        for tensor in (*ins, out)
    )
    if not eight or out.elements > _MOST or all(tensor.constant for tensor in ins) or is_unary(graph, node):
        return False
    return not _taken(node, ins[0], ins[1], out)


def _taken(node: Node, a: Tensor, b: Tensor, y: Tensor) -> bool:
    """Return True if the hardware supports the node with these operands."""
    return any(
        first.shape == y.shape
        and not first.constant
        and laid_over(node.op, second.shape, first.shape) is not None
        for first, second in ((a, b), (b, a))
    )


def _repeated(graph: Graph, node: Node, made: dict[str, Tensor]) -> Iterator[Node]:
    """The node behind what makes its operands of a shape that goes; the greater one that flows first."""
    operands, y = list(graph.ins(node)), graph.out(node)
    for number in sorted((0, 1), key=lambda i: (operands[i].constant, -operands[i].elements)):
        called = f"{node.name}:operand{number}"
        for axis in range(-1, len(y.shape)):
            if _taken(node, operands[0], operands[1], y):
                break
            x = operands[number]
            if x.data is not None:
                data = np.ascontiguousarray(np.broadcast_to(x.data, y.shape))
                made[called] = operands[number] = replace(x, name=called, shape=y.shape, data=data)
            elif axis < 0:
                yield from _ranked(called, operands, number, len(y.shape), made)
            elif x.shape[axis] != y.shape[axis]:
                yield from _longer(called, operands, number, (axis, y.shape[axis]), made)
    yield replace(node, inputs=tuple(tensor.name for tensor in operands))


def _ranked(
    called: str, operands: list[Tensor], number: int, rank: int, made: dict[str, Tensor]
) -> Iterator[Node]:
    """An operand gets as many dimensions as there are."""
    x = operands[number]
    if len(x.shape) < rank:
        shape = (1,) * (rank - len(x.shape)) + x.shape
        made[f"{called}:rank"] = operands[number] = replace(x, name=f"{called}:rank", shape=shape)
        yield Node(f"{called}:rank", "reshape", (x.name,), (f"{called}:rank",), {"shape": shape})


def _longer(
    called: str, operands: list[Tensor], number: int, wanted: tuple[int, int], made: dict[str, Tensor]
) -> Iterator[Node]:
    """An operand is repeated along an axis, so many times."""
    x, (axis, size) = operands[number], wanted
    again = Tensor(f"{called}:again{axis}", (size,), "int32", data=np.zeros(size, np.int32))
    y = replace(x, name=f"{called}:axis{axis}", shape=(*x.shape[:axis], size, *x.shape[axis + 1 :]))
    made |= {again.name: again, y.name: y}
    operands[number] = y
    yield Node(y.name, "gather", (x.name, again.name), (y.name,), {"axis": axis})
