"""Rewrites of integer and QLinear operators to float operators between DequantizeLinear and QuantizeLinear."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from compiler.frontends.onnx.node import FileNode, OnnxModel, check_inputs
from compiler.frontends.onnx.ops.elementwise import finite
from compiler.frontends.onnx.values import ConstantValue, UnsupportedNodeError
from hw.errors import InputError


def _reads(model: OnnxModel, node: FileNode, dynamic: tuple[str, ...]) -> bool:
    """Return True if a reader of dynamically quantized integers can read the floating-point values instead."""
    first, *more = (*node.inputs, "", "", "")
    if first != dynamic[0] or dynamic[0] in more:
        return False
    if node.op == "DequantizeLinear":
        return tuple(more[:2]) == dynamic[1:]
    if node.op not in ("MatMulInteger", "ConvInteger") or more[1] != dynamic[2] or not more[1]:
        return False
    try:
        _check_weights(Parts(model, node, 2, 4))
    except InputError:
        return False
    return True


def _images_only(node: FileNode) -> None:
    if node.int("channels_last", 0):
        raise UnsupportedNodeError("its attribute channels_last must be 0")


#: Rewrite of a node into equivalent nodes in topological order.
Expansion = Callable[[OnnxModel, FileNode], list[FileNode]]
_EXPANSIONS: dict[str, Expansion] = {}


def expand(model: OnnxModel) -> OnnxModel:
    """Return the model with integer operators rewritten to float operators on dequantized values."""
    nodes: list[FileNode] = []
    for node in model.nodes:
        expansion = _EXPANSIONS.get(node.op)
        try:
            made = [node] if expansion is None else expansion(model, node)
            nodes += [each if each is node else replace(each, origin=node.names) for each in made]
        except InputError as error:
            # The importer reports the error with the node's name, among all unsupported nodes.
            nodes.append(replace(node, op=":refused", attributes={"error": error, "op": node.op}))
    return replace(model, nodes=nodes)


def expands(*ops: str) -> Callable[[Expansion], Expansion]:
    """Register the decorated function as the rewrite of the operators `ops`."""

    def register(function: Expansion) -> Expansion:
        _EXPANSIONS.update(dict.fromkeys(ops, function))
        return function

    return register


@expands("DynamicQuantizeLinear")
def _dynamic(model: OnnxModel, node: FileNode) -> list[FileNode]:
    """Replace the quantization by Identity, scale 1 and zero point 0 if all readers can use floating-point values."""
    parts = Parts(model, node, 1, 1)
    outputs = (*node.outputs, "", "")[:3]
    readers = [n for n in model.nodes if outputs[0] in n.inputs]
    if any(output.name in outputs for output in model.outputs) or not all(
        _reads(model, n, outputs) for n in readers
    ):
        return [node]
    for name, number in ((outputs[1], np.float32(1)), (outputs[2], np.uint8(0))):
        if name:
            model.constants[name] = ConstantValue(name, np.array(number))
    parts.add("Identity", node.inputs, "")
    return [replace(parts.nodes[0], outputs=outputs[:1])]


@expands("MatMulInteger", "ConvInteger")
def _integer(model: OnnxModel, node: FileNode) -> list[FileNode]:
    """Rewrite to MatMul or Conv on floating-point operands, which are dequantized with scale 1.

    If the first input is dynamically quantized, the result remains in floating point, because later nodes scale it.
    """
    parts = Parts(model, node, 2, 4)
    _check_weights(parts)
    parts.whole(0, 2)
    dynamic = any(n.op == "DynamicQuantizeLinear" and parts.inputs[0] in n.outputs for n in model.nodes)
    one, operands = parts.constant("one", np.array(1, np.float32)), []
    for index, part, axis in ((0, "a", -2), (1, "b", 0 if node.op == "ConvInteger" else -1)):
        zero, scale = parts.inputs[index + 2], one
        if zero and (size := parts.fixed(zero, "a zero point").data.size) > 1:
            scale = parts.constant(f"ones_{part}", np.ones(size, np.float32))
        operands.append(parts.add("DequantizeLinear", (parts.inputs[index], scale, zero), part, axis=axis))
    parts.add(node.op[: -len("Integer")], tuple(operands), "")
    if not dynamic:
        real = f"{node.name}:real"
        parts.nodes[-1] = replace(parts.nodes[-1], outputs=(real,))
        parts.nodes.append(
            FileNode(f"{node.name}:integers", ":integers", (real,), node.outputs, {}, node.opset)
        )
    return parts.nodes


@expands("QLinearConv")
def _conv(model: OnnxModel, node: FileNode) -> list[FileNode]:
    parts = Parts(model, node, 8, 9)
    _images_only(node)
    for index, what in ((3, "a kernel"), (8, "a bias")):
        if parts.inputs[index]:
            given = parts.fixed(parts.inputs[index], what)
            if len(given.shape) > 4:
                raise UnsupportedNodeError(f"a convolution over {len(given.shape) - 2} dimensions")
    operands = (parts.real(0, "x"), parts.real(3, "w", axis=0))
    return parts.finish("Conv", operands + _bias(parts, parts.inputs[8], parts.inputs[1], parts.inputs[4]), 6)


@expands("QLinearMatMul")
def _matmul(model: OnnxModel, node: FileNode) -> list[FileNode]:
    parts = Parts(model, node, 8, 8)
    parts.whole(0, 1, 2)
    parts.whole(3, 4, 5)
    return parts.finish("MatMul", (parts.real(0, "a", axis=-2), parts.real(3, "b", axis=-1)), 6)


@expands("QGemm")
def _gemm(model: OnnxModel, node: FileNode) -> list[FileNode]:
    parts = Parts(model, node, 6, 9)
    if not parts.inputs[7]:
        raise UnsupportedNodeError("its output must be quantized, not real")
    axis = 0 if node.int("transB", 0) else 1
    operands = (parts.real(0, "a"), parts.real(3, "b", axis=axis))
    factor = finite(node.float("alpha", 1.0))
    bias = _bias(parts, parts.inputs[6], parts.inputs[1], parts.inputs[4], factor)
    return parts.finish("Gemm", operands + bias, 7)


@expands("QLinearAdd", "QLinearMul")
def _binary(model: OnnxModel, node: FileNode) -> list[FileNode]:
    parts = Parts(model, node, 7, 8)
    return parts.finish(node.op[len("QLinear") :], (parts.real(0, "a"), parts.real(3, "b")), 6)


@expands(
    "QLinearSigmoid",
    "QLinearLeakyRelu",
    "QLinearAveragePool",
    "QLinearGlobalAveragePool",
    "QLinearReduceMean",
)
def _unary(model: OnnxModel, node: FileNode) -> list[FileNode]:
    parts = Parts(model, node, 4, 5)
    _images_only(node)
    return parts.finish(node.op[len("QLinear") :], (parts.real(0, "x"),), 3)


@expands("QLinearSoftmax")
def _softmax(model: OnnxModel, node: FileNode) -> list[FileNode]:
    parts = Parts(model, node, 4, 5)
    nodes = parts.finish("Softmax", (parts.real(0, "x"),), 3)
    return [replace(n, opset=node.int("opset", node.opset)) if n.op == "Softmax" else n for n in nodes]


@expands("QLinearConcat")
def _concat(model: OnnxModel, node: FileNode) -> list[FileNode]:
    parts = Parts(model, node, 5, max(5, len(node.inputs)))
    if len(parts.inputs) % 3 != 2:
        raise InputError(f"must have two inputs and three for each part, not {len(parts.inputs)} in all")
    operands = tuple(parts.real(index, f"x{index // 3}") for index in range(2, len(parts.inputs), 3))
    return parts.finish("Concat", operands, 0)


class Parts:
    """Builder of the nodes that replace one node.

    Parameters
    ----------
    model : OnnxModel
        The model, which receives new constants.
    node : FileNode
        The node to replace.
    least, most : int
        Minimum and maximum number of inputs of the node.
    """

    def __init__(self, model: OnnxModel, node: FileNode, least: int, most: int):
        check_inputs(node.inputs, least, most)
        self.model, self.node, self.nodes = model, node, list[FileNode]()
        self.inputs = (*node.inputs, *[""] * (most - len(node.inputs)))

    def add(self, op: str, inputs: tuple[str, ...], part: str, **attributes: object) -> str:
        """Add a node and return its output's name; if `part` is empty, the replaced node's output name is used."""
        node = self.node
        output = f"{node.name}:{part}" if part else node.outputs[0]
        name = f"{node.name}:{part}" if part else node.name
        own_attributes = (
            {} if part else {k: v for k, v in node.attributes.items() if k not in ("opset", "channels_last")}
        )
        self.nodes.append(FileNode(name, op, inputs, (output,), own_attributes | attributes, node.opset))
        return output

    def real(self, index: int, part: str, axis: int = 1) -> str:
        """Dequantize inputs `index` to `index + 2` (integers, scale, zero point) and return the name of the result."""
        self._check_constant(index + 1)
        return self.add("DequantizeLinear", self.inputs[index : index + 3], part, axis=axis)

    def finish(self, op: str, inputs: tuple[str, ...], index: int, **attributes: object) -> list[FileNode]:
        """Add the operator and a QuantizeLinear with the inputs from `index` on as parameters, and return all nodes."""
        self._check_constant(index)
        output = f"{self.node.name}:real"
        self.add(op, inputs, "", **attributes)
        self.nodes[-1] = replace(self.nodes[-1], outputs=(output,))
        scale = (output, *self.inputs[index : index + 2])
        self.nodes.append(
            FileNode(
                f"{self.node.name}:quantize",
                "QuantizeLinear",
                scale,
                self.node.outputs[:1],
                {},
                self.node.opset,
            )
        )
        return self.nodes

    def _check_constant(self, index: int) -> None:
        """Reject a scale (input `index`) or zero point (input `index + 1`) that is not constant."""
        for name, what in zip(self.inputs[index : index + 2], ("a scale", "a zero point"), strict=True):
            if name:
                self.fixed(name, what)

    def constant(self, part: str, data: np.ndarray) -> str:
        """Add a constant to the model and return its name."""
        name = f"{self.node.name}:{part}"
        self.model.constants[name] = ConstantValue(name, data)
        return name

    def whole(self, index: int, *parameters: int) -> None:
        """Reject input `index` if it is dynamic and its scale or zero point (`parameters`) has several elements."""
        given = [self.model.constants.get(self.inputs[parameter]) for parameter in parameters]
        if self.inputs[index] not in self.model.constants and any(
            v is not None and v.data.size > 1 for v in given
        ):
            raise UnsupportedNodeError(
                f"{self.inputs[index]!r} is not constant: its scale and its zero point must be one number each"
            )

    def fixed(self, name: str, what: str) -> ConstantValue:
        """Return the constant called `name`, or raise UnsupportedNodeError if the value is not constant."""
        value = self.model.constants.get(name)
        if value is None:
            raise UnsupportedNodeError(f"{what} must be constant")
        return value


def _check_weights(parts: Parts) -> None:
    """Reject weights that the float operators do not support."""
    if parts.inputs[3]:
        parts.fixed(parts.inputs[3], "a zero point")
    if parts.node.op == "ConvInteger":
        parts.fixed(parts.inputs[1], "a kernel")
    parts.whole(1, 3)


def _bias(parts: Parts, name: str, x_scale: str, w_scale: str, factor: float = 1.0) -> tuple[str, ...]:
    """Return the dequantized int32 bias, if any, as a tuple; its scale is the product of both scales and `factor`."""
    if not name:
        return ()
    scales = parts.fixed(x_scale, "a scale").real() * parts.fixed(w_scale, "a scale").real()
    if not factor > 0:  # a scale must be positive
        numbers = parts.fixed(name, "a bias").real() * scales * np.float32(factor)
        return (parts.constant("bias", numbers),)
    scales = scales * np.float32(factor)
    scale = parts.constant("bias_scale", scales.reshape(-1) if scales.size > 1 else scales.reshape(()))
    return (parts.add("DequantizeLinear", (name, scale), "bias", axis=0),)
