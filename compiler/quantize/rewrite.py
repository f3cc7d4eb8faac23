"""Rewrites a float graph into a quantized one, node by node."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler.frontends.builder import GraphBuilder
from compiler.ir.graph import Graph, Node, rebuild
from compiler.ir.ops import OPS
from compiler.ir.tensor import Quantization, Tensor
from compiler.quantize.plan import EDGE, INTEGERS, NORMS, WEIGHTED
from compiler.quantize.ranges import LEAST_SCALE, affine_of, stored

#: A bias must leave the sums their part of 32 bits.
_MOST_BIAS = 1 << 30
#: A channel's scale is at least such a part of the greatest: what is smaller adds nothing that shows.
_LEAST_PART = 2.0**-20


@dataclass(frozen=True)
class QuantizedConstant:
    """Integers with their quantization."""

    data: NDArray
    quantization: Quantization


def quantized_weights(
    weights: NDArray, axis: int, *, per_channel: bool, bias: NDArray | None, x_scale: float
) -> tuple[QuantizedConstant, QuantizedConstant | None]:
    """Symmetric int8 weights, and the int32 bias at the scale of x times them.

    Parameters
    ----------
    weights : float32 array
    axis : int
        Axis of the output channels.
    per_channel : bool
        Use one scale per output channel; otherwise one scale for all.
    bias : (channels,) float32 array or None
    x_scale : float
        Scale of the activation that is multiplied.
    """
    others = tuple(i for i in range(weights.ndim) if i != axis)
    most = np.abs(weights.astype(np.float64)).max(others)
    most = most if per_channel else np.full_like(most, most.max())
    if bias is not None:
        # A scale so small that the bias would overflow is widened.
        need = np.abs(bias.astype(np.float64)) * 127 / (x_scale * _MOST_BIAS)
        most = np.maximum(most, need if per_channel else need.max())
    floor = max(float(most.max()) * _LEAST_PART, LEAST_SCALE)
    scale = np.maximum(most / 127, floor).astype(np.float32)
    shape = [1] * weights.ndim
    shape[axis] = -1
    steps = np.rint(weights.astype(np.float64) / scale.astype(np.float64).reshape(shape))
    q = _many(scale, axis) if per_channel else Quantization.of(float(scale[0]))
    fixed = QuantizedConstant(np.clip(steps, -127, 127).astype(np.int8), q)
    if bias is None:
        return fixed, None
    product = (np.float32(x_scale) * scale).astype(np.float32)
    steps = np.rint(bias.astype(np.float64) / product.astype(np.float64))
    q = _many(product, 0) if per_channel else Quantization.of(float(product[0]))
    return fixed, QuantizedConstant(np.clip(steps, -_MOST_BIAS, _MOST_BIAS).astype(np.int32), q)


def _many(scale: NDArray[np.float32], axis: int) -> Quantization:
    return Quantization(tuple(float(each) for each in scale), (0,) * len(scale), axis)


def quantized_operand(
    values: NDArray, *, symmetric: bool, like: Quantization | None = None
) -> QuantizedConstant:
    """A constant that is added, multiplied, joined: int8 of one scale, or of a given quantization."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    if like is None and symmetric:
        most = max(-low, high)
        like = Quantization.of(max(most / 127, LEAST_SCALE) if most else 1.0)
    q = like or affine_of(low, high)
    return QuantizedConstant(stored(np.nan_to_num(values), q), q)


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


class Rewriter:
    """Rewrites one float graph.

    Parameters
    ----------
    graph : Graph
        The float model to rewrite.
    kept : dict
        Reason by node for nodes that stay float.
    quantization : function
        Quantization of a tensor, by name.
    per_channel : bool
        Weights have a scale for each output channel.

    Attributes
    ----------
    reasons : dict
        Reason by node for nodes of the new graph that run on the host.
    """

    def __init__(
        self,
        graph: Graph,
        kept: Mapping[str, str],
        quantization: Callable[[str], Quantization],
        per_channel: bool,
    ):
        self.graph, self.kept, self.quantization, self.per_channel = graph, kept, quantization, per_channel
        self.build = GraphBuilder(graph.name)
        self.reasons: dict[str, str] = {}
        #: Forms that tensors of the old graph have in the new one.
        self.floats: dict[str, Tensor] = {}
        self.integers: dict[str, Tensor] = {}
        self._constants: dict[tuple[str, Quantization], Tensor] = {}

    def run(self) -> Graph:
        """Rewrite everything."""
        new, old = self.build.graph, self.graph
        for name in old.inputs:
            self.floats[name] = new.add_input(old.tensors[name])
        for node in old:
            if node.name in self.kept:
                self._keep(node)
            else:
                self._quantize(node)
        for name in old.outputs:
            self._as_float(name, EDGE)
        return new.finish(list(old.outputs))

    def _keep(self, node: Node) -> None:
        why = self.kept[node.name]
        around = EDGE if why == EDGE else f"in front of {node.name!r}, which stays float"
        inputs = [self._as_float(name, around) for name in node.inputs]
        outputs = [self.graph.tensors[name] for name in node.outputs]
        self.build.nodes(node.name, node.op, inputs, outputs, node.bodies, **node.attributes)
        self.floats |= zip(node.outputs, outputs, strict=True)
        if not node.bodies and why != INTEGERS:
            self.reasons[node.name] = why

    def _quantize(self, node: Node) -> None:
        (name,) = node.outputs
        old, q = self.graph.tensors[name], self.quantization(name)
        if node.op == "dequantize":
            self._reread(node, name, q)
            return
        inputs = self._operands(node, q)
        made = self._unused(f"{name}:int8") if name in self.graph.outputs else name
        out = Tensor(made, old.shape, "int8", q)
        self.integers[name] = self.build.node(node.name, node.op, inputs, out, **node.attributes)

    def _reread(self, node: Node, name: str, q: Quantization) -> None:
        """Bytes that become real numbers: as int8, if they are not that already."""
        x = self.floats[node.inputs[0]]
        if x.dtype != "int8":
            x = self.build.node(
                node.name, "requantize", [x], Tensor(self._unused(f"{name}:int8"), x.shape, "int8", q)
            )
        self.integers[name] = x

    def _operands(self, node: Node, q: Quantization) -> list[Tensor]:
        first = node.inputs[0]
        if node.op in WEIGHTED:
            return self._weighted(node)
        if node.op in NORMS:
            return [self._as_integers(first), *(self._as_float(name, "") for name in node.inputs[1:])]
        if node.op == "gather":
            return [self._operand(node, first, q), self._as_float(node.inputs[1], EDGE)]
        if node.op in ("concat", "pad"):
            return [self._converted(node, name, q) for name in node.inputs]
        return [self._operand(node, name, q) for name in node.inputs]

    def _operand(self, node: Node, name: str, q: Quantization) -> Tensor:
        """An activation, or a constant in a quantization of its own."""
        data = self.graph.tensors[name].data
        if data is None:
            return self._as_integers(name)
        like = q if node.op in ("concat", "gather") else None
        return self._constant(name, quantized_operand(data, symmetric=OPS[node.op].symmetric, like=like))

    def _converted(self, node: Node, name: str, q: Quantization) -> Tensor:
        """An operand in the quantization of the result."""
        given = self._operand(node, name, q)
        if given.quantization == q:
            return given
        out = Tensor(self._unused(f"{name}:converted"), given.shape, given.dtype, q)
        return self.build.node(f"{node.name}:{name}", "requantize", [given], out)

    def _weighted(self, node: Node) -> list[Tensor]:
        x = self._as_integers(node.inputs[0])
        data = [self.graph.tensors[name].data for name in node.inputs[1:]]
        assert data[0] is not None and x.quantization is not None
        weights, bias = quantized_weights(
            data[0],
            WEIGHTED[node.op],
            per_channel=self.per_channel,
            bias=data[1] if len(data) > 1 else None,
            x_scale=x.quantization.scale[0],
        )
        parts = [weights] if bias is None else [weights, bias]
        return [x, *(self._constant(n, part) for n, part in zip(node.inputs[1:], parts, strict=True))]

    def _constant(self, name: str, fixed: QuantizedConstant) -> Tensor:
        key = (name, fixed.quantization)
        if key not in self._constants:
            wish = self._unused(f"{name}:int")
            self._constants[key] = self.build.constant(wish, fixed.data, fixed.quantization)
        return self._constants[key]

    def _as_integers(self, name: str) -> Tensor:
        """The int8 form of an activation, quantized here if there is none yet."""
        if name not in self.integers:
            given = self.floats[name]
            node = self._fresh_node(f"{name}:quantize")
            why = EDGE if self._fed(name) else f"behind a node that stays float, which makes {name!r}"
            out = Tensor(self._unused(f"{name}:int8"), given.shape, "int8", self.quantization(name))
            self.integers[name] = self.build.node(node, "quantize", [given], out)
            self.reasons[node] = why
        return self.integers[name]

    def _as_float(self, name: str, why: str) -> Tensor:
        """A tensor as it was: float32, or integers that are none of real numbers."""
        if name not in self.floats:
            old = self.graph.tensors[name]
            if old.constant:
                self.floats[name] = self.build.graph.add_tensor(old)
            else:
                node = self._fresh_node(f"{name}:dequantize")
                wish = name if name in self.graph.outputs else self._unused(f"{name}:float")
                out = Tensor(wish, old.shape, old.dtype)
                self.floats[name] = self.build.node(node, "dequantize", [self.integers[name]], out)
                self.reasons[node] = why
        return self.floats[name]

    def _fed(self, name: str) -> bool:
        """Whether a float tensor is an input of the model, or that laid out in another way."""
        maker = self.graph.producer(name)
        return maker is None or self.kept.get(maker.name) == EDGE

    def _unused(self, wish: str) -> str:
        """A name that no tensor of either graph has, but that the old graph's own tensor may keep."""
        name, number = wish, 1
        taken = self.build.graph.tensors
        while name in taken or (name != wish and name in self.graph.tensors):
            number += 1
            name = f"{wish}.{number}"
        return name

    def _fresh_node(self, wish: str) -> str:
        name = wish
        while name in self.graph.nodes or name in self.build.graph.nodes:
            name += "'"
        return name
