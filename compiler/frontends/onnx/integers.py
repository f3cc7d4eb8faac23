"""ONNX's products of integers, and dynamic quantization in front of them, as operators on real numbers."""

from dataclasses import replace

import numpy as np

from compiler.frontends.onnx.node import FileNode, Model
from compiler.frontends.onnx.rewrite import Parts, expands
from compiler.frontends.onnx.values import Fixed
from hw.errors import InputError


@expands("DynamicQuantizeLinear")
def _dynamic(model: Model, node: FileNode) -> list[FileNode]:
    """Nothing, if what reads it can compute with the real numbers, one step of which is one; else itself."""
    parts = Parts(model, node, 1, 1)
    outputs = (*node.outputs, "", "")[:3]
    readers = [n for n in model.nodes if outputs[0] in n.inputs]
    if any(output.name in outputs for output in model.outputs) or not all(
        _reads(model, n, outputs) for n in readers
    ):
        return [node]
    for name, number in ((outputs[1], np.float32(1)), (outputs[2], np.uint8(0))):
        if name:
            model.constants[name] = Fixed(name, np.array(number))
    parts.add("Identity", node.inputs, "")
    return [replace(parts.nodes[0], outputs=outputs[:1])]


def _reads(model: Model, node: FileNode, dynamic: tuple[str, ...]) -> bool:
    """A node reads dynamically quantized integers together with their scale or zero point, and is rewritten."""
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


def _check_weights(parts: Parts) -> None:
    """Refuse weights that no real operator takes."""
    if parts.inputs[3]:
        parts.fixed(parts.inputs[3], "a zero point")
    if parts.node.op == "ConvInteger":
        parts.fixed(parts.inputs[1], "a kernel")
    parts.whole(1, 3)


@expands("MatMulInteger", "ConvInteger")
def _integer(model: Model, node: FileNode) -> list[FileNode]:
    """The same with real numbers, one step of which is one.

    Sums of integers that were quantized at run time stay real numbers, for which the file scales them at once.
    """
    parts = Parts(model, node, 2, 4)
    _check_weights(parts)
    parts.whole(0, 2)
    dynamic = any(n.op == "DynamicQuantizeLinear" and parts.inputs[0] in n.outputs for n in model.nodes)
    one, operands = parts.constant("one", np.array(1, np.float32)), []
    for at, part, axis in ((0, "a", -2), (1, "b", 0 if node.op == "ConvInteger" else -1)):
        zero, scale = parts.inputs[at + 2], one
        if zero and (size := parts.fixed(zero, "a zero point").data.size) > 1:
            scale = parts.constant(f"ones_{part}", np.ones(size, np.float32))
        operands.append(parts.add("DequantizeLinear", (parts.inputs[at], scale, zero), part, axis=axis))
    parts.add(node.op[: -len("Integer")], tuple(operands), "")
    if not dynamic:
        real = f"{node.name}:real"
        parts.nodes[-1] = replace(parts.nodes[-1], outputs=(real,))
        parts.nodes.append(
            FileNode(f"{node.name}:integers", ":integers", (real,), node.outputs, {}, node.opset)
        )
    return parts.nodes
