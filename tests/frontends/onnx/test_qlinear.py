"""ONNX's QLinear* operators become nodes on integers; the *Integer operators become nodes on float values."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from hw.errors import InputError
from tests.support.onnx_models import check, model, node, ops, read
from tests.support.onnx_qdq import Held, all_integers, integers


def qlinear(
    op: str, inputs: Held, output: tuple[float, int], **attributes: object
) -> tuple[onnx.ModelProto, Held]:
    """Return a model of one QLinear operator, and its inputs; names that begin with c are constants."""
    held: Held = {}
    flowing = {name: array for name, array in inputs.items() if not name.startswith("c")}
    names: list[str] = []
    for i, (name, array) in enumerate(inputs.items()):
        held |= {name: array} if name not in flowing else {}
        held |= {f"{name}s": np.array(0.02 * (i + 1), np.float32), f"{name}z": np.array(3 * i, array.dtype)}
        names += [name, f"{name}s", f"{name}z"]
    first = next(iter(inputs.values()))
    held |= {"ys": np.array(output[0], np.float32), "yz": np.array(output[1], first.dtype)}
    ends = ["ys", "yz"]
    texts = [*ends, *names] if op == "QLinearConcat" else [*names, *ends]
    domain = "" if op in ("QLinearConv", "QLinearMatMul") else "com.microsoft"
    return model([node(op, " ".join(texts), "y", domain=domain, **attributes)], flowing, ["y"], held), flowing


IMAGE = (1, 4, 6, 6)


@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "wanted"),
    [
        ("QLinearConv", [IMAGE, (5, 4, 3, 3)], {"pads": [1, 1, 1, 1]}, {"transpose": 2, "conv2d": 1}),
        ("QLinearMatMul", [(3, 8), (8, 5)], {}, {"dense": 1}),
        ("QLinearAdd", [IMAGE, IMAGE], {}, {"add": 1}),
        ("QLinearMul", [IMAGE, (4, 1, 1)], {}, {"transpose": 2, "mul": 1}),
        ("QLinearAveragePool", [IMAGE], {"kernel_shape": [3, 3]}, {"transpose": 2, "avg_pool2d": 1}),
        ("QLinearGlobalAveragePool", [IMAGE], {}, {"reduce_mean": 1}),
        ("QLinearSigmoid", [(4, 9)], {}, {"sigmoid": 1}),
        ("QLinearLeakyRelu", [(4, 9)], {"alpha": 0.2}, {"leaky_relu": 1}),
        ("QLinearSoftmax", [(4, 9)], {"axis": -1, "opset": 13}, {"softmax": 1}),
        ("QLinearConcat", [(4, 9), (4, 2), (4, 3)], {"axis": 1}, {"concat": 1}),
    ],
)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_qlinear(tmp_path: Path, op: str, shapes: list, attributes: dict, wanted: dict, dtype: str) -> None:
    names = ["x", "c" if op in ("QLinearConv", "QLinearMatMul", "QLinearMul") else "a", "b"]
    inputs = {
        name: integers(*s, dtype=dtype, seed=i)
        for i, (name, s) in enumerate(zip(names, shapes, strict=False))
    }
    scale = {"QLinearConv": 3.0, "QLinearMatMul": 1.0, "QLinearSoftmax": 1 / 256}.get(op, 0.03)
    zero = np.iinfo(dtype).min if op == "QLinearSoftmax" else 4
    made, flowing = qlinear(op, inputs, (scale, zero), **attributes)
    graph = check(tmp_path, made, flowing)
    assert ops(graph) == wanted
    assert all_integers(graph)


@pytest.mark.parametrize("factor", [1.0, 0.5, 3.0, -0.5, 0.0])
@pytest.mark.parametrize("turned", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_gemm_with_alpha_and_bias(tmp_path: Path, factor: float, turned: tuple[int, int], dtype: str) -> None:
    """The operator's alpha also scales the bias, which has the scale of the products."""
    a, b = (shape[::-1] if turn else shape for shape, turn in zip(((4, 6), (6, 5)), turned, strict=True))
    inputs = {"x": integers(*a, dtype=dtype)}
    held = {
        "xs": np.float32(0.03),
        "xz": np.array(3, dtype),
        "w": integers(*b, seed=1),
        "wz": np.zeros(5, np.int8),
        "ws": np.linspace(0.01, 0.03, 5, dtype=np.float32),
        "ys": np.float32(0.2),
        "yz": np.array(7, dtype),
        "c": np.random.default_rng(2).integers(-9000, 9000, 5).astype(np.int32),
    }
    attributes = {"alpha": factor, "transA": turned[0], "transB": turned[1], "domain": "com.microsoft"}
    made = model([node("QGemm", "x xs xz w ws wz c ys yz", "y", **attributes)], inputs, ["y"], held)
    graph = check(tmp_path, made, inputs)
    assert all_integers(graph) == (factor > 0)


def test_channels_last_is_rejected_with_a_reason(tmp_path: Path) -> None:
    inputs = {"x": integers(*IMAGE)}
    made, _ = qlinear("QLinearGlobalAveragePool", inputs, (0.1, 3), channels_last=1)
    with pytest.raises(
        InputError, match=r"\(QLinearGlobalAveragePool: its attribute channels_last must be 0\)"
    ):
        read(tmp_path, made)


@pytest.mark.parametrize("op", ["MatMulInteger", "ConvInteger"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_integer_sums(tmp_path: Path, op: str, dtype: str) -> None:
    shapes = ((3, 8), (8, 5)) if op == "MatMulInteger" else (IMAGE, (5, 4, 3, 3))
    inputs = {"x": integers(*shapes[0], dtype="uint8")}
    held = {"w": integers(*shapes[1], dtype=dtype), "xz": np.array(7, np.uint8), "wz": np.array(3, dtype)}
    check(tmp_path, model([node(op, "x w xz wz", "y")], inputs, ["y"], held), inputs)


def test_dynamic_quantization_computes_in_float(tmp_path: Path) -> None:
    """The result differs from onnxruntime's because the dynamic quantization of the input is omitted."""
    nodes = [
        node("DynamicQuantizeLinear", "x", "q s z"),
        node("MatMulInteger", "q w z wz", "i"),
        node("Cast", "i", "f", to=1),
        node("Mul", "s ws", "scale"),
        node("Mul", "f scale", "y"),
    ]
    held = {"w": integers(8, 5), "wz": np.int8(0), "ws": np.float32(0.01)}
    inputs = {"x": np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)}
    graph = check(tmp_path, model(nodes, inputs, ["y"], held), inputs, tolerance=0.02)
    assert ops(graph) == {"dense": 1, "mul": 1}
