"""Float models whose weights alone are integers with scales: the integers and scales remain when they are quantized."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from compiler.api import compile, prune
from compiler.ir.graph import Graph, Node
from compiler.quantize import group_weights, quantize
from compiler.reference import evaluate
from compiler.runtime.session import dram_bytes
from cosim.golden import GoldenDevice
from tests.support.graphs import run_on
from tests.support.onnx_models import check, node, read, reference

#: Least signal-to-noise ratio, in decibels, of results with activations of 8 bits and exact weights.
LEAST_DB = 30.0
RANGES = {"INT4": (-8, 7), "UINT4": (0, 15), "INT8": (-128, 127), "UINT8": (0, 255)}
#: Shapes of x, of the weights in the file and of y, the axis of the weights' outputs, and attributes, by operator.
PRODUCTS = {
    "MatMul": ((5, 96), (96, 24), (5, 24), 1, {}),
    "Gemm": ((5, 96), (24, 96), (5, 24), 0, {"transB": 1}),
    "Conv": ((1, 12, 6, 6), (20, 12, 3, 3), (1, 20, 6, 6), 0, {"pads": [1, 1, 1, 1]}),
    "depthwise": ((1, 12, 6, 6), (12, 1, 3, 3), (1, 12, 4, 4), 0, {"group": 12}),
    "ConvTranspose": ((1, 12, 6, 6), (12, 9, 3, 3), (1, 9, 8, 8), 1, {}),
}


def model(
    product: str,
    kind: str,
    rng: np.random.Generator,
    *,
    whole: bool = False,
    zero: int = 0,
    axis: int | None = None,
    after: list[onnx.NodeProto] | None = None,
) -> tuple[onnx.ModelProto, NDArray, NDArray]:
    """Return a model of one product, its weights minus zero points, and their scales along the axis of the outputs.

    `zero` is the zero point, `axis` that of the scales (None: outputs), `after` are nodes from r to y.
    """
    x, shape, y, outputs, attributes = PRODUCTS[product]
    axis = outputs if axis is None else axis
    low, high = RANGES[kind]
    values = rng.integers(low, high + 1, shape)
    scales = rng.uniform(0.01, 0.1, () if whole else shape[axis]).astype(np.float32)
    number = getattr(TensorProto, kind)
    constants = [
        helper.make_tensor("w", number, shape, values.reshape(-1).tolist()),
        numpy_helper.from_array(scales, "s"),
        helper.make_tensor("z", number, scales.shape, [zero] * scales.size),
        numpy_helper.from_array(rng.normal(size=y[1]).astype(np.float32), "b"),
        numpy_helper.from_array(rng.uniform(0.5, 2, y[1]).astype(np.float32), "k"),
    ]
    operands = "x d" if product == "MatMul" else "x d b"
    op = "Conv" if product == "depthwise" else product
    nodes = [
        node("DequantizeLinear", "w s z", "d", axis=axis),
        node(op, operands, "r" if after else "y", **attributes),
        *(after or []),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in (("x", x), ("y", y))
    ]
    graph = helper.make_graph(nodes, "test", ends[:1], ends[1:], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return made, values - zero, scales


def samples_of(product: str, rng: np.random.Generator) -> dict[str, NDArray]:
    return {"x": rng.normal(size=(8, *PRODUCTS[product][0])).astype(np.float32)}


def product_of(graph: Graph) -> Node:
    """Return the only product of a graph."""
    names = ("conv2d", "depthwise_conv2d", "conv_transpose2d", "dense", "block_dense")
    (found,) = (each for each in graph if each.op in names)
    return found


def in_layout(product: str, values: NDArray) -> NDArray:
    """Return weights of the file in the layout of the graph's operator."""
    orders = {"MatMul": (1, 0), "Gemm": (0, 1), "Conv": (0, 2, 3, 1), "ConvTranspose": (1, 2, 3, 0)}
    return values[:, 0].transpose(1, 2, 0) if product == "depthwise" else values.transpose(orders[product])


def check_kept(graph: Graph, product: str, values: NDArray, scales: NDArray, tolerance: float = 0.0) -> None:
    """Check that a quantized graph has the integers and the scales of the file."""
    weights = graph.ins(product_of(graph))[1]
    assert weights.data is not None and weights.dtype == "int8" and weights.quantization is not None
    assert np.array_equal(weights.data, in_layout(product, values))
    assert not any(weights.quantization.zero_point)
    np.testing.assert_allclose(weights.quantization.scale, scales.reshape(-1), rtol=tolerance)


def ratio(exact: NDArray, found: NDArray) -> float:
    return float(10 * np.log10(np.square(exact).sum() / np.square(found - exact).sum()))


@pytest.mark.parametrize("whole", [False, True], ids=["per output", "per tensor"])
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize(
    ("kind", "zero"), [("INT4", 0), ("INT8", 0), ("UINT4", 8), ("UINT4", 3), ("UINT8", 128), ("INT4", 2)]
)
def test_integers_and_scales_remain(
    kind: str, zero: int, product: str, whole: bool, rng: np.random.Generator, tmp_path: Path
) -> None:
    made, values, scales = model(product, kind, rng, whole=whole, zero=zero)
    samples = samples_of(product, rng)
    inputs = {"x": samples["x"][0]}
    check(tmp_path, made, inputs)
    graph = read(tmp_path, made)
    quantized, _ = quantize(graph, samples)
    check_kept(quantized, product, values, scales)
    network = compile(graph, "n8", calibration=samples)
    assert network.graph is not None
    weights = network.graph.ins(product_of(network.graph))[1]
    assert weights.data is not None
    assert sorted(weights.data.reshape(-1)) == sorted(values.reshape(-1))
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        found = run_on(device, network, inputs)["y"]
    assert np.array_equal(found, evaluate(quantized, inputs, rounding="reference")["y"])
    assert ratio(reference(made, inputs)["y"], found) > LEAST_DB


def test_int4_weights_run_in_wide_mode(rng: np.random.Generator, tmp_path: Path) -> None:
    """Half of the multiply-accumulates need no time."""
    for kind in ("INT4", "INT8"):
        made, _, _ = model("MatMul", kind, rng)
        network = compile(read(tmp_path, made), "n8", calibration=samples_of("MatMul", rng))
        (floor,) = (each.floor for each in network.infos)
        assert floor.skipped == (floor.macs // 2 if kind == "INT4" else 0)


@pytest.mark.parametrize("product", ["MatMul", "Conv"])
@pytest.mark.parametrize("whole", [False, True], ids=["per output", "per tensor"])
@pytest.mark.parametrize("single", [False, True], ids=["factors", "one factor"])
def test_positive_factors_are_folded_into_the_scales(
    product: str, whole: bool, single: bool, rng: np.random.Generator, tmp_path: Path
) -> None:
    """Integers remain; with a factor that is not positive, weights are quantized like float weights."""
    for negative in (False, True):
        made, values, scales = model(product, "INT4", rng, whole=whole, after=[node("Mul", "r k", "y")])
        (place,) = (tensor for tensor in made.graph.initializer if tensor.name == "k")
        row = numpy_helper.to_array(place)[: 1 if single else None].copy()
        row[-1] *= -1 if negative else 1
        shaped = row.reshape(-1, 1, 1) if product == "Conv" else row
        place.CopyFrom(numpy_helper.from_array(shaped, "k"))
        samples = samples_of(product, rng)
        graph = check(tmp_path, made, {"x": samples["x"][0]})
        quantized, _ = quantize(graph, samples)
        if negative:
            weights = quantized.ins(product_of(quantized))[1]
            assert weights.data is not None and not np.array_equal(weights.data, in_layout(product, values))
        else:
            expected = scales * row[0] if single else scales * row
            check_kept(quantized, product, values, expected, 1e-6)
        found = evaluate(quantized, {"x": samples["x"][0]})["y"]
        assert ratio(reference(made, {"x": samples["x"][0]})["y"], found) > LEAST_DB


def test_a_summand_after_the_product_becomes_the_bias(rng: np.random.Generator, tmp_path: Path) -> None:
    made, values, scales = model("MatMul", "INT4", rng, after=[node("Add", "r b", "y")])
    quantized, _ = quantize(read(tmp_path, made), samples_of("MatMul", rng))
    check_kept(quantized, "MatMul", values, scales)


def test_other_weights_are_quantized_like_float_weights(rng: np.random.Generator, tmp_path: Path) -> None:
    """Scales per input, and integers that do not fit int8."""
    cases: list[tuple[str, str, dict[str, Any]]] = [
        ("MatMul", "INT4", {"axis": 0}),
        ("Conv", "INT8", {"axis": 1}),
        ("MatMul", "UINT8", {"zero": 100}),
    ]
    for product, kind, options in cases:
        made, values, _ = model(product, kind, rng, **options)
        samples = samples_of(product, rng)
        inputs = {"x": samples["x"][0]}
        graph = check(tmp_path, made, inputs)
        quantized, _ = quantize(graph, samples)
        weights = quantized.ins(product_of(quantized))[1]
        assert weights.data is not None and weights.dtype == "int8"
        assert not np.array_equal(weights.data, in_layout(product, values))
        found = evaluate(quantized, inputs)["y"]
        assert ratio(reference(made, inputs)["y"], found) > LEAST_DB


def test_channels_of_zeros_and_large_biases(rng: np.random.Generator, tmp_path: Path) -> None:
    """A channel of zeros may have any scale, such as 1 from onnxruntime, in which its bias would not be exact."""
    made, values, scales = model("Gemm", "INT4", rng)
    values[3], scales[3] = 0, 1
    bias = rng.normal(size=24).astype(np.float32)
    for name, each in (("s", scales), ("b", bias)):
        (place,) = (tensor for tensor in made.graph.initializer if tensor.name == name)
        place.CopyFrom(numpy_helper.from_array(each, name))
    (place,) = (tensor for tensor in made.graph.initializer if tensor.name == "w")
    place.CopyFrom(helper.make_tensor("w", TensorProto.INT4, values.shape, values.reshape(-1).tolist()))
    samples = samples_of("Gemm", rng)
    graph = check(tmp_path, made, {"x": samples["x"][0]})
    quantized, _ = quantize(graph, samples)
    _, weights, fixed = quantized.ins(product_of(quantized))
    assert weights.data is not None and fixed.data is not None
    assert np.array_equal(weights.data, values)
    assert fixed.quantization is not None
    assert abs(fixed.quantization.dequantized(fixed.data)[3] - bias[3]) < 1e-4
    # A bias that does not fit 32 bits in the scale of the products needs another scale, for which the weights change.
    (place,) = (tensor for tensor in made.graph.initializer if tensor.name == "b")
    place.CopyFrom(numpy_helper.from_array(bias * np.float32(1e8), "b"))
    quantized, _ = quantize(read(tmp_path, made), samples)
    weights = quantized.ins(product_of(quantized))[1]
    assert weights.data is not None and not np.array_equal(weights.data, values)


def test_int16_activations_keep_the_integers(rng: np.random.Generator, tmp_path: Path) -> None:
    made, values, scales = model("Conv", "INT4", rng)
    samples = samples_of("Conv", rng)
    quantized, _ = quantize(read(tmp_path, made), samples, int16=("all",))
    check_kept(quantized, "Conv", values, scales, 2.0**-14)
    inputs = {"x": samples["x"][0]}
    assert ratio(reference(made, inputs)["y"], evaluate(quantized, inputs)["y"]) > 60


def test_such_weights_can_be_pruned_and_grouped(rng: np.random.Generator, tmp_path: Path) -> None:
    made, _, _ = model("MatMul", "INT8", rng)
    graph = read(tmp_path, made)
    weights = [each.data for each in prune(graph, "2:4").tensors.values() if each.shape == (24, 96)]
    assert [np.count_nonzero(each) for each in weights if each is not None and each.dtype == "float32"]
    assert {each.op for each in group_weights(graph)} == {"block_dense"}


def test_products_that_stay_float_are_those_of_the_file(rng: np.random.Generator, tmp_path: Path) -> None:
    made, _, _ = model("Conv", "UINT4", rng, zero=5)
    samples = samples_of("Conv", rng)
    network = compile(read(tmp_path, made), "n8", calibration=samples, keep_float=["Conv"])
    inputs = {"x": samples["x"][0]}
    np.testing.assert_allclose(network(**inputs)["y"], reference(made, inputs)["y"], rtol=1e-5, atol=1e-5)
