"""Quantization plan: the nodes that are quantized, and the tensors that share a quantization."""

from collections.abc import Collection

import numpy as np

from compiler.ir.graph import Graph, Node
from compiler.ir.ops import OPS, QuantizedForm
from compiler.ir.tensor import Quantization, Tensor
from compiler.quantize.float_models import touches_floats
from compiler.quantize.report import ENDLESS
from hw.errors import InputError, shown

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
_LAYOUT = ("transpose", "reshape")


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
        if node.op in _LAYOUT and node.inputs[0] in fresh:
            first.add(node.name)
            fresh |= set(node.outputs)
    last: set[str] = set()
    for node in reversed(list(graph)):
        consumers = graph.consumers(node.outputs[0])
        floats = graph.tensors[node.outputs[0]].dtype == "float32"
        if floats and node.op in _LAYOUT and all(user.name in last for user in consumers):
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
