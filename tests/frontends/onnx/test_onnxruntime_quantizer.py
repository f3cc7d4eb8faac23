"""Models that onnxruntime's quantizer writes become graphs of nodes on integers."""

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from compiler.frontends.onnx import read_onnx
from tests.support.onnx_models import evaluated, model, node, ops, reference

IMAGE = (1, 3, 8, 8)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Return seeded float32 values, which are smaller in large arrays."""
    values = np.random.default_rng(seed).normal(size=shape) / np.sqrt(max(np.prod(shape[1:]), 1))
    return values.astype(np.float32)


class Samples(CalibrationDataReader):
    """Reader of calibration images."""

    def __init__(self):
        self.left: Iterator[dict] = iter([{"x": 14 * normal(*IMAGE, seed=s)} for s in range(10)])

    def get_next(self) -> dict:
        """Return the next sample, or an empty dictionary at the end."""
        return next(self.left, {})


def images() -> onnx.ModelProto:
    """Return a model with convolutions, a residual connection, pooling, a gate, concatenation and a dense layer."""
    held = {
        "w0": normal(8, 3, 3, 3),
        "b0": normal(8),
        "w1": normal(8, 1, 3, 3),
        "w2": normal(8, 8, 1, 1),
        "w3": normal(10, 256),
        "b3": normal(10),
        "sizes": np.array([0, -1]),
    }
    nodes = [
        node("Conv", "x w0 b0", "a", pads=[1, 1, 1, 1]),
        node("Relu", "a", "b"),
        node("Conv", "b w1", "c", pads=[1, 1, 1, 1], group=8),
        node("Conv", "c w2", "d"),
        node("Add", "d b", "e"),
        node("MaxPool", "e", "f", kernel_shape=[2, 2], strides=[2, 2]),
        node("Sigmoid", "f", "g"),
        node("Mul", "f g", "h"),
        node("AveragePool", "h", "i", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Concat", "i f", "j", axis=1),
        node("Reshape", "j sizes", "k"),
        node("Gemm", "k w3 b3", "l", transB=1),
        node("Softmax", "l", "y"),
    ]
    return model(nodes, {"x": normal(*IMAGE)}, ["y"], held)


def tokens() -> onnx.ModelProto:
    """Return a model of elementary operators with patches, layer normalization, GELU and attention with one head."""
    held = {
        "w": normal(16, 3, 4, 4),
        "sizes": np.array([0, 16, -1]),
        "two": np.float32(2),
        "eps": np.float32(1e-4),
        "gamma": normal(16),
        "beta": normal(16, seed=1),
        "wq": normal(16, 16),
        "wk": normal(16, 16, seed=2),
        "root": np.float32(np.sqrt(2)),
        "one": np.float32(1),
        "half": np.float32(0.5),
    }
    nodes = [
        node("Conv", "x w", "a", strides=[4, 4]),
        node("Reshape", "a sizes", "b"),
        node("Transpose", "b", "t", perm=[0, 2, 1]),
        node("ReduceMean", "t", "m", axes=[-1]),
        node("Sub", "t m", "d"),
        node("Pow", "d two", "s"),
        node("ReduceMean", "s", "v", axes=[-1]),
        node("Add", "v eps", "e"),
        node("Sqrt", "e", "r"),
        node("Div", "d r", "n"),
        node("Mul", "n gamma", "ng"),
        node("Add", "ng beta", "l"),
        node("MatMul", "l wq", "q"),
        node("MatMul", "l wk", "k"),
        node("Transpose", "k", "kt", perm=[0, 2, 1]),
        node("MatMul", "q kt", "p"),
        node("Softmax", "p", "z", axis=-1),
        node("MatMul", "z l", "o"),
        node("Div", "o root", "g1"),
        node("Erf", "g1", "g2"),
        node("Add", "g2 one", "g3"),
        node("Mul", "o g3", "g4"),
        node("Mul", "g4 half", "y"),
    ]
    return model(nodes, {"x": normal(*IMAGE)}, ["y"], held)


WANTED = {
    "images": {
        "conv2d": 2,
        "depthwise_conv2d": 1,
        "add": 1,
        "max_pool2d": 1,
        "sigmoid": 1,
        "mul": 1,
        "avg_pool2d": 1,
        "concat": 1,
        "dense": 1,
        "softmax": 1,
    },
    "tokens": {"conv2d": 1, "layer_norm": 1, "dense": 2, "matmul": 2, "softmax": 1, "gelu": 1},
}


@pytest.mark.parametrize("name", WANTED)
@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("activations", [QuantType.QInt8, QuantType.QUInt8])
def test_quantized_model_becomes_integer_nodes(
    tmp_path: Path, name: str, form: QuantFormat, channels: bool, activations: QuantType
) -> None:
    source, path = tmp_path / "float.onnx", tmp_path / "quantized.onnx"
    onnx.save({"images": images, "tokens": tokens}[name](), source)
    logging.disable(logging.WARNING)  # advice to merge the elementary operators
    try:
        quantize_static(
            str(source),
            str(path),
            Samples(),
            quant_format=form,
            per_channel=channels,
            activation_type=activations,
            weight_type=QuantType.QInt8,
        )
    finally:
        logging.disable(logging.NOTSET)
    graph = read_onnx(path)
    moving = ("transpose", "reshape", "quantize", "dequantize", "requantize")
    counts = ops(graph)
    assert {op: n for op, n in counts.items() if op not in moving} == WANTED[name]
    floats = [n.op for n in graph if graph.out(n).dtype == "float32"]
    assert (counts["quantize"], floats) == (1, ["dequantize"])
    inputs = {"x": 14 * normal(*IMAGE, seed=99)}
    exact, theirs = (reference(onnx.load(p), inputs)["y"] for p in (source, path))
    ours = evaluated(graph, inputs)["y"]
    if name == "images":
        assert np.abs(ours - theirs).max() < 2.5 / 255
    # The rounding within a quantized GELU or normalization is omitted, so compare with the float network.
    errors = [np.abs(y - exact).mean() for y in (theirs, ours)]
    assert errors[1] <= 1.2 * errors[0] + 0.002 * np.ptp(exact)
    assert errors[1] < 0.05 * np.ptp(exact)
