"""Which nodes of a float graph are quantized, and which tensors share a quantization."""

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from compiler.ir.graph import Graph, Node, rebuild
from compiler.ir.ops import MOVING, OPS, QuantizedForm
from compiler.ir.tensor import Quantization, Tensor
from compiler.quantize.report import ENDLESS
from hw.errors import InputError, shown

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


EDGE = "conversion between float and integers at the model boundary"
#: Why a node stays that has nothing to quantize.
INTEGERS = "integers stay what they are"
EDGE_INSIDE = "float at the edge of a subgraph"

#: Operators with constant weights, and the axis of the weights along which output channels lie.
WEIGHTED = {name: spec.weights_axis for name, spec in OPS.items() if spec.weights_axis is not None}
#: Operators that move elements or choose among them: their inputs and outputs have one quantization.
_SHARED = frozenset(name for name, spec in OPS.items() if spec.quantized == QuantizedForm.SHARED)
#: Normalizations keep their factors in float32.
NORMS = frozenset(name for name, spec in OPS.items() if spec.quantized == QuantizedForm.NORM)
#: Outputs of these have the quantization that TFLite demands.
FIXED = {name: spec.output for name, spec in OPS.items() if spec.output is not None}
#: Operators that do nothing but lay out a float input, or output, of the model.
_LAYOUT_OPERATORS = ("transpose", "reshape")


def quantizable(op: str) -> bool:
    """Whether an operator of a float model has a quantized form."""
    return OPS[op].quantized is not None


def as_int8(x: Tensor) -> Quantization | None:
    """What bytes of one scale mean once they are int8: the same numbers; None for other tensors."""
    q = x.quantization
    if q is None or not q.whole or x.dtype not in ("int8", "uint8"):
        return None
    return Quantization.of(q.scale[0], q.zero_point[0] - (128 if x.dtype == "uint8" else 0))


def kept_float(graph: Graph, skip: Collection[str], endless: Collection[str] = ()) -> dict[str, str]:
    """Nodes that are not quantized, with reasons; `endless` tensors had non-finite values on the samples.

    Raises
    ------
    InputError
        `skip` names neither a node nor an operator of the graph.
    """
    known = names_in(graph)
    for name in skip:
        if name not in known:
            raise InputError(f"{graph.name!r} has no node and no operator {shown(name)} to keep float")
    edge = _edges(graph)
    reasons = {}
    for node in graph:
        why = EDGE if node.name in edge else _obstacle(graph, node, endless)
        if why is None and (node.name in skip or node.op in skip):
            why = "asked to stay float"
        if why is not None:
            reasons[node.name] = why
    return reasons


def names_in(graph: Graph) -> set[str]:
    """Names of all nodes and operators of a graph and its subgraphs."""
    return {name for _, node in graph.walk() for name in (node.name, node.op)}


def _edges(graph: Graph) -> set[str]:
    """Nodes that lay out float inputs before anything is computed of them, or outputs after that."""
    fresh, first = {name for name in graph.inputs if graph.tensors[name].dtype == "float32"}, set()
    for node in graph:
        if node.op in _LAYOUT_OPERATORS and node.inputs[0] in fresh:
            first.add(node.name)
            fresh |= set(node.outputs)
    last: set[str] = set()
    for node in reversed(list(graph)):
        consumers = graph.consumers(node.outputs[0])
        floats = graph.tensors[node.outputs[0]].dtype == "float32"
        if floats and node.op in _LAYOUT_OPERATORS and all(user.name in last for user in consumers):
            last.add(node.name)
    return first | last


def _obstacle(graph: Graph, node: Node, endless: Collection[str]) -> str | None:
    """Reason why a node cannot be quantized; None if it can."""
    if node.bodies:
        return "control flow, whose subgraphs are quantized separately"
    if node.op == "onnx":
        return node.attributes["why"]
    if not touches_floats(graph, node):
        return INTEGERS
    if node.op == "dequantize":
        x = graph.ins(node)[0]
        if "float16" in (x.dtype, graph.out(node).dtype):
            return "float16 numbers are converted as they are handed over"
        return None if as_int8(x) else f"{x.dtype} numbers become real ones"
    if not quantizable(node.op):
        return f"{node.op} has no quantized form"
    ins, out = graph.ins(node), graph.out(node)
    data = ins[:1] if node.op == "gather" else ins
    for tensor in (*data, out):
        if tensor.dtype != "float32":
            return f"{tensor.name!r} is {tensor.dtype}, not float32"
        if tensor.name in endless or (tensor.data is not None and not np.isfinite(tensor.data).all()):
            return f"{tensor.name!r} {ENDLESS}, which 8 bits do not hold"
    if (node.op in WEIGHTED or node.op in NORMS) and not all(tensor.constant for tensor in ins[1:]):
        return "its weights are not constant"
    return None


class Sharing:
    """Groups of tensors that share a quantization.

    Parameters
    ----------
    graph : Graph
        The float model to quantize.
    kept : collection of str
        Nodes that are not quantized.

    Attributes
    ----------
    fixed : dict
        Quantizations that operators demand, by the tensor that stands for its group.
    covered : set of str
        Tensors whose own range does not count: the clip behind them cuts it.
    """

    def __init__(self, graph: Graph, kept: Collection[str]):
        self.graph = graph
        self.parent: dict[str, str] = {}
        self.fixed: dict[str, Quantization] = {}
        self.covered: set[str] = set()
        for node in graph:
            if node.name not in kept:
                self._enter(node, kept)

    def root(self, name: str) -> str:
        """Representative tensor of a tensor's group."""
        while name in self.parent:
            name = self.parent[name]
        return name

    def _join(self, a: str, b: str) -> None:
        a, b = self.root(a), self.root(b)
        if a == b:
            return
        self.parent[b] = a
        if b in self.fixed:
            self.fixed[a] = self.fixed.pop(b)

    def _enter(self, node: Node, kept: Collection[str]) -> None:
        (out,) = node.outputs
        if node.op in FIXED:
            self.fixed[out] = FIXED[node.op]
        elif node.op == "dequantize":
            given = as_int8(self.graph.tensors[node.inputs[0]])
            assert given is not None
            self.fixed[out] = given
        elif node.op == "clip":
            self._clip(node, kept)
        elif node.op in _SHARED:
            names = node.inputs[:1] if node.op == "gather" else node.inputs
            demanded = {self.fixed.get(self.root(name)) for name in names}
            if node.op == "pad" and node.attributes["value"] != 0:
                demanded.add(None)
            for name in names:
                # An input of a quantization of its own is converted before.
                if len(demanded) == 1 or self.root(name) not in self.fixed:
                    self._join(name, out)

    def _clip(self, node: Node, kept: Collection[str]) -> None:
        """What is computed only to be clipped needs no more range than the result."""
        (x,), (out,) = node.inputs, node.outputs
        maker = self.graph.producer(x)
        alone = len(self.graph.consumers(x)) == 1 and x not in self.graph.outputs
        if maker is None or maker.name in kept or not alone:
            return
        if maker.op in _SHARED or maker.op in FIXED or maker.op in ("clip", "dequantize"):
            return
        self.covered.add(x)
        self._join(out, x)
