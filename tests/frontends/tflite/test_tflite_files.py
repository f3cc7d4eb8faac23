"""TFLite files become the graphs that they describe; damaged files give a message."""

import random
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from compiler.frontends.model import read_model
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization
from compiler.ir.tensor import Tensor as GraphTensor
from hw.errors import InputError
from tests.kernel_library.models import weighted
from tests.numerics.litert import Tensor, model
from tests.support.trained_networks import model as model_file

#: Number of nodes in the graphs of the four networks; fused activations are separate nodes.
NETWORKS = {
    "pretrainedResnet_quant": {
        "conv2d": 9,
        "clip": 7,
        "add": 3,
        "avg_pool2d": 1,
        "reshape": 1,
        "dense": 1,
        "softmax": 1,
    },
    "kws_ref_model": {
        "conv2d": 5,
        "depthwise_conv2d": 4,
        "clip": 9,
        "avg_pool2d": 1,
        "reshape": 1,
        "dense": 1,
        "softmax": 1,
    },
    "vww_96_int8": {
        "conv2d": 14,
        "depthwise_conv2d": 13,
        "clip": 27,
        "avg_pool2d": 1,
        "reshape": 1,
        "dense": 1,
        "softmax": 1,
    },
    "ad01_int8": {"dense": 10, "clip": 9},
}


def quantization_of(tensor: GraphTensor) -> Quantization:
    """Return the quantization of a quantized tensor."""
    assert tensor.quantization is not None
    return tensor.quantization


def read(tmp_path: Path, data: bytes) -> Graph:
    """Return the graph of a file with the given bytes."""
    path = tmp_path / "model.tflite"
    path.write_bytes(data)
    return read_model(path)


def conv_model(activation: int = 0) -> bytes:
    """Return a file with a 3x3 convolution of a 5x6x4 input to 3 channels, with stride 2 and SAME padding."""
    options = schema.Conv2DOptionsT()
    options.padding, options.strideH, options.strideW = schema.Padding.SAME, 2, 2
    options.fusedActivationFunction = activation
    rng = np.random.default_rng(1)
    return weighted(
        schema.BuiltinOperator.CONV_2D,
        (schema.BuiltinOptions.Conv2DOptions, options),
        Tensor((1, 5, 6, 4), 0.5, 3),
        rng.integers(-127, 128, (3, 3, 3, 4)),
        [0.1, 0.2, 0.3],
        rng.integers(-99, 99, 3),
        Tensor((1, 3, 3, 3), 0.25, -7),
        0,
    )


def test_convolution_attributes_and_tensors(tmp_path: Path) -> None:
    graph = read(tmp_path, conv_model())
    (node,) = graph
    assert node.op == "conv2d"
    assert node.attributes == {"strides": (2, 2), "pads": (1, 0, 1, 1), "dilations": (1, 1), "groups": 1}
    x, weights, bias = graph.ins(node)
    assert (x.shape, quantization_of(x).scale, quantization_of(x).zero_point) == ((1, 5, 6, 4), (0.5,), (3,))
    assert (weights.shape, weights.dtype, quantization_of(weights).axis) == ((3, 3, 3, 4), "int8", 0)
    np.testing.assert_array_equal(weights.data, np.random.default_rng(1).integers(-127, 128, (3, 3, 3, 4)))
    assert (bias.dtype, len(quantization_of(bias).scale)) == ("int32", 3)
    assert (graph.out(node).shape, graph.outputs) == ((1, 3, 3, 3), [graph.out(node).name])


def test_fused_activation_is_a_node(tmp_path: Path) -> None:
    conv, clip = read(tmp_path, conv_model(schema.ActivationFunctionType.RELU6))
    assert (conv.op, clip.op, clip.attributes) == ("conv2d", "clip", {"low": 0.0, "high": 6.0})
    assert clip.inputs == conv.outputs


@pytest.mark.parametrize(("multiplier", "op"), [(1, "depthwise_conv2d"), (2, "conv2d")])
def test_depthwise(tmp_path: Path, multiplier: int, op: str) -> None:
    options = schema.DepthwiseConv2DOptionsT()
    options.padding, options.strideH, options.strideW = schema.Padding.VALID, 1, 1
    options.depthMultiplier, channels = multiplier, 4 * multiplier
    weights = np.arange(9 * channels).reshape(1, 3, 3, channels) - 30
    data = weighted(
        schema.BuiltinOperator.DEPTHWISE_CONV_2D,
        (schema.BuiltinOptions.DepthwiseConv2DOptions, options),
        Tensor((1, 6, 6, 4), 0.5, 0),
        weights,
        [0.1] * channels,
        np.zeros(channels),
        Tensor((1, 4, 4, channels), 1.0, 0),
        3,
    )
    graph = read(tmp_path, data)
    (node,) = graph
    filters = graph.ins(node)[1]
    assert node.op == op
    if multiplier == 1:
        np.testing.assert_array_equal(filters.data, weights[0])
        assert quantization_of(filters).axis == 2
    else:
        assert (filters.shape, node.attributes["groups"], quantization_of(filters).axis) == (
            (8, 3, 3, 1),
            4,
            0,
        )
        assert filters.data is not None
        np.testing.assert_array_equal(filters.data[5, :, :, 0], weights[0, :, :, 5])


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str) -> None:
    path = model_file(name)
    graph = read_model(path)
    counts: dict[str, int] = {}
    for node in graph:
        counts[node.op] = counts.get(node.op, 0) + 1
    assert {
        op: n for op, n in counts.items() if op not in ("quantize", "requantize", "dequantize")
    } == NETWORKS[name]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"model\.tflite: not a TFLite file: bytes 4\.\.7 must be b'TFL3', not b''"),
        (b"\x08\0\0\0ONNX", "not b'ONNX'"),
        (
            model(schema.BuiltinOperator.TOPK_V2, None, [Tensor((4,), 1.0, 0)], Tensor((4,), 1.0, 0)),
            r"there is no conversion for node 'topk_v2_0' \(TOPK_V2\)",
        ),
        (
            model(schema.BuiltinOperator.RESHAPE, None, [Tensor((4,), 1.0, 0)], Tensor((5,), 1.0, 0)),
            r"operator 'reshape_0': \[4\] cannot become \[5\]",
        ),
        (
            model(schema.BuiltinOperator.SOFTMAX, None, [Tensor((4,), 1.0, 0)], Tensor((4,), 1.0, 0)),
            "operator 'softmax_0' lacks its options",
        ),
        (
            model(schema.BuiltinOperator.LOGISTIC, None, [Tensor((4,), -1.0, 0)], Tensor((4,), 1.0, 0)),
            "tensor 't0': a scale must be finite and positive, not -1.0",
        ),
    ],
)
def test_files_that_are_not_tflite_are_rejected(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, data)


def test_missing_files_and_unknown_suffixes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_model(tmp_path / "absent.tflite")
    with pytest.raises(InputError, match=r"a model must be a file ending in \.tflite"):
        read_model(tmp_path / "model.pb")


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_give_a_graph_or_a_message(tmp_path: Path, seed: int) -> None:
    """A truncated or changed file gives a graph or a message, never another error."""
    print("seed", seed)
    rng, whole = random.Random(seed), conv_model(1)
    refused = 0
    for _ in range(150):
        data = bytearray(whole)
        if rng.random() < 0.3:
            del data[rng.randrange(8, len(data)) :]
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(8, len(data)) if len(data) > 8 else 0] = rng.getrandbits(8)
        try:
            read(tmp_path, bytes(data))
        except InputError as error:
            assert "model.tflite: " in str(error)
            refused += 1
    assert refused > 30
