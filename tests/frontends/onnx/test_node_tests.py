"""None of the selected ONNX node tests (one of each operator, all of common operators) fails in the backend."""

from collections import Counter

import pytest

from scripts.onnx_nodes.case import Placement, run
from scripts.onnx_nodes.scope import in_scope
from scripts.onnx_nodes.suite import node_tests, operators, share

QUANTIZED = (
    "QLinearConv",
    "QLinearMatMul",
    "ConvInteger",
    "MatMulInteger",
    "QuantizeLinear",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
)
#: Operators that must run on the accelerator in every test with supported types and shapes.
ACCELERATED = (
    "Conv",
    "ConvTranspose",
    "Gemm",
    "MatMul",
    "Add",
    "Sub",
    "Mul",
    "Relu",
    "LeakyRelu",
    "Clip",
    "Sigmoid",
    "Tanh",
    "HardSwish",
    "Gelu",
    "Exp",
    "AveragePool",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "MaxPool",
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "Softmax",
    "Concat",
    "Split",
    "Slice",
    "Gather",
    "Resize",
    "QLinearConv",
    "QLinearMatMul",
    "Elu",
    "Erf",
    "Softplus",
    "Sqrt",
    "Abs",
    "Max",
    "Min",
    "Pad",
    "PRelu",
    "Expand",
    "Tile",
    "Sum",
    "Mean",
    "Neg",
    "DFT",
    "LRN",
    "LpNormalization",
    "MeanVarianceNormalization",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "RotaryEmbedding",
    "STFT",
)
#: Reasons for which such an operator may run on the host.
EXCEPT = {
    "resizing by linear",
    "resizing that keeps the ratio of the sides",
    "of its output must be at most",
    "its output 2 is no other operator's",
    "an inverse of half a spectrum",
    "is not quantized as a whole",  # sums and products of unquantized integers, which wrap around
}


@pytest.fixture(scope="module")
def results():
    tests = [test for test in node_tests() if "_expanded" not in test.name]
    names = operators(tests)
    some = {test.name for test in share(tests, QUANTIZED)}
    wanted = {test.name for test in tests if names[test.name] in ACCELERATED and in_scope(test)}
    chosen = [test for test in tests if test.name in some | wanted]
    return [(names[test.name], run(test), test.name in wanted) for test in chosen]


def test_no_node_test_fails(results) -> None:
    assert not [result for _, result, _ in results if result.where == Placement.FAILED]
    counts = Counter(result.where for _, result, _ in results)
    assert counts[Placement.SKIPPED] < len(results) / 5, counts


def test_rejected_operators(results) -> None:
    """Only data-dependent shapes, features that ONNX's reference implementation lacks, and doubles inside a model are
    rejected.
    """
    assert {name for name, result, _ in results if result.where == Placement.REFUSED} <= {
        "Unique",
        "Range",
        "Loop",
        "Scan",
        "Scatter",
        "TreeEnsemble",
    }


@pytest.mark.parametrize("op", ACCELERATED)
def test_operators_of_networks_run_on_the_accelerator(results, op: str) -> None:
    asked = [result for name, result, wanted in results if name == op and wanted]
    there = [result for result in asked if result.where in (Placement.ACCELERATOR, Placement.VIEW)]
    others = [each for each in asked if each not in there and not any(why in each.reason for why in EXCEPT)]
    assert there and not others


def test_every_test_not_on_the_accelerator_has_a_reason(results) -> None:
    elsewhere = (Placement.REFUSED, Placement.SKIPPED, Placement.HOST)
    assert all(result.reason for _, result, _ in results if result.where in elsewhere)
