"""Detection of float models: graphs that compute on float32 numbers and not on quantized ones."""

from collections.abc import Mapping
from dataclasses import replace

from compiler.ir.graph import Graph, Node
from compiler.ir.ops import MOVING
from compiler.ir.rebuild import rebuild
from compiler.ir.tensor import Quantization, Tensor

#: Integers that stand for themselves: a cast makes float numbers of them.
_ONE = Quantization((1.0,), (0,))
#: Products and sums of bytes that stand for themselves are a quantized model's too.
_PRODUCTS = frozenset(("conv2d", "depthwise_conv2d", "conv_transpose2d", "dense", "matmul"))
#: These only hand numbers over between real ones and integers.
_CONVERTING = frozenset(("dequantize", "dynamic_quantize", "dynamic_scale", "dynamic_zero"))
#: And these lay out what is handed over.
_LAYOUT = frozenset(("reshape", "transpose"))


def is_float(graph: Graph) -> bool:
    """Return True if a graph computes on float32 numbers and not on quantized ones; plain integers are allowed."""
    return obstacle(graph) is None


def obstacle(graph: Graph) -> str | None:
    """Reason why a graph is not a float model, as the end of a sentence; None if it is one."""
    found = _first_quantized(graph)
    if found is not None:
        node, meant = found
        return f"is quantized already: node {node.name!r} ({node.operator}) computes on {meant}"
    nodes = [(each, node) for each, node in graph.walk() if _on_floats(each, node)]
    edge = any(node.op in _CONVERTING for _, node in graph.walk())
    if all(edge and node.op in _LAYOUT for _, node in nodes):
        return "has nothing to quantize: no node computes on float32 numbers"
    return None


def left_float(graph: Graph, host: Mapping[str, str]) -> dict[str, str]:
    """The reasons of nodes on the host; why those on float32 numbers are not quantized is said, if another node is."""
    found = _first_quantized(graph)
    if found is None:
        return dict(host)
    because = f"; not quantized, as the model is already (node {found[0].name!r})"
    floats = {node.name for each, node in graph.walk() if _on_floats(each, node)}
    computing = {node.name for _, node in graph.walk() if node.op not in MOVING | {"onnx", "quantize"}}
    return {name: why + because if name in floats & computing else why for name, why in host.items()}


def _first_quantized(graph: Graph) -> tuple[Node, str] | None:
    """A node that computes on quantized numbers, and which."""
    for each, node in graph.walk():
        meant = _quantized(each, node)
        if meant is not None:
            return node, meant
    return None


def touches_floats(graph: Graph, node: Node) -> bool:
    """Whether a node reads or makes float32 numbers that are not known beforehand."""
    tensors = (graph.tensors[name] for name in (*node.inputs, *node.outputs))
    return any(tensor.dtype == "float32" and not tensor.constant for tensor in tensors)


def _on_floats(graph: Graph, node: Node) -> bool:
    return node.op not in _CONVERTING and touches_floats(graph, node)


def _quantized(graph: Graph, node: Node) -> str | None:
    """The quantized numbers that a node computes on.

    Moving integers is no such thing, nor making real numbers of them, nor arithmetic on integers that stand for
    themselves, such as masks and places.
    """
    if node.op in MOVING or node.op in ("dequantize", "onnx") or node.bodies:
        return None
    makes = node.op in ("quantize", "requantize")
    for name in (*node.inputs, *node.outputs):
        tensor = graph.tensors[name]
        if tensor.quantization is None or tensor.constant:
            continue
        if makes or tensor.quantization != _ONE or node.op in _PRODUCTS:
            return f"{tensor.dtype} numbers {name!r}"
    return None


def without_hybrids(graph: Graph) -> Graph:
    """A float model whose constants are float: quantized ones that float nodes read are the numbers they stand for.

    TFLite's dynamic-range models have such weights; the quantization of the model finds the same integers again.
    """
    changed: dict[str, Tensor] = {}

    def of(name: str) -> str:
        tensor = graph.tensors[name]
        if tensor.data is None or tensor.quantization is None:
            return name
        wish = f"{name}:real"
        while wish in graph.tensors:
            wish += "'"
        real = tensor.quantization.dequantized(tensor.data)
        changed[wish] = Tensor(wish, tensor.shape, "float32", data=real)
        return wish

    nodes = []
    for node in graph:
        mixed = node.op not in ("dequantize", "onnx") and not node.bodies and touches_floats(graph, node)
        ins = tuple(of(name) for name in node.inputs) if mixed else node.inputs
        nodes.append(replace(node, inputs=ins))
    return rebuild(graph, nodes, changed=changed) if changed else graph
