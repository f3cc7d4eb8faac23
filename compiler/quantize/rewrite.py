"""Rewriting of a float graph into a quantized one, node by node, and quantization of its constants."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler.frontends.builder import GraphBuilder
from compiler.ir.graph import Graph, Node, rebuild
from compiler.ir.ops import OPS
from compiler.ir.tensor import Quantization, Tensor
from compiler.quantize.plan import EDGE, INTEGERS, NORMS, WEIGHTED
from compiler.quantize.ranges import MIN_SCALE, affine_of, stored

#: Maximum magnitude of an int32 bias, which leaves half of the range for the sum of products.
_MAX_BIAS = 1 << 30
#: Minimum scale of a channel relative to the largest scale; weights that would need a smaller one have no visible
#: effect.
_MIN_RELATIVE_SCALE = 2.0**-20


@dataclass(frozen=True)
class QuantizedConstant:
    """Integers with their quantization."""

    data: NDArray
    quantization: Quantization


def quantized_weights(
    weights: NDArray, axis: int, *, per_channel: bool, bias: NDArray | None, x_scale: float
) -> tuple[QuantizedConstant, QuantizedConstant | None]:
    """Quantize weights to symmetric int8, and the bias to int32 with the scale of the products.

    Parameters
    ----------
    weights : float32 array
        Weights with any number of dimensions.
    axis : int
        Axis of the output channels.
    per_channel : bool
        True for one scale per output channel, False for a single scale.
    bias : (channels,) float32 array or None
        Bias of each output channel.
    x_scale : float
        Scale of the activation that the weights multiply.
    """
    others = tuple(i for i in range(weights.ndim) if i != axis)
    largest = np.abs(weights.astype(np.float64)).max(others)
    largest = largest if per_channel else np.full_like(largest, largest.max())
    if bias is not None:
        # Increase scales for which the bias would overflow.
        required = np.abs(bias.astype(np.float64)) * 127 / (x_scale * _MAX_BIAS)
        largest = np.maximum(largest, required if per_channel else required.max())
    floor = max(float(largest.max()) * _MIN_RELATIVE_SCALE, MIN_SCALE)
    scale = np.maximum(largest / 127, floor).astype(np.float32)
    shape = [1] * weights.ndim
    shape[axis] = -1
    steps = np.rint(weights.astype(np.float64) / scale.astype(np.float64).reshape(shape))
    q = _per_axis(scale, axis) if per_channel else Quantization.per_tensor(float(scale[0]))
    fixed = QuantizedConstant(np.clip(steps, -127, 127).astype(np.int8), q)
    if bias is None:
        return fixed, None
    product = (np.float32(x_scale) * scale).astype(np.float32)
    steps = np.rint(bias.astype(np.float64) / product.astype(np.float64))
    q = _per_axis(product, 0) if per_channel else Quantization.per_tensor(float(product[0]))
    return fixed, QuantizedConstant(np.clip(steps, -_MAX_BIAS, _MAX_BIAS).astype(np.int32), q)


def _per_axis(scale: NDArray[np.float32], axis: int) -> Quantization:
    return Quantization(tuple(float(each) for each in scale), (0,) * len(scale), axis)


def quantized_operand(
    values: NDArray, *, symmetric: bool, like: Quantization | None = None
) -> QuantizedConstant:
    """Quantize a constant operand of an elementwise operator, product or concat to int8 with one scale.

    Parameters
    ----------
    values : array
        Floating-point values of the constant.
    symmetric : bool
        True for zero point 0.
    like : Quantization or None
        Quantization to use; None to fit it to the finite values.
    """
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    if like is None and symmetric:
        largest = max(-low, high)
        like = Quantization.per_tensor(max(largest / 127, MIN_SCALE) if largest else 1.0)
    q = like or affine_of(low, high)
    return QuantizedConstant(stored(np.nan_to_num(values), q), q)


#: Maximum window size of average pooling on the accelerator.
_MAX_POOL_SIZE = 255


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
        output = y.name if y.shape == pooled else f"{y.name}:pooled"
        window = {"kernel": x.shape[1:3], "strides": (1, 1), "pads": (0, 0, 0, 0), "count_pads": False}
        nodes.append(Node(node.name, "avg_pool2d", node.inputs, (output,), window))
        if output != y.name:
            changed[output] = Tensor(output, pooled, y.dtype)
            nodes.append(Node(f"{node.name}:flat", "reshape", (output,), node.outputs, {"shape": y.shape}))
    return rebuild(graph, nodes, changed=changed)


def _is_global_mean(graph: Graph, node: Node) -> bool:
    if node.op != "reduce_mean":
        return False
    x = graph.ins(node)[0]
    if x.dtype != "float32" or len(x.shape) != 4 or {axis % 4 for axis in node.attributes["axes"]} != {1, 2}:
        return False
    return x.shape[1] * x.shape[2] <= _MAX_POOL_SIZE


class Rewriter:
    """Rewriter of one float graph into a quantized graph.

    Parameters
    ----------
    graph : Graph
        The float model to rewrite.
    kept : dict
        Reason why a node remains in floating point, by node name.
    quantization : function
        Returns the quantization of a tensor, given its name.
    per_channel : bool
        True for one weight scale per output channel.
    wide : dict
        Quantization of the tensors that sums and products compute as int16, by name; int8 copies are made for other
        readers.

    Attributes
    ----------
    reasons : dict
        Reason why a node of the new graph runs on the host, by node name.
    floats, integers, shorts : dict
        Tensors of the new graph in the original type, as int8 and as int16, by name of the float graph's tensor.
    """

    def __init__(
        self,
        graph: Graph,
        kept: Mapping[str, str],
        quantization: Callable[[str], Quantization],
        per_channel: bool,
        wide: Mapping[str, Quantization],
    ):
        self.graph, self.kept, self.quantization, self.per_channel = graph, kept, quantization, per_channel
        self.wide = wide
        self.build = GraphBuilder(graph.name)
        self.reasons: dict[str, str] = {}
        self.floats: dict[str, Tensor] = {}
        self.integers: dict[str, Tensor] = {}
        self.shorts: dict[str, Tensor] = {}
        self._constants: dict[tuple[str, Quantization], Tensor] = {}

    def run(self) -> Graph:
        """Rewrite the whole graph."""
        new, old = self.build.graph, self.graph
        for name in old.inputs:
            self.floats[name] = new.add_input(old.tensors[name])
        for node in old:
            if node.name in self.kept:
                self._copy(node)
            else:
                self._quantize(node)
        for name in old.outputs:
            self._as_float(name, EDGE)
        return new.finish(list(old.outputs))

    def _copy(self, node: Node) -> None:
        """Copy a node that remains in floating point."""
        why = self.kept[node.name]
        around = EDGE if why == EDGE else f"input of {node.name!r}, which stays float"
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
            self._convert_input(node, name, q)
            return
        output = self._unused(f"{name}:int8") if name in self.graph.outputs else name
        if name in self.wide:
            operands = [self.shorts.get(each) or self._operand(node, each, q) for each in node.inputs]
            out = Tensor(output, old.shape, "int16", self.wide[name])
            self.shorts[name] = self.build.node(node.name, node.op, operands, out, **node.attributes)
            return
        inputs = self._operands(node, q)
        out = Tensor(output, old.shape, "int8", q)
        self.integers[name] = self.build.node(node.name, node.op, inputs, out, **node.attributes)

    def _convert_input(self, node: Node, name: str, q: Quantization) -> None:
        """Replace a dequantize node by its integer operand, converted to int8 if necessary."""
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
        """Return an operand as int8: an activation, or a constant with its own quantization."""
        data = self.graph.tensors[name].data
        if data is None:
            return self._as_integers(name)
        like = q if node.op in ("concat", "gather") else None
        return self._constant(name, quantized_operand(data, symmetric=OPS[node.op].symmetric, like=like))

    def _converted(self, node: Node, name: str, q: Quantization) -> Tensor:
        """Return an operand requantized to the quantization of the result."""
        operand = self._operand(node, name, q)
        if operand.quantization == q:
            return operand
        out = Tensor(self._unused(f"{name}:converted"), operand.shape, operand.dtype, q)
        return self.build.node(f"{node.name}:{name}", "requantize", [operand], out)

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
            unused = self._unused(f"{name}:int")
            self._constants[key] = self.build.constant(unused, fixed.data, fixed.quantization)
        return self._constants[key]

    def _as_integers(self, name: str) -> Tensor:
        """Return an activation as int8; add a conversion if it does not exist as int8 yet."""
        if name not in self.integers and name in self.shorts:
            short = self.shorts[name]
            out = Tensor(self._unused(f"{name}:narrow"), short.shape, "int8", self.quantization(name))
            node = self._fresh_node(f"{name}:narrow")
            self.integers[name] = self.build.node(node, "requantize", [short], out)
        if name not in self.integers:
            real = self.floats[name]
            node = self._fresh_node(f"{name}:quantize")
            why = (
                EDGE if self._is_input(name) else f"converts {name!r}, the output of a node that stays float"
            )
            out = Tensor(self._unused(f"{name}:int8"), real.shape, "int8", self.quantization(name))
            self.integers[name] = self.build.node(node, "quantize", [real], out)
            self.reasons[node] = why
        return self.integers[name]

    def _as_float(self, name: str, why: str) -> Tensor:
        """Return a tensor in its original type; add a dequantize node if it exists only as int8."""
        if name not in self.floats:
            old = self.graph.tensors[name]
            if old.constant:
                self.floats[name] = self.build.graph.add_tensor(old)
            else:
                node = self._fresh_node(f"{name}:dequantize")
                output = name if name in self.graph.outputs else self._unused(f"{name}:float")
                out = Tensor(output, old.shape, old.dtype)
                integers = self.shorts.get(name) or self.integers[name]
                self.floats[name] = self.build.node(node, "dequantize", [integers], out)
                self.reasons[node] = why
        return self.floats[name]

    def _is_input(self, name: str) -> bool:
        """Return True if a float tensor is an input of the model, possibly in another layout."""
        producer = self.graph.producer(name)
        return producer is None or self.kept.get(producer.name) == EDGE

    def _unused(self, base: str) -> str:
        """Return an unused tensor name: `base`, with a number appended if it is in use."""
        name, number = base, 1
        used = self.build.graph.tensors
        while name in used or (name != base and name in self.graph.tensors):
            number += 1
            name = f"{base}.{number}"
        return name

    def _fresh_node(self, base: str) -> str:
        name = base
        while name in self.graph.nodes or name in self.build.graph.nodes:
            name += "'"
        return name
