"""Tests of gathers from int8 tables with variable indices, as onnxruntime's quantizers write them for embeddings."""

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from compiler.api import compile
from tests.support.float_graphs import numbers
from tests.support.onnx_models import Arrays, model, node, read, reference

ROWS, WIDTH = 20, 8
INDICES = {"i": np.random.default_rng(0).integers(0, ROWS, (1, 5))}
TABLE = np.random.default_rng(1).integers(-128, 128, (ROWS, WIDTH)).astype(np.int8)
WEIGHTS = np.random.default_rng(2).integers(-127, 128, (WIDTH, 4)).astype(np.int8)
GATHER, READ = node("Gather", "t i", "e"), node("DequantizeLinear", "e s z", "d")
ONE = {"t": TABLE, "s": np.array(0.02, np.float32), "z": np.array(3, np.int8)}
COLUMNS = ONE | {"s": np.abs(numbers(WIDTH)) * 0.01 + 0.01, "z": np.arange(WIDTH, dtype=np.int8)}


def _float() -> onnx.ModelProto:
    nodes = [GATHER, node("MatMul", "e v", "y")]
    return model(nodes, INDICES, ["y"], {"t": numbers(ROWS, WIDTH), "v": numbers(WIDTH, 4)})


class _Samples(CalibrationDataReader):
    def __init__(self):
        rng = np.random.default_rng(3)
        self._left = iter([{"i": rng.integers(0, ROWS, (1, 5))} for _ in range(4)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


def _check(folder, made: onnx.ModelProto, least: float | None, **rest) -> set[str]:
    """Compare outputs with onnxruntime, exactly or with a minimum SQNR in dB; return the operators on the
    accelerator.
    """
    network = compile(read(folder, made), "n8", rounding="onnxruntime", **rest)
    (found,), (wanted,) = network(**INDICES).values(), reference(made, INDICES).values()
    assert found.dtype == wanted.dtype
    if least is None:
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    else:
        noise = np.square(found.astype(float) - wanted).sum()
        assert 10 * np.log10(np.square(wanted.astype(float)).sum() / noise) >= least
    return {op for info in network.infos for op in info.ops}


@pytest.mark.parametrize("weights", [QuantType.QInt8, QuantType.QUInt8])
def test_dynamically_quantized(tmp_path, weights):
    source, target = tmp_path / "float.onnx", tmp_path / "dynamic.onnx"
    onnx.save(_float(), source)
    quantize_dynamic(source, target, weight_type=weights)
    assert "dense" in _check(tmp_path, onnx.load(target), None)


@pytest.mark.parametrize("form", [QuantFormat.QOperator, QuantFormat.QDQ])
def test_statically_quantized(tmp_path, form):
    source, target = tmp_path / "float.onnx", tmp_path / "static.onnx"
    onnx.save(_float(), source)
    quantize_static(source, target, _Samples(), quant_format=form)
    assert "dense" in _check(tmp_path, onnx.load(target), None)


@pytest.mark.parametrize("opset", [10, 13, 19, 21])
def test_dequantized(tmp_path, opset):
    _check(tmp_path, model([GATHER, READ], INDICES, ["d"], ONE, opset), None)


@pytest.mark.parametrize("opset", [13, 19])
def test_dequantized_column_by_column(tmp_path, opset):
    last = node("DequantizeLinear", "e s z", "d", axis=2)
    _check(tmp_path, model([GATHER, last], INDICES, ["d"], COLUMNS, opset), None)


def test_dequantized_before_a_float_layer(tmp_path):
    """The quantized layer reads the int8 rows of the table without requantization."""
    given: Arrays = ONE | {"v": numbers(WIDTH, 4)}
    made = model([GATHER, READ, node("MatMul", "d v", "y")], INDICES, ["y"], given)
    assert _check(tmp_path, made, 38, calibration=[INDICES]) == {"dense"}


def test_dequantized_and_quantized_dynamically(tmp_path):
    nodes = [
        GATHER,
        READ,
        node("DynamicQuantizeLinear", "d", "q a b"),
        node("MatMulInteger", "q w b", "o"),
        node("Cast", "o", "f", to=onnx.TensorProto.FLOAT),
        node("Mul", "a k", "m"),
        node("Mul", "f m", "y"),
    ]
    made = model(nodes, INDICES, ["y"], ONE | {"w": WEIGHTS, "k": np.array(0.01, np.float32)})
    assert "dense" in _check(tmp_path, made, 35, calibration=[INDICES])


def test_rows_dequantized_with_two_scales(tmp_path):
    nodes = [GATHER, READ, node("DequantizeLinear", "e r z", "f"), node("Add", "d f", "y")]
    made = model(nodes, INDICES, ["y"], ONE | {"r": np.array(0.07, np.float32)})
    _check(tmp_path, made, 38, calibration=[INDICES])
