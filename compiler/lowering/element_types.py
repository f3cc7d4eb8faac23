"""Check of the element types of nodes against those that their lowerings accept."""

from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Tensor
from compiler.layers.layer_kind import Types
from compiler.layers.lookup_tables import is_unary
from compiler.layers.lowering_context import UnsupportedLoweringError
from compiler.layers.registry import LOWERINGS


def check_types(graph: Graph, node: Node) -> None:
    """Refuse a node whose tensors have element types that its lowering does not take.

    Raises
    ------
    UnsupportedLoweringError
        The first tensor of another type, or the operator has no lowering.
    """
    lowering = LOWERINGS.get(node.op)
    if lowering is None:
        raise UnsupportedLoweringError(f"no way to do {node.op} on the accelerator")
    operands, types = graph.ins(node), lowering.types
    if is_unary(graph, node):  # constants of any type are part of its table
        operands = [tensor for tensor in operands if not tensor.constant]
    last = len(types.operands) - 1
    for number, tensor in enumerate(operands):
        _check(tensor, types.operands[min(number, last)])
    for name in node.outputs:
        _check(graph.tensors[name], types.result)


def _check(tensor: Tensor, types: Types | None) -> None:
    if types is not None and tensor.dtype not in types:
        *others, last = types
        text = f"{', '.join(others)} or {last}" if others else last
        raise UnsupportedLoweringError(f"tensor {tensor.name!r} must be {text}, not {tensor.dtype}")
