"""Weights with scales for blocks, of MatMulNBits and DequantizeLinear, keep their integers on the accelerator."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from compiler.api import compile
from compiler.ir.graph import Graph, Node
from compiler.quantize import quantize
from compiler.quantize.rewrite import factor_blocks
from compiler.reference import evaluate
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import dram_bytes
from cosim.golden import GoldenDevice
from tests.support.graphs import run_on
from tests.support.onnx_models import check, node, read, reference

ROWS, INPUTS, OUTPUTS = 5, 128, 24
#: Least signal-to-noise ratio, in decibels, of results with activations of 8 bits.
LEAST_DB = 35.0


def numbers(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Return normally distributed numbers."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def model(
    nodes: list[onnx.NodeProto],
    constants: list[onnx.TensorProto],
    places: tuple[int, ...] = (),
    results: tuple[int, ...] = (),
) -> onnx.ModelProto:
    """Return a model from x, of shape (ROWS, INPUTS, *places), to y, of shape (ROWS, OUTPUTS, *results)."""
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (ROWS, *shape))
        for name, shape in (("x", (INPUTS, *places)), ("y", (OUTPUTS, *results)))
    ]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "test", ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def packed(values: NDArray, bits: int) -> NDArray[np.uint8]:
    """Return unsigned integers of a few bits as bytes, the first in the lowest bits, along the last dimension."""
    each = 8 // bits
    values = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, -values.shape[-1] % each)])
    parts = values.reshape(*values.shape[:-1], -1, each).astype(np.uint8)
    return np.bitwise_or.reduce(parts << (np.arange(each, dtype=np.uint8) * bits), -1)


def n_bits(
    bits: int, block: int, rng: np.random.Generator, *, zeros: bool = False, signed: bool = False
) -> tuple[onnx.ModelProto, NDArray, NDArray]:
    """Return a model with a MatMulNBits, and its weights minus zero points and scales, per output."""
    count, middle = INPUTS // block, 1 << (bits - 1)
    values = rng.integers(0, 1 << bits, (OUTPUTS, count, block))
    points = (
        rng.integers(middle - 3, middle + 4, (OUTPUTS, count)) if zeros else np.full((OUTPUTS, count), middle)
    )
    if bits == 8:
        values = np.clip(values, 8, 247)  # so that differences fit 8 bits
    scales = rng.uniform(0.01, 0.1, (OUTPUTS, count)).astype(np.float32)
    if signed:
        scales *= rng.choice((-1, 1), scales.shape).astype(np.float32)
    arrays = {"w": packed(values, bits), "s": scales.reshape(-1), "b": numbers(OUTPUTS, seed=1)}
    if zeros:
        arrays["z"] = packed(points, bits).reshape(-1)
    attributes = {"K": INPUTS, "N": OUTPUTS, "bits": bits, "block_size": block}
    operands = "x w s z" if zeros else "x w s"
    nodes = [
        node("MatMulNBits", operands, "m", domain="com.microsoft", **attributes),
        node("Add", "m b", "y"),
    ]
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    return model(nodes, constants), (values - points[:, :, None]).reshape(OUTPUTS, INPUTS), scales


def dequantized(
    kind: str, block: int, rng: np.random.Generator, *, transposed: bool = False
) -> tuple[onnx.ModelProto, NDArray, NDArray]:
    """Return a model with a MatMul, or a Gemm with `transposed` weights, whose weights a DequantizeLinear computes.

    Weights are per output and symmetric; those of an unsigned type have zero points.
    """
    bits = 4 if "4" in kind else 8
    values = rng.integers(-(1 << (bits - 1)), 1 << (bits - 1), (OUTPUTS, INPUTS))
    scales = rng.uniform(0.01, 0.1, (OUTPUTS, INPUTS // block)).astype(np.float32)
    offset, axis = (1 << (bits - 1) if kind.startswith("U") else 0), 1 if transposed else 0
    stored, given = (values, scales) if transposed else (values.T, scales.T)
    number = getattr(TensorProto, kind)
    constants = [
        helper.make_tensor("w", number, stored.shape, (stored + offset).reshape(-1).tolist()),
        numpy_helper.from_array(np.ascontiguousarray(given), "s"),
        helper.make_tensor("z", number, given.shape, [offset] * given.size),
        numpy_helper.from_array(numbers(OUTPUTS, seed=1), "b"),
    ]
    nodes = [node("DequantizeLinear", "w s z", "d", axis=axis, block_size=block)]
    if transposed:
        nodes.append(node("Gemm", "x d b", "y", transB=1))
    else:
        nodes += [node("MatMul", "x d", "m"), node("Add", "b m", "y")]
    return model(nodes, constants), values, scales


def convolution(
    kernel: tuple[int, ...], rng: np.random.Generator, *, stride: int = 1, groups: int = 1, pad: int = 0
) -> tuple[onnx.ModelProto, NDArray, NDArray]:
    """Return a model with a Conv of sides of 6, whose int4 weights have scales for blocks of 32 channels."""
    shape = (OUTPUTS, INPUTS // groups, *kernel)
    values = rng.integers(-8, 8, shape)
    scales = rng.uniform(0.01, 0.1, (OUTPUTS, shape[1] // 32, *kernel)).astype(np.float32)
    constants = [
        helper.make_tensor("w", TensorProto.INT4, shape, values.reshape(-1).tolist()),
        numpy_helper.from_array(scales, "s"),
        numpy_helper.from_array(numbers(OUTPUTS, seed=1), "b"),
    ]
    attributes = {"strides": [stride] * len(kernel), "group": groups, "pads": [pad] * 2 * len(kernel)}
    nodes = [
        node("DequantizeLinear", "w s", "d", axis=1, block_size=32),
        node("Conv", "x d b", "y", **attributes),
    ]
    results = tuple((6 + 2 * pad - size) // stride + 1 for size in kernel)
    return model(nodes, constants, (6,) * len(kernel), results), values, scales


def product_of(graph: Graph) -> Node:
    """Return the only product of a graph."""
    (found,) = (each for each in graph if each.op in ("conv2d", "dense", "block_dense"))
    return found


def check_kept(graph: Graph, values: NDArray, scales: NDArray) -> None:
    """Check that a quantized graph has the integers of the file, and scales that differ by the rounding of factors."""
    found = product_of(graph)
    assert found.op == "block_dense"
    _, weights, factors, *_ = graph.ins(found)
    assert weights.data is not None and weights.quantization is not None and factors.data is not None
    signs = np.repeat(np.sign(scales), values.shape[1] // scales.shape[1], 1).astype(int)
    assert np.array_equal(weights.data, values * signs)
    units = np.array(weights.quantization.scale)[:, None]
    assert factors.data.dtype == np.uint8 and factors.data.min() >= 1
    assert np.abs(factors.data * units - np.abs(scales)).max() <= 0.5001 * units.max()


def check_on(folder: Path, made: onnx.ModelProto, target: str, places: tuple[int, ...] = ()) -> Graph:
    """Compile a float model, compare the golden model with the quantized graph and onnxruntime; return that graph."""
    samples = {"x": numbers(8, ROWS, INPUTS, *places, seed=2)}
    graph = read(folder, made)
    network = compile(graph, target, calibration=samples)
    quantized, _ = quantize(graph, samples)
    inputs = {"x": samples["x"][0]}
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        found = run_on(device, network, inputs)["y"]
    assert np.array_equal(found, evaluate(quantized, inputs)["y"])
    exact = reference(made, inputs)["y"]
    assert 10 * np.log10(np.square(exact).sum() / np.square(found - exact).sum()) > LEAST_DB
    return quantized


@pytest.mark.parametrize("target", ["n4", "n8", "n16"])
@pytest.mark.parametrize("signed", [False, True], ids=["positive", "signed"])
@pytest.mark.parametrize("zeros", [False, True], ids=["symmetric", "zero points"])
@pytest.mark.parametrize(("bits", "block"), [(4, 16), (4, 32), (4, 128), (8, 32)])
def test_matmul_n_bits(
    bits: int, block: int, zeros: bool, signed: bool, target: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    made, values, scales = n_bits(bits, block, rng, zeros=zeros, signed=signed)
    check(tmp_path, made, {"x": numbers(ROWS, INPUTS)})
    check_kept(check_on(tmp_path, made, target), values, scales)


@pytest.mark.parametrize("transposed", [False, True], ids=["MatMul", "Gemm"])
@pytest.mark.parametrize(("kind", "block"), [("INT4", 32), ("UINT4", 16), ("INT8", 32), ("UINT8", 64)])
def test_dequantized_blocks(
    kind: str, block: int, transposed: bool, rng: np.random.Generator, tmp_path: Path
) -> None:
    made, values, scales = dequantized(kind, block, rng, transposed=transposed)
    check(tmp_path, made, {"x": numbers(ROWS, INPUTS)})
    check_kept(check_on(tmp_path, made, "n8"), values, scales)


@pytest.mark.parametrize("kernel", [(1,), (1, 1)], ids=["one dimension", "images"])
def test_pointwise_convolution(kernel: tuple[int, ...], rng: np.random.Generator, tmp_path: Path) -> None:
    places = (6,) * len(kernel)
    made, values, scales = convolution(kernel, rng)
    x = numbers(ROWS, INPUTS, *places)
    check(tmp_path, made, {"x": x})
    values, scales = values.reshape(OUTPUTS, INPUTS), scales.reshape(OUTPUTS, -1)
    graph = read(tmp_path, made)
    exact = np.einsum("oc,bc...->bo...", values * np.repeat(scales, 32, 1), x)
    exact += numbers(OUTPUTS, seed=1).reshape(-1, *kernel)
    np.testing.assert_allclose(evaluate(graph, {"x": x})["y"], exact, rtol=1e-4, atol=1e-4)
    check_kept(check_on(tmp_path, made, "n8", places), values, scales)


@pytest.mark.parametrize(
    ("kernel", "options"),
    [((1, 1), {"stride": 2}), ((1, 1), {"groups": 2}), ((1, 1), {"pad": 1}), ((3, 3), {})],
    ids=["stride", "groups", "pads", "3x3"],
)
def test_other_convolutions_have_float_weights(
    kernel: tuple[int, ...], options: dict[str, int], rng: np.random.Generator, tmp_path: Path
) -> None:
    made, _, _ = convolution(kernel, rng, **options)
    check(tmp_path, made, {"x": numbers(ROWS, INPUTS, 6, 6)})
    assert product_of(read(tmp_path, made)).op == "conv2d"


@pytest.mark.parametrize("packs", [False, True], ids=["DequantizeLinear", "MatMulNBits"])
def test_blocks_in_a_quantized_model(packs: bool, rng: np.random.Generator, tmp_path: Path) -> None:
    """The product runs on the accelerator with the quantization of the file."""
    made, values, scales = n_bits(4, 32, rng) if packs else dequantized("INT4", 32, rng)
    graph = made.graph
    ends = {"xs": np.float32(0.03), "xz": np.int8(3), "ys": np.float32(0.1), "yz": np.int8(-5)}
    graph.initializer.extend(numpy_helper.from_array(np.asarray(each), name) for name, each in ends.items())
    nodes = list(graph.node)
    nodes[-2].input[0], nodes[-1].output[0] = "xd", "r"
    del graph.node[:]
    graph.node.extend(
        [
            node("QuantizeLinear", "x xs xz", "xq"),
            node("DequantizeLinear", "xq xs xz", "xd"),
            *nodes,
            node("QuantizeLinear", "r ys yz", "yq"),
            node("DequantizeLinear", "yq ys yz", "y"),
        ]
    )
    read_graph = read(tmp_path, made)
    factored = factor_blocks(read_graph, 8)
    check_kept(factored, values, scales)
    network, inputs = compile(read_graph, "n8", rounding="onnxruntime"), {"x": numbers(ROWS, INPUTS)}
    assert all(each.op in ("quantize", "dequantize") for each in network.host)
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        found = run_on(device, network, inputs)["y"]
    assert np.array_equal(found, evaluate(factored, inputs, rounding="onnxruntime")["y"])
    steps = (found - reference(made, inputs)["y"]) / 0.1
    assert np.abs(steps).max() < 1.01  # rounding, also of factors


def test_other_weights_are_quantized_like_float_weights(rng: np.random.Generator, tmp_path: Path) -> None:
    """Blocks that are not multiples of the tile, targets without scaled sums, weights that do not fit 8 bits, int16."""
    samples = {"x": numbers(4, ROWS, INPUTS, seed=2)}
    made, _, _ = n_bits(4, 16, rng)
    graph = read(tmp_path, made)
    for lanes in (0, 32):
        assert product_of(quantize(graph, samples, lanes=lanes)[0]).op == "dense"
    assert product_of(quantize(graph, samples, int16=("all",))[0]).op == "dense"
    assert product_of(quantize(graph, samples, lanes=16)[0]).op == "block_dense"
    wide, _, _ = n_bits(8, 32, rng, zeros=True)
    for initializer in wide.graph.initializer:
        if initializer.name == "w":
            everything = np.resize(np.arange(256, dtype=np.uint8), initializer.dims)
            initializer.CopyFrom(numpy_helper.from_array(everything, "w"))
    assert product_of(read(tmp_path, wide)).op == "dense"
    check(tmp_path, wide, {"x": numbers(ROWS, INPUTS)})


@pytest.mark.parametrize("low", [-7, -8], ids=["fits", "exceeds int8"])
def test_factors_of_either_sign_after_the_product(low: int, rng: np.random.Generator, tmp_path: Path) -> None:
    """A constant row is folded into the scales; weights that become 128 are quantized like float weights."""
    made, values, scales = dequantized("INT8", 32, rng)
    values[:] = np.clip(values, 16 * low, 127)
    values[0, 0] = 16 * low
    row = np.where(np.arange(OUTPUTS) % 2 == 0, -1.5, 0.5).astype(np.float32)
    graph = made.graph
    graph.node[-1].CopyFrom(node("Mul", "m b", "y"))
    for initializer in graph.initializer:
        if initializer.name == "w":
            initializer.CopyFrom(
                helper.make_tensor("w", TensorProto.INT8, values.T.shape, values.T.reshape(-1).tolist())
            )
        elif initializer.name == "b":
            initializer.CopyFrom(numpy_helper.from_array(row, "b"))
    quantized = check_on(tmp_path, made, "n8")
    if low == -7:
        check_kept(quantized, values, scales * row[:, None])
    else:
        assert product_of(quantized).op == "dense"


@pytest.mark.parametrize("scale", [np.inf, np.nan])
def test_scales_that_are_not_finite_give_float_products(
    scale: float, rng: np.random.Generator, tmp_path: Path
) -> None:
    made, _, scales = n_bits(4, 32, rng)
    scales[3, 1] = scale
    for initializer in made.graph.initializer:
        if initializer.name == "s":
            initializer.CopyFrom(numpy_helper.from_array(scales.reshape(-1), "s"))
    graph = read(tmp_path, made)
    assert product_of(graph).op == "dense"


#: Scale of the activations of `quantized_product`.
STEP = 0.02


def quantized_product(
    values: NDArray, scales: NDArray, step: float, *, packs: bool = False, bias: NDArray | None = None
) -> onnx.ModelProto:
    """Return a model of a product of int8 activations and int4 weights with scales for blocks, quantized with `step`.

    The weights are those of a DequantizeLinear, or of a MatMulNBits with `packs`.
    """
    outputs, inputs = values.shape
    block = inputs // scales.shape[1]
    constants = [
        numpy_helper.from_array(np.asarray(each), name)
        for name, each in {
            "xs": np.float32(STEP),
            "ys": np.float32(step),
            "zero": np.int8(0),
            "s": scales.astype(np.float32).reshape(-1) if packs else scales.astype(np.float32),
        }.items()
    ]
    more = "" if bias is None else "b"
    if bias is not None:
        constants.append(numpy_helper.from_array(bias.astype(np.float32), "b"))
    if packs:
        constants.append(numpy_helper.from_array(packed(values.reshape(outputs, -1, block) + 8, 4), "w"))
        product = [
            node(
                "MatMulNBits",
                "d w s",
                "m",
                domain="com.microsoft",
                K=inputs,
                N=outputs,
                bits=4,
                block_size=block,
            )
        ]
    else:
        constants.append(helper.make_tensor("w", TensorProto.INT4, values.shape, values.reshape(-1).tolist()))
        product = [
            node("DequantizeLinear", "w s", "wd", axis=1, block_size=block),
            node("Gemm", f"d wd {more}", "m", transB=1),
        ]
    nodes = [
        node("QuantizeLinear", "x xs zero", "q"),
        node("DequantizeLinear", "q xs zero", "d"),
        *product,
        node("QuantizeLinear", "m ys zero", "yq"),
        node("DequantizeLinear", "yq ys zero", "y"),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (ROWS, size))
        for name, size in (("x", inputs), ("y", outputs))
    ]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(
        helper.make_graph(nodes, "test", ends[:1], ends[1:], constants), opset_imports=opsets, ir_version=10
    )


def computed(network: CompiledNetwork, x: NDArray) -> NDArray:
    """Return the results of the golden model."""
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        return run_on(device, network, {"x": x})["y"]


def reason_of(network: CompiledNetwork) -> str:
    """Return why a product runs on the host; empty if it does not."""
    return "".join(each.reason for each in network.host if each.op == "block_dense")


@pytest.mark.parametrize("target", ["n16", "ulx3s-85f"])
@pytest.mark.parametrize("packs", [False, True], ids=["DequantizeLinear", "MatMulNBits"])
@pytest.mark.parametrize("ratio", [1e-6, 0.001, 0.005, 0.0179])
def test_block_scales_that_differ_much(
    ratio: float, packs: bool, target: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    """The block with the large scale multiplies zeros, so that the results are those of the other block."""
    values = rng.integers(-8, 8, (16, 64))
    scales = np.tile(np.array([0.05, 0.05 * ratio], np.float32), (16, 1))
    x = (rng.integers(-128, 128, (ROWS, 64)) * STEP).astype(np.float32)
    x[:, :32] = 0
    exact = x.astype(np.float64) @ (values * np.repeat(scales.astype(np.float64), 32, 1)).T
    step = float(np.float32(np.abs(exact).max() / 120))
    network = compile(read(tmp_path, quantized_product(values, scales, step, packs=packs)), target)
    steps = np.abs(computed(network, x) - exact).max() / step
    print(f"ratio {ratio}: at most {steps:.3f} steps")
    assert steps < 0.51
    wanted = "differ too much for factors of 8 bits" if target == "n16" else "wide is 0"
    assert wanted in reason_of(network)


@pytest.mark.parametrize("packs", [False, True], ids=["DequantizeLinear", "MatMulNBits"])
@pytest.mark.parametrize("sigma", [0.0, 0.5, 1.0, 2.0])
def test_log_normal_block_scales(sigma: float, packs: bool, rng: np.random.Generator, tmp_path: Path) -> None:
    """Results of full-range activations are within about a step of the exact ones, up to sigma 1 on the accelerator."""
    values = rng.integers(-8, 8, (32, 256))
    scales = (np.exp(sigma * rng.standard_normal((32, 8))) * 0.05).astype(np.float32)
    x = (rng.integers(-128, 128, (ROWS, 256)) * STEP).astype(np.float32)
    exact = x.astype(np.float64) @ (values * np.repeat(scales.astype(np.float64), 32, 1)).T
    step = float(np.float32(np.abs(exact).max() / 120))
    network = compile(read(tmp_path, quantized_product(values, scales, step, packs=packs)), "n16")
    errors = np.abs(computed(network, x) - exact) / step
    mean = np.sqrt(np.square(errors).mean())
    print(f"sigma {sigma}: {mean:.3f} steps (root mean square), at most {errors.max():.3f}")
    assert mean < 0.58  # a factor error of 0.5, and the rounding of results
    assert errors.max() < 1.5
    assert sigma > 1 or not reason_of(network)


def test_blocks_of_a_target_without_factors_have_exact_scales(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    values = rng.integers(-8, 8, (16, 64))
    scales = rng.uniform(0.01, 0.1, (16, 2)).astype(np.float32)
    x = (rng.integers(-128, 128, (ROWS, 64)) * STEP).astype(np.float32)
    exact = x.astype(np.float64) @ (values * np.repeat(scales.astype(np.float64), 32, 1)).T
    step = float(np.float32(np.abs(exact).max() / 120))
    graph = read(tmp_path, quantized_product(values, scales, step))
    for target, most in (("ulx3s-85f", 0.501), ("n16", 1.0)):
        assert np.abs(computed(compile(graph, target), x) - exact).max() / step < most


def test_bias_of_weights_that_are_zero(rng: np.random.Generator, tmp_path: Path) -> None:
    """The scale of the products is larger where the bias would not fit 32 bits."""
    bias = rng.uniform(-2, 2, 16)
    made = quantized_product(np.zeros((16, 64), int), np.full((16, 2), 1e-9), 0.02, bias=bias)
    network = compile(read(tmp_path, made), "n16")
    found = computed(network, rng.normal(size=(ROWS, 64)).astype(np.float32))
    assert np.abs(found - bias).max() / 0.02 < 0.51
    assert not reason_of(network)


def test_float_model_with_block_scales_that_differ_much(rng: np.random.Generator, tmp_path: Path) -> None:
    """Calibration shows that the block with the large scale multiplies zeros."""
    made, values, scales = n_bits(4, 32, rng)
    scales[:, 0], scales[:, 1:] = 1.0, 0.001
    for initializer in made.graph.initializer:
        if initializer.name == "s":
            initializer.CopyFrom(numpy_helper.from_array(scales.reshape(-1), "s"))
        elif initializer.name == "b":
            initializer.CopyFrom(numpy_helper.from_array(np.zeros(OUTPUTS, np.float32), "b"))
    samples = {"x": numbers(8, ROWS, INPUTS, seed=2)}
    samples["x"][..., :32] = 0
    network = compile(read(tmp_path, made), "n16", calibration=samples)
    x = samples["x"][0]
    exact = x.astype(np.float64) @ (values * np.repeat(scales.astype(np.float64), 32, 1)).T
    noise = np.square(computed(network, x) - exact).sum()
    assert 10 * np.log10(np.square(exact).sum() / noise) > LEAST_DB
    assert "differ too much for factors of 8 bits" in reason_of(network)
