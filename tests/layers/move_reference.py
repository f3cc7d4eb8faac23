"""Expected results of graphs of operators that move elements, in numpy."""

import numpy as np

from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Tensor
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import Session, dram_bytes
from compiler.util.scaling import quantize_multiplier
from cosim.golden import GoldenDevice
from tests.numerics.reference import scale

Arrays = dict[str, np.ndarray]
#: Rounding mode of `scale` in LiteRT's reference kernels.
DOUBLE = 0


def check(
    network: CompiledNetwork, inputs: dict[str, np.ndarray], wanted: dict[str, np.ndarray], what: str
) -> None:
    """Compare the golden model's outputs with the expected outputs."""
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        for name, found in Session(device, network).run(inputs).items():
            assert np.array_equal(found, wanted[name]), f"{what}: {name} differs\n{network.graph}"


def evaluate(graph: Graph, inputs: Arrays) -> Arrays:
    """Return the values of all tensors."""
    values = {t.name: t.data for t in graph.tensors.values() if t.data is not None} | inputs
    for node in graph:
        values[graph.out(node).name] = _node(graph, node, [values[name] for name in node.inputs])
    return values


def _node(graph: Graph, node: Node, values: list[np.ndarray]) -> np.ndarray:
    x, a, y, tensors = values[0], node.attributes, graph.out(node), graph.ins(node)
    if node.op == "concat":
        return np.concatenate(
            [concatenation_operand(v, t, y) for v, t in zip(values, tensors, strict=True)], a["axis"]
        )
    if node.op == "conv2d":
        return _conv(x, values[1], tensors[0], tensors[1], y, a["pads"])
    if node.op == "max_pool2d":
        return _maximum(x)
    if node.op == "transpose":
        made = x.transpose(a["perm"])
    elif node.op == "reshape":
        made = x.reshape(a["shape"])
    elif node.op == "slice":
        parts = zip(a["starts"], a["sizes"], a["steps"], strict=True)
        made = x[np.ix_(*(start + step * np.arange(size) for start, size, step in parts))]
    elif node.op == "pad":
        q = tensors[0].quantization
        assert q is not None
        limits = np.iinfo(x.dtype)
        value = np.clip(np.round(a["value"] / q.scale[0]) + q.zero_point[0], limits.min, limits.max)
        made = np.pad(x, a["pads"], constant_values=int(value))
    elif node.op == "gather":
        made = np.take(x, values[1], a["axis"])
    elif node.op == "resize_nearest":
        half = 0.5 if a["centers"] else 0.0
        rows, columns = (
            np.floor((np.arange(size) + half) * total / size + 1e-9).astype(int)
            for size, total in zip(a["size"], x.shape[1:3], strict=True)
        )
        made = x[:, rows][:, :, columns]
    else:
        assert node.op == "requantize"
        made = x
    return requantized(made, tensors[0], y)


def concatenation_operand(values: np.ndarray, x: Tensor, y: Tensor) -> np.ndarray:
    """Return integers requantized as in LiteRT's concatenation."""
    a, b = x.quantization, y.quantization
    assert a is not None and b is not None
    if a == b and x.dtype == y.dtype:
        return values
    ratio, limits = np.float32(a.scale[0]) * (1 / np.float32(b.scale[0])), np.iinfo(y.dtype)
    real = values.astype(np.float32) * ratio + np.float32(-a.zero_point[0]) * ratio
    whole = np.trunc(real.astype(np.float64) + np.copysign(0.5, real)) + b.zero_point[0]
    return np.clip(whole, limits.min, limits.max).astype(y.dtype)


def requantized(values: np.ndarray, x: Tensor, y: Tensor) -> np.ndarray:
    """Return the integers requantized from the quantization of x to the quantization of y."""
    a, b = x.quantization, y.quantization
    assert a is not None and b is not None
    if a == b and x.dtype == y.dtype:
        return values
    pair = quantize_multiplier(a.scale[0] / b.scale[0])
    limits = np.iinfo(y.dtype)
    known = {
        int(v): scale(int(v) - a.zero_point[0], *pair, 0, DOUBLE) + b.zero_point[0] for v in np.unique(values)
    }
    flat = [min(max(known[int(v)], limits.min), limits.max) for v in values.reshape(-1)]
    return np.array(flat, y.dtype).reshape(values.shape)


def _maximum(x: np.ndarray) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=np.iinfo(x.dtype).min)
    h, w = x.shape[1:3]
    return np.max([padded[:, i : i + h, j : j + w] for i in range(3) for j in range(3)], axis=0)


def _conv(
    x: np.ndarray, weights: np.ndarray, a: Tensor, w: Tensor, y: Tensor, pads: tuple[int, ...]
) -> np.ndarray:
    """Return a convolution with strides of 1 and without a bias."""
    top, left, bottom, right = pads
    q, wq, yq = a.quantization, w.quantization, y.quantization
    assert q is not None and wq is not None and yq is not None
    centred = np.pad(x.astype(np.int64) - q.zero_point[0], ((0, 0), (top, bottom), (left, right), (0, 0)))
    h, width = y.shape[1:3]
    sums = sum(
        centred[:, i : i + h, j : j + width] @ weights[:, i, j].T.astype(np.int64)
        for i in range(weights.shape[1])
        for j in range(weights.shape[2])
    )
    pair = quantize_multiplier(q.scale[0] * wq.scale[0] / yq.scale[0])
    scaled = np.vectorize(lambda v: scale(int(v), *pair, 0, DOUBLE))(sums) + yq.zero_point[0]
    return np.clip(scaled, -128, 127).astype(np.int8)
