"""A share of ONNX's node tests, through the backend: one of each operator, all of the quantized ones."""

from collections import Counter

import pytest

from scripts.onnx_nodes.case import Where, run
from scripts.onnx_nodes.suite import node_tests, operators, share

QUANTIZED = (
    "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "QuantizeLinear", "DequantizeLinear",
    "DynamicQuantizeLinear",
)  # fmt: skip
#: Operators that must run on the accelerator in every such test, but for what cannot be read.
ACCELERATED = (
    "Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sub", "Mul", "Relu", "LeakyRelu", "Clip", "Sigmoid",
    "Tanh", "HardSwish", "Gelu", "Exp", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "ReduceSum",
    "ReduceMean", "ReduceMax", "ReduceMin", "Softmax", "Concat", "Split", "Slice", "Gather", "Resize",
    "QLinearConv", "QLinearMatMul", "Elu", "Erf", "Softplus", "Sqrt", "Abs",
)  # fmt: skip


@pytest.fixture(scope="module")
def results():
    tests = node_tests()
    names = operators(tests)
    chosen = share([test for test in tests if "_expanded" not in test.name], (*QUANTIZED, "MaxPool"))
    return [(names[test.name], run(test)) for test in chosen]


def test_none_fails(results) -> None:
    assert not [result for _, result in results if result.where == Where.FAILED]
    counts = Counter(result.where for _, result in results)
    assert counts[Where.SKIPPED] < len(results) / 3, counts


@pytest.mark.parametrize("op", ACCELERATED)
def test_operators_of_networks_run_on_the_accelerator(results, op: str) -> None:
    found = [result for name, result in results if name == op]
    assert found and Where.ACCELERATOR in {result.where for result in found}, found


def test_every_skipped_test_has_a_reason(results) -> None:
    assert all(result.reason for _, result in results if result.where in (Where.SKIPPED, Where.HOST))
