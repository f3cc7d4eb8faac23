"""Graphs and ONNX models of one quantized layer with random values, and the cases of the suites gemm and conv.

The expected outputs of the cases are computed in numpy int64, with the rounding of LiteRT's reference kernels.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from compiler.bench.case import Case, Work, sizes
from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Quantization, Tensor
from hw.errors import InputError, shown

#: Name of the reference in reports.
REFERENCE = "numpy int64"

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class WindowShape:
    """Square kernel over an image of h x w pixels, padded by half the kernel on all sides."""

    h: int
    w: int
    kernel: int
    stride: int

    @property
    def pad(self) -> int:
        """Number of padding rows and columns on each side."""
        return self.kernel // 2

    def taps(self, x: Int64) -> Iterator[tuple[int, int, Int64]]:
        """Yield row and column of each kernel tap with the pixels it reads from `x`, an image with zero point 0."""
        padded = np.pad(x, ((self.pad, self.pad), (self.pad, self.pad), (0, 0)))
        down, across = (
            range(0, size + 2 * self.pad - self.kernel + 1, self.stride) for size in (self.h, self.w)
        )
        for ky in range(self.kernel):
            for kx in range(self.kernel):
                yield ky, kx, padded[np.ix_([y + ky for y in down], [x + kx for x in across])]


def multiplier(scale: float) -> tuple[int, int]:
    """Return the 31-bit multiplier and the exponent of a positive scale: scale = multiplier * 2**(exponent - 31)."""
    mantissa, exponent = math.frexp(scale)
    mult = math.floor(mantissa * (1 << 31) + 0.5)
    return (mult // 2, exponent + 1) if mult == 1 << 31 else (mult, exponent)


def requantize_dense(sums: Int64, ratios: NDArray[np.float64], zp: int) -> Int64:
    """Requantize a dense layer's int32 sums to int8 by double-precision ratios, rounding half away from zero."""
    scaled = sums * ratios
    return np.clip(
        np.sign(scaled).astype(np.int64) * np.floor(np.abs(scaled) + 0.5).astype(np.int64) + zp, -128, 127
    )


def requantize(sums: Int64, ratios: NDArray[np.float64], zp: int) -> Int64:
    """Requantize a convolution's int32 sums to int8 by one ratio per channel, with gemmlowp's double rounding."""
    multipliers, exponents = np.array([multiplier(float(ratio)) for ratio in ratios], np.int64).T
    left, right = np.maximum(exponents, 0), np.maximum(-exponents, 0)
    high = ((sums << left) * multipliers + (1 << 30)) >> 31
    mask = (np.int64(1) << right) - 1
    up = (high & mask) > (mask >> 1) + (high < 0)
    return np.clip((high >> right) + up + zp, -128, 127)


def conv_sums(x: Int64, weights: NDArray[np.int8], window: WindowShape) -> Int64:
    """Return sums with axes (row, column, output channel); weights have axes (output channel, row, column, channel)."""
    wide = weights.astype(np.int64)
    return np.sum([pixels @ wide[:, ky, kx].T for ky, kx, pixels in window.taps(x)], axis=0)


def depthwise_sums(x: Int64, weights: NDArray[np.int8], window: WindowShape) -> Int64:
    """Return depthwise sums with axes (row, column, channel); weights have axes (row, column, channel)."""
    return np.sum([pixels * weights[ky, kx].astype(np.int64) for ky, kx, pixels in window.taps(x)], axis=0)


#: Zero points of the input and the output.
X_ZERO, Y_ZERO = 5, -3
_X_SCALE, _Y_SCALE = 0.05, 0.1
_SPREAD = 74.0  # of uniform int8 values
#: Target standard deviation of the outputs, so that most of the int8 range is used.
_WANTED = 40


def random_int8(rng: np.random.Generator, *shape: int) -> NDArray[np.int8]:
    """Return uniformly distributed int8 values."""
    return rng.integers(-128, 128, shape, dtype=np.int8)


class OneLayer:
    """Random constants of a layer, from which a graph with this layer is built.

    Parameters
    ----------
    rng : Generator
        Random number generator for weights, bias and scales.
    weights : tuple of int
        Shape of the weights.
    axis : int
        Axis of the weights that indexes output channels.
    terms : int
        Number of products per sum.
    """

    def __init__(self, rng: np.random.Generator, weights: tuple[int, ...], axis: int, terms: int):
        self.axis, channels = axis, weights[axis]
        self.weights = np.maximum(
            random_int8(rng, *weights), -127
        )  # int8 weights are symmetric in every format
        self.bias = rng.integers(-1000, 1000, channels).astype(np.int32)
        wanted = rng.uniform(0.5, 1.5, channels) * _WANTED / (_SPREAD**2 * np.sqrt(terms))
        self.scales = (wanted * _Y_SCALE / _X_SCALE).astype(np.float32)

    def ratios(self) -> NDArray[np.float64]:
        """Return the requantization ratio of each output channel."""
        return float(np.float32(_X_SCALE)) * self.scales.astype(np.float64) / float(np.float32(_Y_SCALE))

    def graph(self, op: str, x: tuple[int, ...], y: tuple[int, ...], **attributes: Any) -> Graph:
        """Return a graph with the layer as its only node, with input "x" and output "y"."""
        graph = Graph(op)
        graph.add_input(Tensor("x", x, "int8", Quantization.per_tensor(_X_SCALE, X_ZERO)))
        meaning = Quantization(tuple(self.scales.tolist()), (0,) * len(self.scales), self.axis)
        graph.add_tensor(Tensor("weights", self.weights.shape, "int8", meaning, self.weights))
        graph.add_tensor(Tensor("bias", self.bias.shape, "int32", None, self.bias))
        graph.add_tensor(Tensor("y", y, "int8", Quantization.per_tensor(_Y_SCALE, Y_ZERO)))
        graph.add_node(Node(op, op, ("x", "weights", "bias"), ("y",), attributes))
        return graph.finish(["y"])


#: Opset version of int16 in QuantizeLinear, the newest feature used.
_OPSET, _IR_VERSION = 21, 10
_TO_NCHW, _TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)


class _Draft:
    """Single-node model under construction."""

    def __init__(self, graph: Graph, node: Node):
        self.graph, self.node, self.attributes = graph, node, node.attributes
        self.nodes: list[onnx.NodeProto] = []
        self.held: list[onnx.TensorProto] = []
        self.count = 0

    def add(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        self.count += 1
        self.nodes.append(helper.make_node(op, list(inputs), [f"v{self.count}"], **attributes))
        return f"v{self.count}"

    def constant(self, value: NDArray) -> str:
        """Add a constant; return its name."""
        self.count += 1
        self.held.append(numpy_helper.from_array(np.ascontiguousarray(value), f"c{self.count}"))
        return f"c{self.count}"

    def _scaled(self, op: str, name: str, tensor: Tensor) -> str:
        """Add a QuantizeLinear or DequantizeLinear node with the quantization of `tensor`."""
        meaning = tensor.quantization
        if meaning is None:
            raise InputError(f"tensor {tensor.name!r} has no quantization")
        flat = meaning.axis is None
        scale, zero = np.array(meaning.scale, np.float32), np.array(meaning.zero_point, tensor.dtype)
        scalars = [self.constant(each[0] if flat else each) for each in (scale, zero)]
        return self.add(op, [name, *scalars], **({} if flat else {"axis": meaning.axis}))

    def real(self, index: int) -> str:
        """Return the name of an input of the node after dequantization to float."""
        tensor = self.graph.tensors[self.node.inputs[index]]
        name = tensor.name if tensor.data is None else self.constant(tensor.data)
        return name if tensor.dtype == "float32" else self._scaled("DequantizeLinear", name, tensor)

    def bias(self) -> list[str]:
        """Return the bias (the third input), if any, dequantized with the product of the other inputs' scales."""
        if len(self.node.inputs) < 3:
            return []
        x, w, b = (self.graph.tensors[name] for name in self.node.inputs)
        assert x.quantization and w.quantization and b.data is not None
        scale = np.array(x.quantization.scale, np.float32) * np.array(w.quantization.scale, np.float32)
        return [self.constant((b.data * scale.astype(np.float64)).astype(np.float32))]

    def transposed(self, name: str, perm: Sequence[int]) -> str:
        """Add a transposition."""
        return self.add("Transpose", [name], perm=list(perm))

    def finish(self, result: str) -> onnx.ModelProto:
        """Return the model, whose output has the name of the node's output."""
        out = self.graph.out(self.node)
        last = self._scaled("QuantizeLinear", result, out) if out.dtype != "float32" else result
        self.nodes.append(helper.make_node("Identity", [last], [out.name]))
        given = {t.name: t for t in self.graph.ins(self.node) if t.data is None}
        described = [
            helper.make_tensor_value_info(t.name, helper.np_dtype_to_tensor_dtype(np.dtype(t.dtype)), t.shape)
            for t in (*given.values(), out)
        ]
        graph = helper.make_graph(self.nodes, "node", described[:-1], described[-1:], self.held)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION
        )


def _conv(draft: _Draft) -> str:
    attributes = draft.attributes
    depthwise = draft.node.op == "depthwise_conv2d"
    weights = draft.transposed(draft.real(1), (2, 0, 1) if depthwise else (0, 3, 1, 2))
    if depthwise:
        weights = draft.add("Unsqueeze", [weights, draft.constant(np.array([1]))])
    x = draft.graph.ins(draft.node)[0]
    made = draft.add(
        "Conv",
        [draft.transposed(draft.real(0), _TO_NCHW), weights, *draft.bias()],
        strides=attributes["strides"],
        pads=attributes["pads"],
        dilations=attributes["dilations"],
        group=x.shape[3] if depthwise else attributes["groups"],
    )
    return draft.transposed(made, _TO_NHWC)


def _dense(draft: _Draft) -> str:
    product = draft.add("MatMul", [draft.real(0), draft.transposed(draft.real(1), (1, 0))])
    return draft.add("Add", [product, *draft.bias()]) if len(draft.node.inputs) == 3 else product


def _pool(draft: _Draft) -> str:
    attributes = draft.attributes
    window = {
        "kernel_shape": attributes["kernel"],
        "strides": attributes["strides"],
        "pads": attributes["pads"],
    }
    x = draft.transposed(draft.real(0), _TO_NCHW)
    if draft.node.op == "max_pool2d":
        return draft.transposed(draft.add("MaxPool", [x], **window), _TO_NHWC)
    made = draft.add("AveragePool", [x], **window, count_include_pad=int(attributes["count_pads"]))
    return draft.transposed(made, _TO_NHWC)


def _clip(draft: _Draft) -> str:
    limits = [draft.constant(np.array(draft.attributes[key], np.float32)) for key in ("low", "high")]
    return draft.add("Clip", [draft.real(0), *limits])


def _norm(draft: _Draft) -> str:
    attributes = draft.attributes
    operands = [draft.real(index) for index in range(len(draft.node.inputs))]
    if len(operands) == 1:
        size = draft.graph.ins(draft.node)[0].shape[attributes["axis"] :]
        operands.append(draft.constant(np.ones(size, np.float32)))
    return draft.add("LayerNormalization", operands, axis=attributes["axis"], epsilon=attributes["epsilon"])


def _softmax(draft: _Draft) -> str:
    scaled = draft.add("Mul", [draft.real(0), draft.constant(np.array(draft.attributes["beta"], np.float32))])
    return draft.add("Softmax", [scaled], axis=draft.attributes["axis"])


def _slice(draft: _Draft) -> str:
    starts, sizes, steps = (np.array(draft.attributes[key]) for key in ("starts", "sizes", "steps"))
    ends = starts + (sizes - 1) * steps + 1
    parts = [draft.constant(each) for each in (starts, ends, np.arange(len(starts)), steps)]
    return draft.add("Slice", [draft.real(0), *parts])


def _mean(draft: _Draft) -> str:
    axes = draft.constant(np.array(draft.attributes["axes"]))
    return draft.add("ReduceMean", [draft.real(0), axes], keepdims=int(draft.attributes["keep"]))


def _same(op: str) -> Callable[[_Draft], str]:
    """Return a writer for an operator that differs from ONNX operator `op` only in its name."""
    return lambda draft: draft.add(op, [draft.real(index) for index in range(len(draft.node.inputs))])


_WRITERS: dict[str, Callable[[_Draft], str]] = {
    "conv2d": _conv,
    "depthwise_conv2d": _conv,
    "dense": _dense,
    "max_pool2d": _pool,
    "avg_pool2d": _pool,
    "reduce_mean": _mean,
    "clip": _clip,
    "layer_norm": _norm,
    "softmax": _softmax,
    "slice": _slice,
    "gelu": lambda d: d.add("Gelu", [d.real(0)], approximate="tanh" if d.attributes["tanh"] else "none"),
    "concat": lambda d: d.add(
        "Concat", [d.real(index) for index in range(len(d.node.inputs))], axis=d.attributes["axis"]
    ),
    "transpose": lambda d: d.transposed(d.real(0), d.attributes["perm"]),
    "reshape": lambda d: d.add("Reshape", [d.real(0), d.constant(np.array(d.graph.out(d.node).shape))]),
} | {
    op: _same(name)
    for op, name in (
        ("add", "Add"),
        ("sub", "Sub"),
        ("mul", "Mul"),
        ("matmul", "MatMul"),
        ("sigmoid", "Sigmoid"),
        ("tanh", "Tanh"),
        ("exp", "Exp"),
        ("quantize", "Identity"),
        ("dequantize", "Identity"),
        ("requantize", "Identity"),
    )
}


def node_model(graph: Graph, node: Node) -> onnx.ModelProto:
    """Return an ONNX model of one node, with the input and output names of the graph.

    Raises
    ------
    InputError
        The operator has no ONNX equivalent, or it is not supported here.
    """
    write = _WRITERS.get(node.op)
    if write is None:
        raise InputError(f"node {node.name!r}: {node.op} is not among {', '.join(sorted(_WRITERS))}")
    draft = _Draft(graph, node)
    return draft.finish(write(draft))


GEMM_CASES = (
    "17x17x17",
    "64x64x64",
    "100x70x33",
    "128x128x128",
    "256x256x256",
    "512x512x512",
    "1000x1000x1000",
    "12544x256x64",
    "12544x64x256",
    "3136x512x128",
    "3136x128x512",
    "784x1024x256",
    "1x4096x4096",
    "1000x64x512",
)


def gemm_case(name: str) -> Case:
    """Return the case for a name of the form MxNxK.

    Raises
    ------
    InputError
        The name is malformed.
    """
    values = sizes(r"(\d+)x(\d+)x(\d+)", name)
    if values is None:
        raise InputError(f"a GEMM case must be MxNxK like 64x64x64, not {shown(name)}")
    m, n, k = values

    def prepare(rng: np.random.Generator) -> Work:
        layer, x = OneLayer(rng, (n, k), 0, k), random_int8(rng, m, k)
        sums = (x.astype(np.int64) - X_ZERO) @ layer.weights.astype(np.int64).T + layer.bias
        expected = requantize_dense(sums, layer.ratios(), Y_ZERO)
        return Work(layer.graph("dense", (m, k), (m, n)), {"x": x}, {"y": expected})

    return Case(name, REFERENCE, prepare)


CONV_CASES = (
    "14x14x64-64-3-1",
    "56x56x64-64-3-1",
    "28x28x128-128-3-2",
    "7x7x512-512-3-1",
    "56x56x64-256-1-1",
    "112x112x3-32-3-2",
    "7x7x512-512-3-1-dw",
    "56x56x128-128-3-1-dw",
    "112x112x64-64-3-2-dw",
    "8x1040x16-16-1-1",
    "64x1000x1-64-3-1",
    "720x1280x3-16-3-2",
)


def conv_case(name: str) -> Case:
    """Return the case for a name of the form HxWxC-O-k-s[-dw].

    Raises
    ------
    InputError
        The name is malformed, or a depthwise convolution changes the number of channels.
    """
    values = sizes(r"(\d+)x(\d+)x(\d+)-(\d+)-(\d+)-(\d+)(?:-dw)?", name)
    if values is None:
        raise InputError(f"a convolution case must be HxWxC-O-k-s or HxWxC-O-k-s-dw, not {shown(name)}")
    h, w, c, o, k, s = values
    if name.endswith("-dw") and c != o:
        raise InputError(f"a depthwise convolution must keep its channels, not turn {c} into {o}: {name!r}")
    window = WindowShape(h, w, k, s)
    prepare = _depthwise if name.endswith("-dw") else _normal
    return Case(name, REFERENCE, lambda rng: prepare(rng, window, c, o))


def _normal(rng: np.random.Generator, window: WindowShape, c: int, o: int) -> Work:
    k = window.kernel
    layer = OneLayer(rng, (o, k, k, c), 0, k * k * c)
    return _work(rng, window, "conv2d", layer, c, o, groups=1)


def _depthwise(rng: np.random.Generator, window: WindowShape, c: int, o: int) -> Work:
    k = window.kernel
    return _work(rng, window, "depthwise_conv2d", OneLayer(rng, (k, k, c), 2, k * k), c, o)


def _work(
    rng: np.random.Generator, window: WindowShape, op: str, layer: OneLayer, c: int, o: int, **more: int
) -> Work:
    x = random_int8(rng, window.h, window.w, c)
    sums = (conv_sums if op == "conv2d" else depthwise_sums)(
        x.astype(np.int64) - X_ZERO, layer.weights, window
    )
    expected = requantize(sums + layer.bias, layer.ratios(), Y_ZERO)
    graph = layer.graph(
        op,
        (1, *x.shape),
        (1, *expected.shape),
        strides=(window.stride,) * 2,
        pads=(window.pad,) * 4,
        dilations=(1, 1),
        **more,
    )
    return Work(graph, {"x": x[None]}, {"y": expected[None]})
