"""Tests of float models with integer inputs or weights: indices, masks, uint8 images, int8 weights."""

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.tensor import Quantization
from compiler.quantize import quantize
from compiler.runtime.compiled import CompiledNetwork
from hw.errors import InputError
from tests.support.float_graphs import numbers
from tests.support.one_operator import options
from tests.support.onnx_models import Arrays, model, node, read, reference
from tests.support.tflite_graphs import FileGraph, Operator, packed
from tests.support.tflite_models import Draft, litert

FLOAT = 1


def _check_sqnr(network: CompiledNetwork, wanted: np.ndarray, given: Arrays, least: float) -> None:
    """Check that the SQNR compared with the float model is at least the given value in dB."""
    (found,) = network(*given.values()).values()
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    noise = np.square(found.astype(float) - wanted).sum()
    assert 10 * np.log10(np.square(wanted.astype(float)).sum() / noise) >= least


def _on_device(network: CompiledNetwork) -> set[str]:
    return {op for info in network.infos for op in info.ops}


def test_cast_mask_does_not_prevent_quantization(tmp_path):
    nodes = [
        node("Gather", "table ids", "e"),
        node("MatMul", "e w", "h"),
        node("Cast", "mask", "m", to=FLOAT),
        node("Unsqueeze", "m last", "u"),
        node("Mul", "h u", "g"),
        node("Relu", "g", "y"),
    ]
    rng = np.random.default_rng(0)
    given = {"ids": rng.integers(0, 20, (1, 5)), "mask": np.array([[1, 1, 0, 1, 0]])}
    constants = {"table": numbers(20, 8), "w": numbers(8, 12), "last": np.array([2])}
    made = model(nodes, given, ["y"], constants)
    network = compile(read(tmp_path, made), "n8", calibration=[given])
    assert {"dense", "mul", "clip"} <= _on_device(network)
    assert {each.op for each in network.host if not each.edge} <= {"gather", "dequantize", "reshape"}
    _check_sqnr(network, reference(made, given)["y"], given, 30)


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_uint8_image_is_used_without_conversion(tmp_path, dtype, moved):
    """A uint8 or int8 image is used without conversions to float32 and back, even if its layout changes first."""
    nodes = [
        node("Transpose", "x", "t", perm=[0, 3, 1, 2]) if moved else node("Identity", "x", "t"),
        node("Cast", "t", "f", to=FLOAT),
        node("Div", "f k", "d"),
        node("Conv", "d w", "c", pads=[1] * 4),
        node("Relu", "c", "y"),
    ]
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(1)
    shape = (1, 8, 8, 3) if moved else (1, 3, 8, 8)
    given = {"x": rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)}
    made = model(nodes, given, ["y"], {"k": np.array(255, np.float32), "w": numbers(8, 3, 3, 3, scale=0.3)})
    network = compile(read(tmp_path, made), "n8", calibration=[given])
    assert [each.op for each in network.host if not each.edge] == []
    report = network.quantization
    assert report is not None
    image = next(each for each in report.tensors if each.scale == 1)
    assert (image.zero_point, image.sqnr_db) == (-128 if dtype == "uint8" else 0, None)
    _check_sqnr(network, reference(made, given)["y"], given, 35)


def test_integer_arithmetic_is_unchanged(tmp_path):
    nodes = [
        node("Add", "i one", "j"),
        node("Cast", "j", "f", to=FLOAT),
        node("Mul", "x f", "g"),
        node("MatMul", "g w", "y"),
        node("Mul", "j j", "z"),
    ]
    given = {"i": np.array([[5, 2, 7, 1]]), "x": numbers(1, 4)}
    made = model(nodes, given, ["y", "z"], {"one": np.array(1), "w": numbers(4, 6)})
    network = compile(read(tmp_path, made), "n8", calibration=[given])
    found, wanted = network(**given), reference(made, given)
    assert "dense" in _on_device(network)
    np.testing.assert_array_equal(found["z"], wanted["z"])
    assert np.abs(found["y"] - wanted["y"]).max() < 0.05 * np.ptp(wanted["y"])


@pytest.mark.parametrize("channels", [False, True])
def test_dynamic_range_weights_of_tflite_are_quantized_with_the_rest(tmp_path, channels):
    rng = np.random.default_rng(2)
    weights = rng.integers(-127, 128, (5, 8)).astype(np.int8)
    weights[:, 0] = 127  # every channel contains its maximum, so the same integers result
    scales = tuple(float(np.float32(s)) for s in (0.01, 0.02, 0.03, 0.004, 0.001))
    meaning = Quantization(scales, (0,) * 5, 0) if channels else (scales[0], 0)
    dense = Operator("FULLY_CONNECTED", ["x", "w", "b"], ["h"], options("FullyConnected"), 3)
    tensors = {
        "x": ((1, 8), "float32"),
        "w": weights,
        "b": numbers(5),
        "h": ((1, 5), "float32"),
        "y": ((1, 5), "float32"),
    }
    graph = FileGraph(tensors, [dense, Operator("LOGISTIC", ["h"], ["y"])], ["x"], ["y"], {"w": meaning})
    path, x = tmp_path / "hybrid.tflite", numbers(1, 8, scale=0.3)
    path.write_bytes(packed([graph]))
    network = compile(path, "n8", calibration=[{"x": x}], cache=False)
    assert {"dense", "sigmoid"} <= _on_device(network)
    assert network.graph is not None
    held = [t.data for t in network.graph.tensors.values() if t.data is not None and t.shape == (5, 8)]
    np.testing.assert_array_equal(held[0], weights)
    (wanted,) = litert(path.read_bytes(), [x], "reference")
    _check_sqnr(network, wanted, {"x": x}, 30)


def test_reason_why_a_model_is_not_float(tmp_path):
    one = {"s": np.array(0.1, np.float32), "z": np.array(3, np.int8), "k": numbers(1, 4)}
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "d"),
        node("Mul", "d k", "y"),
    ]
    given = {"x": numbers(1, 4)}
    graph = read(tmp_path, model(nodes, given, ["y"], one))
    text = r"is quantized already: node '.*quantize' \(quantize\) computes on int8 numbers"
    with pytest.raises(InputError, match=text):
        quantize(graph, [given])
    (why,) = (each.reason for each in compile(graph, "n8").host if each.op == "mul")
    assert "not quantized, as the model is already (node 'x:quantize')" in why


@pytest.mark.parametrize("nodes", [[], [node("Mul", "x x", "y")]])
def test_models_without_float_operators_are_rejected(tmp_path, nodes):
    given = {"x": np.array([1, 2])}
    graph = read(tmp_path, model(nodes, given, ["y" if nodes else "x"]))
    with pytest.raises(InputError, match="has nothing to quantize: no node computes on float32 numbers"):
        compile(graph, calibration=[given])


def test_constant_output_that_is_dequantized(tmp_path):
    """A TFLite model whose output is the dequantized contents of a constant is quantized like any other float model."""
    draft = Draft(np.random.default_rng(0), "int8")
    x = draft.input((4, 8), dtype="float32")
    table = draft.op("DEQUANTIZE", [draft.constant((4, 8))], (4, 8), dtype="float32")
    added = options("Add", fusedActivationFunction=0, potScaleInt16=False)
    draft.op("ADD", [table, x], (4, 8), added, dtype="float32")
    path, given = tmp_path / "table.tflite", draft.values(x)
    path.write_bytes(draft.file())
    network = compile(path, "n8", calibration=[given])
    found = network(given)
    for name, wanted in zip(draft.outputs, litert(draft.file(), [given], "reference"), strict=True):
        assert np.abs(found[name] - wanted).max() <= np.ptp(wanted) / 64
