"""Quantized ONNX models in all forms become nodes on integers with the same results as onnxruntime."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from compiler.quantize.plan import obstacle
from hw.errors import InputError
from scripts.networks.digits import MODEL, load_digits_split
from tests.support.onnx_models import check, evaluated, model, ops, read, reference
from tests.support.onnx_qdq import Qdq, all_integers, integers


@pytest.mark.parametrize("bias", ["none", "integers", "other", "real"])
@pytest.mark.parametrize("clip", ["", "Relu", "Clip"])
def test_quantized_convolution(tmp_path: Path, bias: str, clip: str) -> None:
    build, rng = Qdq(), np.random.default_rng(5)
    scales = rng.uniform(0.001, 0.004, 6).astype(np.float32)
    names = [build.real("x"), build.weights("w", integers(6, 4, 3, 3), scales)]
    if bias == "integers":
        names.append(
            build.weights("b", integers(6, dtype="int16").astype(np.int32), scales * np.float32(0.05))
        )
    elif bias == "other":  # the scale is not that of the products
        names.append(
            build.weights("b", integers(6, dtype="int16").astype(np.int32), scales * np.float32(0.1))
        )
    elif bias == "real":
        build.held["b"] = rng.normal(size=6).astype(np.float32)
        names.append("b")
    real = build.add("Conv", " ".join(names), "sum", pads=[1, 1, 1, 1], strides=[2, 1])
    if clip == "Relu":
        real = build.add("Relu", real, "cut")
    elif clip:
        build.held |= {"low": np.array(-1, np.float32), "high": np.array(6, np.float32)}
        real = build.add("Clip", f"{real} low high", "cut")
    build.quantized(real)
    graph = build.check(tmp_path, {"x": integers(2, 4, 6, 7)})
    assert ops(graph) == {"transpose": 2, "conv2d": 1} | ({"clip": 1} if clip else {})
    assert all_integers(graph)
    conv = next(n for n in graph if n.op == "conv2d")
    _, w, *b = graph.ins(conv)
    assert w.quantization is not None
    assert (w.dtype, w.quantization.axis, len(b)) == ("int8", 0, int(bias != "none"))
    assert not b or (b[0].dtype == "int32" and b[0].quantization is not None)


@pytest.mark.parametrize(
    ("op", "attributes", "shape", "wanted"),
    [
        (
            "MaxPool",
            {"kernel_shape": [2, 2]},
            (1, 3, 5, 5),
            {"transpose": 2, "max_pool2d": 1, "requantize": 1},
        ),
        ("AveragePool", {"kernel_shape": [2, 2]}, (1, 3, 5, 5), {"transpose": 2, "avg_pool2d": 1}),
        ("GlobalAveragePool", {}, (1, 3, 5, 5), {"reduce_mean": 1}),
        ("Sigmoid", {}, (4, 9), {"sigmoid": 1}),
        ("Tanh", {}, (4, 9), {"tanh": 1}),
        ("LeakyRelu", {"alpha": 0.1}, (4, 9), {"leaky_relu": 1}),
        ("HardSwish", {}, (4, 9), {"hard_swish": 1}),
        ("Softmax", {}, (4, 9), {"softmax": 1}),
        ("Relu", {}, (4, 9), {"clip": 1}),
        ("Transpose", {"perm": [1, 0]}, (4, 9), {"requantize": 1, "transpose": 1}),
        ("ReduceMean", {"axes": [1]}, (4, 9), {"reduce_mean": 1}),
    ],
)
def test_quantized_operator(tmp_path: Path, op: str, attributes: dict, shape: tuple, wanted: dict) -> None:
    build = Qdq()
    build.quantized(build.add(op, build.real("x"), "real", **attributes), 0.04)
    graph = build.check(tmp_path, {"x": integers(*shape)})
    assert ops(graph) == wanted
    assert all_integers(graph)


@pytest.mark.parametrize("op", ["Add", "Mul", "Sub", "MatMul", "Concat"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_quantized_operator_with_two_operands(tmp_path: Path, op: str, dtype: str) -> None:
    build = Qdq(dtype)
    operands = f"{build.real('a', 0.05, 3)} {build.real('b', 0.02, 9)}"
    attributes = {"axis": 1} if op == "Concat" else {}
    build.quantized(build.add(op, operands, "real", **attributes), 0.1, 5)
    inputs = {"a": integers(4, 4, dtype=dtype), "b": integers(4, 4, dtype=dtype, seed=1)}
    graph = build.check(tmp_path, inputs)
    assert ops(graph) == {op.lower(): 1}
    assert all_integers(graph)


@pytest.mark.parametrize("op", ["Conv", "MatMul"])
def test_float_weights_give_float_products(tmp_path: Path, op: str) -> None:
    build = Qdq()
    shape, inner = ((1, 2, 4, 4), (3, 2, 1, 1)) if op == "Conv" else ((3, 4), (4, 2))
    build.held["w"] = np.full(inner, 0.25, np.float32)
    build.quantized(build.add(op, f"{build.real('x')} w", "real"))
    graph = build.check(tmp_path, {"x": integers(*shape)})
    (product,) = (n for n in graph if n.op in ("conv2d", "dense"))
    assert {t.dtype for t in (*graph.ins(product), graph.out(product))} == {"float32"}


def test_split_into_different_scales(tmp_path: Path) -> None:
    """A Split remains in floating point if its outputs are quantized with different scales."""
    build = Qdq()
    build.add("Sigmoid", build.real("x"), "real")
    build.add("Split", "real", "a b", axis=1)
    build.quantized("a", 0.1)
    build.add("QuantizeLinear", f"b {build.scale('z', 0.001, -128)}", "z")
    inputs = {"x": integers(3, 8)}
    graph = check(tmp_path, model(build.nodes, inputs, ["y", "z"], build.held), inputs)
    assert ops(graph) == {"dequantize": 1, "sigmoid": 1, "slice": 2, "quantize": 2}


def test_float_constant_among_integers(tmp_path: Path) -> None:
    """A scalar float constant among quantized operands is quantized exactly."""
    build = Qdq()
    build.held["c"] = np.array(-0.37, np.float32)
    build.quantized(build.add("Mul", f"{build.real('x')} c", "real"), 0.02)
    graph = build.check(tmp_path, {"x": integers(4, 9)})
    (mul,) = graph
    (value,) = (t for t in graph.ins(mul) if t.data is not None)
    assert value.quantization is not None and value.data is not None
    assert value.quantization.dequantized(value.data) == np.float32(-0.37)


def test_matmul_and_add_become_dense(tmp_path: Path) -> None:
    """A MatMul and an Add whose intermediate product is not quantized become one dense layer."""
    build = Qdq()
    scales = np.linspace(0.001, 0.003, 5, dtype=np.float32)
    product = build.add(
        "MatMul", f"{build.real('x')} {build.weights('w', integers(8, 5), scales, 1)}", "product"
    )
    build.held["b"] = np.linspace(-1, 1, 5, dtype=np.float32)
    build.quantized(build.add("Add", f"{product} b", "real"))
    graph = build.check(tmp_path, {"x": integers(2, 3, 8)})
    assert ops(graph) == {"dense": 1}
    assert all_integers(graph)


def test_float_output_stays_float(tmp_path: Path) -> None:
    build = Qdq()
    build.add("Sigmoid", build.real("x"), "real")
    build.quantized("real")
    inputs = {"x": integers(4, 9)}
    made = model(build.nodes, inputs, ["y", "real"], build.held)
    graph = check(tmp_path, made, inputs)
    assert ops(graph) == {"dequantize": 1, "sigmoid": 1, "quantize": 1}


def test_weights_quantized_in_the_file(tmp_path: Path) -> None:
    """Float weights between QuantizeLinear and DequantizeLinear, followed by a transpose, become integer
    weights.
    """
    build = Qdq()
    build.held["w"] = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)
    build.add("QuantizeLinear", f"w {build.scale('w', 0.02, 0)}", "wq")
    build.add("DequantizeLinear", "wq w_s w_z", "wr")
    build.add("Transpose", "wr", "wt", perm=[1, 0])
    build.quantized(build.add("MatMul", f"{build.real('x')} wt", "real"))
    graph = build.check(tmp_path, {"x": integers(3, 8)})
    assert ops(graph) == {"dense": 1}


def test_four_bit_weights(tmp_path: Path) -> None:
    """4-bit weights are read as 8-bit weights; quantization to 4 bits is rejected."""
    build = Qdq()
    build.weights("w", integers(8, 5), np.array(0.02, np.float32))
    build.quantized(build.add("MatMul", f"{build.real('x')} w_r", "real"))
    inputs = {"x": integers(3, 8)}
    made = model(build.nodes, inputs, ["y"], build.held, opset=21)
    nibbles = integers(8, 5) // 16
    for tensor in made.graph.initializer:
        if tensor.name in ("w", "w_z"):
            values = nibbles if tensor.name == "w" else np.zeros((), np.int8)
            tensor.CopyFrom(
                helper.make_tensor(tensor.name, TensorProto.INT4, values.shape, values.reshape(-1))
            )
    graph = check(tmp_path, made, inputs)
    (dense,) = graph
    np.testing.assert_array_equal(graph.ins(dense)[1].data, nibbles.T)  # type: ignore[arg-type]
    turned = onnx.ModelProto.FromString(made.SerializeToString())
    (last,) = (n for n in turned.graph.node if n.op_type == "QuantizeLinear")
    last.input[2] = "w_z"
    with pytest.raises(
        InputError, match="quantized values must be int8, uint8, int16, not int8 made of fewer bits"
    ):
        read(tmp_path, turned)


def test_padding_of_integers(tmp_path: Path) -> None:
    """Padding with an integer in the file becomes padding with the float value that the integer represents."""
    build = Qdq()
    build.held |= {"p": np.array([0, 1, 2, 0]), "v": np.array(-20, np.int8)}
    build.add("Pad", "x p v", "padded")
    build.add("DequantizeLinear", f"padded {build.scale('x', 0.05, 3)}", "y")
    graph = build.check(tmp_path, {"x": integers(2, 4)})
    assert [n.op for n in graph] == ["pad", "dequantize"]
    assert graph.nodes["Pad:padded"].attributes["value"] == pytest.approx(0.05 * -23)


def test_integers_read_with_another_scale(tmp_path: Path) -> None:
    """Integers written with one scale and read with another scale are rescaled."""
    build = Qdq()
    build.add("QuantizeLinear", f"x {build.scale('a', 0.1, 3)}", "q")
    build.add("DequantizeLinear", f"q {build.scale('b', 0.3, -2)}", "r")
    build.add("Identity", "r", "y")
    x = np.linspace(-20, 20, 41, dtype=np.float32)
    graph = build.check(tmp_path, {"x": x + np.float32(0.01)})
    assert ops(graph) == {"quantize": 1, "dequantize": 1, "mul": 1, "add": 1}


def test_digits(tmp_path: Path) -> None:
    """The digits network becomes integer nodes; under 2% of scores differ from onnxruntime's, each by 1."""
    made = onnx.load(MODEL)
    graph = read(tmp_path, made)
    assert ops(graph) == {"reshape": 2, "conv2d": 3, "clip": 3, "max_pool2d": 2, "add": 1, "dense": 1}
    assert all_integers(graph)
    images = load_digits_split()[1].images[:60]
    got = np.concatenate([evaluated(graph, {"image": image[None]})["scores"] for image in images])
    apart = np.abs(got.astype(int) - reference(made, {"image": images})["scores"])
    assert (apart.max(), (apart > 0).mean() < 0.02) == (1, True)


def test_batch_size(tmp_path: Path) -> None:
    graph = read(tmp_path, onnx.load(MODEL), batch=4)
    assert [graph.tensors[name].shape for name in ("image", "scores")] == [(4, 1, 8, 8), (4, 10)]


def test_uint16(tmp_path: Path) -> None:
    """Values of uint16 are computed as int16, even without a zero point and as constants; moves may lie between."""
    build = Qdq("uint16")
    build.held |= {"scale": np.array(0.0002, np.float32), "perm": np.array([8, 2])}
    build.add("QuantizeLinear", f"x {build.scale('x', 0.0002, 30000)}", "x_q")
    build.add("Reshape", "x_q perm", "moved")
    build.add("DequantizeLinear", "moved x_s x_z", "x_r")
    build.weights("w", integers(2, 2, dtype="uint16"), 0.0001)
    build.add("MatMul", "x_r w_r", "product")
    build.add("QuantizeLinear", "product scale", "y_q", output_dtype=TensorProto.UINT16)
    build.add("DequantizeLinear", "y_q scale", "y")
    x = np.random.default_rng(4).normal(size=(4, 4)).astype(np.float32)
    graph = check(tmp_path, model(build.nodes, {"x": x}, ["y"], build.held, 21), {"x": x})
    kinds = {tensor.dtype for tensor in graph.tensors.values()}
    assert kinds == {"float32", "int16"} and obstacle(graph) is not None
    assert "onnx" not in ops(graph)


def test_uint16_output_is_computed_on_the_host(tmp_path: Path) -> None:
    """A model that quantizes on the host is not a float model either."""
    build = Qdq("uint16")
    build.add("Relu", "x", "positive")
    build.add("QuantizeLinear", f"positive {build.scale('y', 0.0002, 30000)}", "y")
    x = np.random.default_rng(4).normal(size=(4, 4)).astype(np.float32)
    graph = check(tmp_path, model(build.nodes, {"x": x}, ["y"], build.held, 21), {"x": x})
    assert "is quantized already: node 'QuantizeLinear:y' (QuantizeLinear)" in str(obstacle(graph))
