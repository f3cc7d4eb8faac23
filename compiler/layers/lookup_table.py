"""Lookup tables of functions of one 8-bit operand."""

from typing import cast

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph, Node
from compiler.ir.ops import BINARY_OPS, LOGIC_OPS, TABLE_OPS
from compiler.ir.tensor import Tensor
from compiler.layers.lowering_context import EIGHT_BITS
from compiler.reference import run_node

#: Operators that return or read booleans, and operators that can be functions of one operand.
_SELECTING = LOGIC_OPS | {"where"}
_UNARY = TABLE_OPS | BINARY_OPS | _SELECTING


def is_unary(graph: Graph, node: Node) -> bool:
    """Return True if a node is a function of one 8-bit operand, possibly with constant scalar operands."""
    x, *others = graph.ins(node)
    if node.op not in _UNARY or len(node.outputs) != 1:
        return False
    if x.constant and others:
        x, others = others[0], [x]
    constants = all(t.data is not None and t.elements == 1 for t in others)
    out = graph.out(node)
    if node.op in _SELECTING:
        whole = all(t.quantization is None or t.quantization.whole for t in (x, out, *others))
        return constants and not x.constant and whole and {x.dtype, out.dtype} <= {*EIGHT_BITS, "bool"}
    whole = all(t.quantization is not None and t.quantization.whole for t in (x, out, *others))
    if node.op == "clip" and x.quantization is None and out.quantization is None:
        whole = x.dtype == out.dtype  # plain integers
    return constants and not x.constant and whole and x.dtype in EIGHT_BITS and out.dtype in EIGHT_BITS


def values_of(dtype: str) -> NDArray:
    """Return all values of an 8-bit type or of the booleans, in ascending order."""
    if dtype == "bool":
        return np.array([False, True])
    limits = np.iinfo(dtype)
    return np.arange(limits.min, limits.max + 1).astype(dtype)


def table_of(graph: Graph, node: Node, rounding: str) -> NDArray[np.int16]:
    """Evaluate a unary node for all values of its operand; entry q & 255 of the table is the result for q."""
    inputs, out = graph.ins(node), graph.out(node)
    (x,) = (t for t in inputs if not t.constant)
    every = values_of(x.dtype)
    small = Graph(graph.name)
    for name in dict.fromkeys(t.name for t in inputs):
        tensor = graph.tensors[name]
        if tensor.constant:
            scalar = cast(NDArray, tensor.data).reshape(())
            small.add_tensor(Tensor(name, (), tensor.dtype, tensor.quantization, scalar))
        else:
            small.add_input(Tensor(name, every.shape, tensor.dtype, tensor.quantization))
    small.add_tensor(Tensor(out.name, every.shape, out.dtype, out.quantization))
    copy = small.add_node(Node(node.name, node.op, node.inputs, node.outputs, node.attributes))
    values = [every if t.name == x.name else cast(NDArray, small.tensors[t.name].data) for t in inputs]
    (results,) = run_node(small, copy, values, rounding=rounding)  # type: ignore[arg-type]
    table = np.zeros(256, np.int16)
    table[every.astype(np.int64) & 255] = results
    return table
