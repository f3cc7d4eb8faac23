"""Comparisons, selections, indices of extremes and further operators of quantized models equal onnxruntime's results.

All of them run on the accelerator.
"""

import numpy as np
import onnx
import pytest

import compiler
from compiler.frontends.onnx import read_onnx
from compiler.runtime.compiled import CompiledNetwork
from tests.support.onnx_models import Arrays, model, node, reference
from tests.support.onnx_qdq import integers


def _compiled(made: onnx.ModelProto, target: str = "n8", **options: object) -> CompiledNetwork:
    return compiler.compile(read_onnx(made), target, rounding="onnxruntime", **options)  # type: ignore[arg-type]


_COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")


def _equal(
    made: onnx.ModelProto, inputs: Arrays, target: str = "n8", device: str = "golden"
) -> CompiledNetwork:
    """Compare a device with onnxruntime, and check that the host only converts outputs of the model."""
    network = _compiled(made, target)
    assert all(each.edge for each in network.host), network.host
    with compiler.open_device(network, device) as machine:
        found = compiler.Session(machine, network).run(dict(inputs))
    for name, wanted in reference(made, inputs).items():
        assert found[name].dtype == wanted.dtype
        assert np.array_equal(found[name], wanted), f"{name} of {made.graph.node}"
    return network


def _part(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a random shape that broadcasts to `shape`."""
    part = tuple(1 if rng.random() < 0.3 else size for size in shape)
    return part[int(rng.integers(len(part))) :] if rng.random() < 0.2 else part


def _comparing(rng: np.random.Generator) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a random model that compares two tensors and a constant, and selects elements by the results."""
    dtype = str(rng.choice(["int8", "uint8"]))
    shape = tuple(int(size) for size in rng.integers(2, 7, int(rng.integers(1, 5))))
    a = integers(*shape, dtype=dtype, seed=int(rng.integers(1 << 30)))
    b = integers(*_part(rng, shape), dtype=dtype, seed=int(rng.integers(1 << 30)))
    scales = [np.float32(rng.uniform(0.01, 0.2)) for _ in range(2)]
    zeros = [np.array(rng.integers(0, 100), dtype) for _ in range(2)]
    if rng.random() < 0.5:  # the same quantization, and some equal elements
        scales[1], zeros[1] = scales[0], zeros[0]
        b = np.where(rng.random(b.shape) < 0.3, a.reshape(-1)[0], b).astype(dtype)
    held = {"a_s": scales[0], "a_z": zeros[0], "b_s": scales[1], "b_z": zeros[1]}
    held |= {"k": np.float32(rng.normal()), "m": np.float32(rng.normal())}
    held |= {"y_s": np.float32(0.13), "y_z": np.array(7, dtype)}
    output = str(rng.choice(["y_s y_z", "a_s a_z", "b_s b_z"]))
    nodes = [
        node("DequantizeLinear", "a a_s a_z", "ar"),
        node("DequantizeLinear", "b b_s b_z", "br"),
        node(str(rng.choice(_COMPARISONS)), str(rng.choice(["ar br", "br ar"])), "c"),
        node("Less", "ar k", "d"),
        node(str(rng.choice(["And", "Or", "Xor"])), "c d", "e"),
        node("Not", "e", "f"),
        node("Where", str(rng.choice(["f ar br", "c br ar", "d ar m", "f m br", "f k m"])), "w"),
        node("QuantizeLinear", f"w {output}", "y"),
    ]
    return model(nodes, {"a": a, "b": b}, ["f", "y"], held), {"a": a, "b": b}


@pytest.mark.parametrize("seed", range(24))
def test_comparisons_and_selections(seed: int) -> None:
    _equal(*_comparing(np.random.default_rng(seed)), target=("n4", "n8", "n16")[seed % 3])


def _ordering(rng: np.random.Generator, op: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a random model that finds the largest or smallest elements along an axis, many of which are equal."""
    dtype = str(rng.choice(["int8", "uint8"]))
    shape = [int(size) for size in rng.integers(1, 8, int(rng.integers(1, 5)))]
    axis = int(rng.integers(len(shape)))
    if rng.random() < 0.3:
        shape[axis] = int(rng.integers(100, 257))
    x = integers(*shape, dtype=dtype, seed=int(rng.integers(1 << 30)))
    if rng.random() < 0.6:
        x = np.where(rng.random(x.shape) < 0.5, x, rng.choice([x.min(), x.max()])).astype(dtype)
    held = {"s": np.float32(rng.uniform(0.01, 0.2)), "z": np.array(rng.integers(0, 100), dtype)}
    nodes = [node("DequantizeLinear", "x s z", "r")]
    if op != "TopK":
        how = {"keepdims": int(rng.integers(2)), "select_last_index": int(rng.integers(2))}
        nodes.append(node(op, "r", "i", axis=axis, **how))
        return model(nodes, {"x": x}, ["i"], held), {"x": x}
    held["k"] = np.array([rng.integers(1, min(shape[axis], 6) + 1)], np.int64)
    nodes.append(node("TopK", "r k", "v i", axis=axis, largest=int(rng.integers(2))))
    outputs = ["v", "i"]
    if rng.random() < 0.5:
        held["t"], outputs[0] = np.float32(0.07), "q"
        nodes.append(node("QuantizeLinear", "v t z", "q"))
    return model(nodes, {"x": x}, outputs, held), {"x": x}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin", "TopK"])
def test_indices_of_extremes(op: str, seed: int) -> None:
    _equal(*_ordering(np.random.default_rng(seed), op), target=("n4", "n8", "n16")[seed % 3])


def test_comparisons_and_indices_on_the_rtl() -> None:
    rng = np.random.default_rng(5)
    _equal(*_comparing(rng), target="n8", device="rtl")
    _equal(*_ordering(rng, "TopK"), target="n8", device="rtl")


def test_axis_with_more_positions_than_a_byte_stays_on_the_host() -> None:
    x = integers(2, 300)
    held = {"s": np.float32(0.1), "z": np.int8(0)}
    made = model(
        [node("DequantizeLinear", "x s z", "r"), node("ArgMax", "r", "i", axis=1)], {"x": x}, ["i"], held
    )
    network = _compiled(made, "n8")
    assert [each.op for each in network.host if not each.edge] == ["argmax"]


def test_comparisons_of_a_float_model_read_the_quantized_values() -> None:
    rng = np.random.default_rng(6)
    held = {"w": rng.normal(size=(8, 3, 3, 3)).astype(np.float32), "k": np.float32(0.3), "o": np.float32(0.0)}
    nodes = [
        node("Conv", "x w", "a", pads=[1, 1, 1, 1]),
        node("Greater", "a k", "m"),
        node("Where", "m a o", "b"),
        node("Cast", "m", "f", to=onnx.TensorProto.FLOAT),
        node("Add", "b f", "y"),
    ]
    x = rng.normal(size=(1, 3, 8, 8)).astype(np.float32)
    made = model(nodes, {"x": x}, ["y"], held)
    network = _compiled(made, "n8", calibration={"x": np.concatenate([x, x])})
    assert all(each.edge for each in network.host), network.host
    with compiler.open_device(network, "golden") as machine:
        found = compiler.Session(machine, network).run({"x": x})["y"]
    wanted = reference(made, {"x": x})["y"]
    noise = float(((found - wanted) ** 2).mean())
    assert 10 * np.log10(float((wanted**2).mean()) / noise) > 20  # a value near the threshold changes by it


def test_single_conditions_stay_on_the_host() -> None:
    held = {"s": np.float32(0.1), "z": np.int8(0), "k": np.float32(0.0)}
    x = integers(1, 1)
    made = model([node("DequantizeLinear", "x s z", "r"), node("Less", "r k", "c")], {"x": x}, ["c"], held)
    reasons = [each.reason for each in _compiled(made, "n8").host if not each.edge]
    assert reasons == ["the host computes single conditions"]


_QUANTIZED = {
    "matrices": ("Einsum", {"equation": "bij,bjk->bik"}, ((2, 3, 4), (2, 4, 5))),
    "outer product": ("Einsum", {"equation": "i,j->ij"}, ((6,), (7,))),
    "heads": ("Einsum", {"equation": "bhid,bhjd->bhij"}, ((2, 2, 3, 4), (2, 2, 5, 4))),
    "sum": ("Einsum", {"equation": "bij->bi"}, ((2, 3, 4),)),
    "transpose": ("Einsum", {"equation": "bij->bji"}, ((2, 3, 4),)),
    "computed kernel": ("Conv", {"pads": [1, 1, 1, 1]}, ((1, 2, 6, 6), (4, 2, 3, 3))),
    "magnitudes": ("ReduceL1", {"axes": [1]}, ((4, 9),)),
}


@pytest.mark.parametrize("name", _QUANTIZED)
def test_expanded_operators_of_quantized_models(name: str) -> None:
    op, attributes, shapes = _QUANTIZED[name]
    names = "ab"[: len(shapes)]
    inputs = {
        each: integers(*shape, seed=i) for i, (each, shape) in enumerate(zip(names, shapes, strict=True))
    }
    held = {"a_s": np.float32(0.03), "a_z": np.int8(5), "b_s": np.float32(0.021), "b_z": np.int8(0)}
    held |= {"y_s": np.float32(0.11), "y_z": np.int8(-9)}
    nodes = [node("DequantizeLinear", f"{each} {each}_s {each}_z", f"{each}r") for each in names]
    nodes.append(node(op, " ".join(f"{each}r" for each in names), "t", **attributes))
    nodes.append(node("QuantizeLinear", "t y_s y_z", "y"))
    _equal(model(nodes, inputs, ["y"], held), inputs)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_quantized_convolutions_in_three_dimensions(op: str) -> None:
    x = integers(1, 4 if op == "ConvTranspose" else 2, 5, 6, 6)
    held = {"x_s": np.float32(0.03), "x_z": np.int8(5), "w": integers(4, 2, 3, 3, 3, seed=1)}
    scales = np.array([0.01, 0.02, 0.015, 0.03] if op == "Conv" else 0.01, np.float32)
    held |= {"w_s": scales, "w_z": np.zeros(scales.shape, np.int8), "y_s": np.float32(0.5), "y_z": np.int8(3)}
    nodes = [
        node("DequantizeLinear", "x x_s x_z", "xr"),
        node("DequantizeLinear", "w w_s w_z", "wr", axis=0),
        node(op, "xr wr", "t", strides=[2, 1, 1]),
        node("QuantizeLinear", "t y_s y_z", "y"),
    ]
    _equal(model(nodes, {"x": x}, ["y"], held), {"x": x})
