"""`scale` in the even mode equals XNNPACK for single operators and for the layers of whole networks."""

from collections.abc import Iterator
from pathlib import Path

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter

from compiler.frontends.model import read_model
from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Quantization
from compiler.util.scaling import float32_multiplier, float32_ratio
from cosim.semantics.fixed_point import half_even, scale
from hw.isa.enums import Rounding
from tests.kernel_library.models import weighted
from tests.numerics.litert import DEFAULT, Tensor, run
from tests.support.trained_networks import model as model_file

OPERATOR, OPTIONS = schema.BuiltinOperator, schema.BuiltinOptions
#: Number of random inputs per network.
INPUTS = 20
TRIALS = 24


def sums(op: str, x: np.ndarray, w: np.ndarray, strides=(1, 1), pads=(0, 0, 0, 0)) -> np.ndarray:
    """Return the sums of products of a dense, convolution or depthwise layer; weights have the compiler's layout."""
    x, w = x.astype(np.int64), w.astype(np.int64)
    if op == "dense":
        return x.reshape(-1, w.shape[1]) @ w.T
    x = np.pad(x, ((0, 0), (pads[0], pads[2]), (pads[1], pads[3]), (0, 0)))
    kernel = w.shape[1:3] if op == "conv2d" else w.shape[:2]
    height, width = ((x.shape[i + 1] - kernel[i]) // strides[i] + 1 for i in (0, 1))
    total = np.zeros(1, np.int64)
    for ky, kx in np.ndindex(*kernel):
        tap = x[:, ky : ky + (height - 1) * strides[0] + 1 : strides[0]]
        tap = tap[:, :, kx : kx + (width - 1) * strides[1] + 1 : strides[1]]
        total = total + (tap @ w[:, ky, kx].T if op == "conv2d" else tap * w[ky, kx])
    return total


def factors(x: float, weights: np.ndarray, y: float) -> tuple[np.ndarray, np.ndarray]:
    """Return multipliers and exponents of the channels."""
    pairs = [float32_multiplier(float32_ratio(x, float(w), y)) for w in weights]
    mult, exponent = np.array(pairs, np.int64).T
    return mult, exponent


def requantized(
    total: np.ndarray, x: float, weights: np.ndarray, y: Tensor, low: int = -128, high: int = 127
) -> np.ndarray:
    """Apply FUSE step 2 to sums, with the scales of x and of the weights, and the quantization of y."""
    mult, exponent = (np.broadcast_to(v, total.shape) for v in factors(x, weights, y.scale))
    return np.clip(scale(total, mult, exponent, 0, Rounding.EVEN) + y.zero, low, high)


def packed(kind: str, x: Tensor, w: np.ndarray, units: np.ndarray, bias: np.ndarray, y: Tensor) -> bytes:
    """Return a model of one operator; `units` are the scales of the weights."""
    operator, number, fields = {
        "dense": (OPERATOR.FULLY_CONNECTED, OPTIONS.FullyConnectedOptions, schema.FullyConnectedOptionsT()),
        "conv2d": (OPERATOR.CONV_2D, OPTIONS.Conv2DOptions, schema.Conv2DOptionsT()),
        "depthwise_conv2d": (
            OPERATOR.DEPTHWISE_CONV_2D,
            OPTIONS.DepthwiseConv2DOptions,
            schema.DepthwiseConv2DOptionsT(),
        ),
    }[kind]
    if kind != "dense":
        fields.padding, fields.strideH, fields.strideW = schema.Padding.VALID, 1, 1
        fields.dilationHFactor = fields.dilationWFactor = fields.depthMultiplier = 1
    depthwise = kind == "depthwise_conv2d"
    stored = w[None] if depthwise else w
    return weighted(operator, (number, fields), x, stored, units, bias, y, 3 if depthwise else 0)


def single(rng: np.random.Generator, kind: str, ties: bool) -> tuple[bytes, np.ndarray, np.ndarray, tuple]:
    """Return an operator, an input, its sums, and the arguments of `requantized`.

    With `ties`, all sums are multiples of an odd q, and the ratio of the scales is the float32 value next to
    1 / (q * 2**k). Products rounded to float32 are then ties, but exact products are not.
    """
    channels, depth, size = (int(v) for v in rng.integers(1, 24, 3))
    x_shape, w_shape, y_shape = {
        "dense": ((20 * size, depth), (channels, depth), (20 * size, channels)),
        "conv2d": ((1, size + 1, size + 2, depth), (channels, 2, 3, depth), (1, size, size, channels)),
        "depthwise_conv2d": ((1, size + 1, size + 2, channels), (2, 3, channels), (1, size, size, channels)),
    }[kind]
    q = int(rng.choice([3, 5, 7, 11, 13])) if ties else 1
    w = q * rng.integers(-(127 // q), 127 // q + 1, w_shape)
    data, bias = rng.integers(-128, 128, x_shape).astype(np.int8), q * rng.integers(-300, 300, channels)
    fit = 40 * np.sqrt(w.size / channels)  # spread of the sums relative to that of int8
    count = 1 if kind == "dense" else channels
    x = Tensor(x_shape, 0.25 if ties else rng.uniform(0.002, 0.2), int(rng.integers(-128, 128)))
    units = 2.0 ** rng.integers(-2, 2, count) if ties else rng.uniform(0.01, 0.05, count)
    grain = 0.25 * q * 2.0 ** round(np.log2(fit / q)) if ties else x.scale * 0.03 * fit
    y = Tensor(y_shape, grain, int(rng.integers(-128, 128)))
    total = sums(kind, data.astype(np.int64) - x.zero, w) + bias
    units = units.astype(np.float32)
    return packed(kind, x, w, units, bias, y), data, total, (x.scale, units, y)


@pytest.mark.parametrize("kind", ["conv2d", "depthwise_conv2d", "dense"])
def test_single_operators(kind: str) -> None:
    print("seed 5")
    rng = np.random.default_rng(5)
    count = once = 0
    for trial in range(TRIALS):
        content, data, total, (x, units, y) = single(rng, kind, trial % 2 == 0)
        want, got = run(content, DEFAULT, data), requantized(total, x, units, y)
        assert np.array_equal(want.reshape(got.shape), got), (trial, data.shape, x, units, y.scale)
        mult, exponent = (np.broadcast_to(v, total.shape) for v in factors(x, units, y.scale))
        exactly = np.clip(half_even(total * mult, 31 - exponent) + y.zero, -128, 127)
        count, once = count + got.size, once + int((exactly != got).sum())
    print(f"{count} values equal, {once} of them only by the rounding to 24 bits")
    assert once > 100


def all_outputs(path: Path) -> bytes:
    """Return the model with the result of every operator as an output."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(path.read_bytes(), 0))
    (graph,) = model.subgraphs
    graph.outputs = np.array(
        [output for operator in graph.operators for output in operator.outputs], np.int32
    )
    model.signatureDefs = []
    builder = flatbuffers.Builder(1 << 20)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def present(quantization: Quantization | None) -> Quantization:
    """Assert that a quantization is not None, and return it."""
    assert quantization is not None
    return quantization


def product_layers(graph: Graph) -> Iterator[tuple[Node, str, int]]:
    """Yield nodes that sum products, the name of the result after the activation, and the minimum value of the
    result.
    """
    for node in graph:
        if node.op in ("conv2d", "depthwise_conv2d", "dense"):
            out, (*after,) = graph.out(node), graph.consumers(node.outputs[0])
            clipped = len(after) == 1 and after[0].op == "clip"
            out = graph.out(after[0]) if clipped else out
            # ReLU is the only activation of these networks, and it clips at the zero point.
            yield node, out.name, present(out.quantization).zero_point[0] if clipped else -128


@pytest.mark.parametrize("name", ["ad01_int8", "kws_ref_model", "pretrainedResnet_quant", "vww_96_int8"])
def test_network_layers(name: str) -> None:
    path = model_file(name)
    graph = read_model(path)
    interpreter = Interpreter(model_content=all_outputs(path), num_threads=1)
    interpreter.allocate_tensors()
    (source,) = interpreter.get_input_details()
    print("seed 6")
    rng = np.random.default_rng(6)
    layers, count = list(product_layers(graph)), 0
    assert layers
    for _ in range(INPUTS):
        x = rng.integers(-128, 128, source["shape"]).astype(np.int8)
        interpreter.set_tensor(source["index"], x)
        interpreter.invoke()
        values = {d["name"]: interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()}
        values[graph.inputs[0]] = x
        for node, result, low in layers:
            x_tensor, weights, bias = graph.ins(node)
            assert weights.data is not None and bias.data is not None
            x_meaning, y_meaning = present(x_tensor.quantization), present(graph.tensors[result].quantization)
            window = {key: node.attributes[key] for key in ("strides", "pads") if node.op != "dense"}
            data = values[x_tensor.name].astype(np.int64) - x_meaning.zero_point[0]
            total = sums(node.op, data, weights.data, **window) + bias.data.astype(np.int64)
            units = np.array(present(weights.quantization).scale)
            out = Tensor((), y_meaning.scale[0], y_meaning.zero_point[0])
            got = requantized(total, x_meaning.scale[0], units, out, low)
            assert np.array_equal(got, values[result].reshape(got.shape)), node.name
            count += got.size
    print(f"{count} values equal")
