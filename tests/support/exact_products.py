"""ONNX models rewritten so that onnxruntime computes their integer products exactly on every processor.

On x86 processors with AVX2 but without VNNI, onnxruntime multiplies uint8 by int8 with `vpmaddubsw`, which saturates
the sum of two products at 16 bits. The table compares results of onnxruntime 1.31 on these processors with numpy's
int64, for operands near the limits of their types:

=====================  ============  ============  ============  ============
Operator               uint8, uint8  uint8, int8   int8, uint8   int8, int8
=====================  ============  ============  ============  ============
MatMulInteger          exact         saturates     exact         exact
ConvInteger            exact         exact         wrong         exact
QLinearMatMul          exact         saturates     rejected       exact
QLinearConv            exact         saturates     rejected       exact
QGemm                  exact         saturates     rejected       exact
MatMulIntegerToFloat   exact         saturates     rejected       exact
DynamicQuantizeMatMul  exact         saturates     (always uint8 on the left)
=====================  ============  ============  ============  ============

The wrong sums of ConvInteger have a cause other than saturation, since depthwise convolutions are wrong too. The
session option `session.x64quantprecision` has no effect without graph optimizations, which reference runs disable.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.inliner import inline_local_functions


@dataclass(frozen=True)
class _Operands:
    """Positions of the operands of a product, and of their zero points, among the inputs of a node."""

    left: int
    left_zero: int
    right: int
    right_zero: int
    #: The left operand is float32 and is quantized to uint8 by the operator itself.
    dynamic: bool = False
    #: onnxruntime accepts an int8 left operand together with a uint8 right operand.
    mixed: bool = False


_INTEGER, _QLINEAR = _Operands(0, 2, 1, 3, mixed=True), _Operands(0, 2, 3, 5)
_PRODUCTS = {
    ("", "MatMulInteger"): _INTEGER,
    ("", "ConvInteger"): _INTEGER,
    ("", "QLinearMatMul"): _QLINEAR,
    ("", "QLinearConv"): _QLINEAR,
    ("com.microsoft", "QGemm"): _QLINEAR,
    ("com.microsoft", "MatMulIntegerToFloat"): _Operands(0, 4, 1, 5),
    ("com.microsoft", "DynamicQuantizeMatMul"): _Operands(0, -1, 1, 3, dynamic=True),
}


def exact_products(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model in which products of uint8 and int8 are replaced by equal products of uint8 and uint8.

    The value 128 is added to an int8 operand and to its zero point. Constants are replaced; for other values, nodes
    before the product add 128. Subgraphs are rewritten as well. Model functions with integer products are inlined
    first.

    Parameters
    ----------
    model : ModelProto
        Model without external data; the function does not change it.

    Raises
    ------
    ValueError
        The type of an operand is known neither from ONNX's type inference nor from its zero point.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    if any(_product(node) for function in copy.functions for node in _all_nodes(function.node)):
        copy = inline_local_functions(copy)
    if any(_product(node) for node in _all_nodes(copy.graph.node)):
        types = onnx.shape_inference.infer_shapes(copy).graph
        _Rewriter(_names(copy.graph)).rewrite(copy.graph, types, _Scope())
    return copy


def _product(node: onnx.NodeProto) -> _Operands | None:
    domain = "" if node.domain == "ai.onnx" else node.domain
    return _PRODUCTS.get((domain, node.op_type))


def _subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes and the nodes of their subgraphs."""
    for node in nodes:
        yield node
        for graph in _subgraphs(node):
            yield from _all_nodes(graph.node)


def _names(graph: onnx.GraphProto) -> set[str]:
    """Return the names of all tensors of a graph and its subgraphs."""
    names = {each.name for each in (*graph.input, *graph.initializer)}
    for node in graph.node:
        names.update((*node.input, *node.output))
        for inner in _subgraphs(node):
            names |= _names(inner)
    return names


def _used(graph: onnx.GraphProto) -> set[str]:
    """Return the names that a graph or its subgraphs read or return."""
    names = {each.name for each in (*graph.input, *graph.output)}
    for node in graph.node:
        names.update(node.input)
        for inner in _subgraphs(node):
            names |= _used(inner)
    return names


@dataclass
class _Scope:
    """Types of the tensors that a graph's nodes can read, and the constants among these tensors."""

    types: dict[str, int] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def inside(self, graph: onnx.GraphProto) -> "_Scope":
        """Return the scope of a nested graph whose types have been inferred."""
        values = (*graph.input, *graph.value_info, *graph.output)
        types = {each.name: each.type.tensor_type.elem_type for each in values}
        constants = {
            node.output[0]: numpy_helper.to_array(each.t)
            for node in graph.node
            if node.op_type == "Constant"
            for each in node.attribute
            if each.name == "value"
        }
        inputs = {each.name for each in graph.input}
        for each in graph.initializer:
            types[each.name] = each.data_type
            if each.name not in inputs:  # otherwise the value is a default, which the caller may replace
                constants[each.name] = numpy_helper.to_array(each)
        types |= {name: helper.np_dtype_to_tensor_dtype(each.dtype) for name, each in constants.items()}
        outer = {name: each for name, each in self.constants.items() if name not in types}
        return _Scope(self.types | types, outer | constants)


class _Rewriter:
    """Rewriter of a graph and its subgraphs, in place."""

    def __init__(self, names: set[str]):
        self._taken = names

    def rewrite(self, graph: onnx.GraphProto, inferred: onnx.GraphProto, outer: _Scope) -> None:
        """Rewrite the products; `inferred` is the same graph with the types of its tensors."""
        scope = outer.inside(inferred)
        nodes: list[onnx.NodeProto] = []
        for node, typed in zip(graph.node, inferred.node, strict=True):
            for inner, inner_typed in zip(_subgraphs(node), _subgraphs(typed), strict=True):
                self.rewrite(inner, inner_typed, scope)
            if operands := _product(node):
                nodes += self._shifts(node, operands, graph, scope)
            nodes.append(node)
        del graph.node[:]
        graph.node.extend(nodes)
        used = _used(graph)
        held = [each for each in graph.initializer if each.name in used]
        del graph.initializer[:]
        graph.initializer.extend(held)

    def _shifts(
        self, node: onnx.NodeProto, at: _Operands, graph: onnx.GraphProto, scope: _Scope
    ) -> list[onnx.NodeProto]:
        """Make a product of uint8 and int8 read a shifted uint8 operand; return the nodes that compute the operand."""
        left = TensorProto.UINT8 if at.dynamic else _type(node, at.left, at.left_zero, scope.types)
        right = _type(node, at.right, at.right_zero, scope.types)
        if (left, right) == (TensorProto.UINT8, TensorProto.INT8):
            moved = at.right, at.right_zero
        elif (left, right) == (TensorProto.INT8, TensorProto.UINT8) and at.mixed:
            moved = at.left, at.left_zero
        else:
            return []
        node.input.extend([""] * (moved[1] + 1 - len(node.input)))
        return [each for index in moved for each in self._shift(node, index, graph, scope)]

    def _shift(
        self, node: onnx.NodeProto, index: int, graph: onnx.GraphProto, scope: _Scope
    ) -> list[onnx.NodeProto]:
        """Replace an int8 input (0 if absent) with the uint8 value input + 128; return the nodes that compute it."""
        name = node.input[index]
        node.input[index] = moved = self._name(name or "zero")
        stored = scope.constants.get(name) if name else np.zeros((), np.int8)
        if stored is not None:
            array = (stored.astype(np.int16) + 128).astype(np.uint8)
            graph.initializer.append(numpy_helper.from_array(array, moved))
            return []
        wide, total, offset = (self._name(name) for _ in range(3))
        graph.initializer.append(numpy_helper.from_array(np.array(128, np.int32), offset))
        return [
            helper.make_node("Cast", [name], [wide], to=TensorProto.INT32),
            helper.make_node("Add", [wide, offset], [total]),
            helper.make_node("Cast", [total], [moved], to=TensorProto.UINT8),
        ]

    def _name(self, base: str) -> str:
        """Return a tensor name that is not in use."""
        name = next(new for i in count() if (new := f"{base}_uint8_{i}") not in self._taken)
        self._taken.add(name)
        return name


def _type(node: onnx.NodeProto, operand: int, zero: int, types: Mapping[str, int]) -> int:
    """Return the type of an operand, which is also the type of its zero point."""
    names = [node.input[i] for i in (operand, zero) if i < len(node.input)]
    for name in filter(None, names):
        if types.get(name):
            return types[name]
    raise ValueError(f"{node.op_type} {node.name!r}: the type of input {names[0]!r} is not known")
