"""Tests of the constants, ranges and structure of float graphs quantized after training."""

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization
from compiler.lowering.partition import BOUNDARY_REASON
from compiler.quantize import QuantizationReport, quantize
from compiler.quantize.ranges import KEPT, RangeRecorder, affine_of, choose, stored
from compiler.quantize.rewrite import quantized_operand, quantized_weights
from compiler.reference import evaluate
from tests.support.float_graphs import CONV, IMAGE, SMALL, graph_of, numbers, samples
from tests.support.onnx_models import model, node, ops, read


def quantization(graph: Graph, name: str) -> Quantization:
    q = graph.tensors[name].quantization
    assert q is not None
    return q


def reported(report: QuantizationReport) -> dict[str, str]:
    return {each.name: each.method for each in report.tensors}


# ---- constants and ranges


def test_weights_are_symmetric_with_maximum_127_in_every_channel():
    w = numbers(4, 3, 3, 2) * np.array([1, 10, 0.1, 0]).astype(np.float32)[:, None, None, None]
    made, bias = quantized_weights(w, 0, per_channel=True, bias=numbers(4), x_scale=0.5)
    assert bias is not None and (made.data.dtype, bias.data.dtype) == (np.int8, np.int32)
    assert np.abs(made.data.astype(int)).max((1, 2, 3)).tolist() == [127, 127, 127, 0]
    assert set(made.quantization.zero_point) == {0} and made.quantization.axis == 0
    scale = np.array(made.quantization.scale)
    assert (np.abs(made.quantization.dequantized(made.data) - w).max((1, 2, 3)) <= 0.501 * scale).all()
    assert np.array_equal(
        np.array(bias.quantization.scale, np.float32), np.float32(0.5) * scale.astype(np.float32)
    )
    off = bias.quantization.dequantized(bias.data) - numbers(4)
    assert (np.abs(off[:3]) <= 0.51 * np.array(bias.quantization.scale)[:3]).all()


def test_one_scale_for_all_weights():
    w = numbers(4, 6) * np.array([1, 10, 0.1, 0]).astype(np.float32)[:, None]
    made, _ = quantized_weights(w, 0, per_channel=False, bias=None, x_scale=1.0)
    assert made.quantization == Quantization.per_tensor(float(np.abs(w).max()) / 127)


def test_large_bias_increases_the_scale_of_its_channel():
    w, bias = np.full((2, 1), 1e-3, np.float32), np.array([1.0, 1e4], np.float32)
    made, wide = quantized_weights(w, 0, per_channel=True, bias=bias, x_scale=1e-3)
    assert wide is not None and np.abs(wide.data.astype(np.int64)).max() <= 1 << 30
    assert wide.quantization.dequantized(wide.data) == pytest.approx(bias, rel=1e-3)
    assert made.data[0, 0] == 127


def test_constant_operands_keep_zero_or_are_symmetric():
    plain = quantized_operand(np.array([0.0, 2.55], np.float32), symmetric=False)
    assert (plain.data.tolist(), plain.quantization.zero_point) == ([-128, 127], (-128,))
    even = quantized_operand(np.array([0.5, -1.27], np.float32), symmetric=True)
    assert (even.data.tolist(), even.quantization.zero_point) == ([50, -127], (0,))
    zero = quantized_operand(np.zeros(3, np.float32), symmetric=True)
    assert zero.data.tolist() == [0, 0, 0]


@pytest.mark.parametrize(("low", "high"), [(0.0, 6.0), (-3.0, 1.0), (2.0, 5.0), (-5.0, -2.0), (0.0, 0.0)])
def test_zero_is_exact_in_every_range(low, high):
    q = affine_of(low, high)
    assert q.dequantized(stored(np.zeros(1), q)) == 0
    ends = np.array([low, high])
    assert np.abs(q.dequantized(stored(ends, q)) - ends).max() <= q.scale[0] / 2 + 1e-6


def test_range_with_the_smallest_error_is_chosen():
    even, outlier = RangeRecorder(), RangeRecorder()
    flat = np.linspace(-1, 1, 16_001).astype(np.float32)
    for _ in range(20):
        even.add(flat)
        outlier.add(flat)
    outlier.add(np.append(flat, np.float32(2)))
    assert choose([even]).method == "min/max"
    assert choose([even]).quantization == affine_of(-1, 1)
    values = np.append(np.tile(flat, 21), np.float32(2))

    def error(q: Quantization) -> float:
        return float(np.square(q.dequantized(stored(values, q)) - values).mean())

    made = choose([outlier])
    assert made.method != "min/max" and error(made.quantization) < 0.95 * error(affine_of(-1, 2))
    wide = RangeRecorder()
    wide.add(8 * flat)
    assert choose([even, wide]).quantization == choose([wide]).quantization


def test_extremes_outside_the_sampled_elements_count():
    values = np.zeros(10 * KEPT, np.float32)
    values[[3, 5]] = -4, 9
    seen = RangeRecorder()
    seen.add(values)
    (part,) = seen.parts
    assert part.size < 2 * KEPT and (part.min(), part.max()) == (-4, 9)


def test_infinities_and_nans_are_excluded_from_ranges():
    seen = RangeRecorder()
    seen.add(np.array([np.nan, np.inf, -1, 2], np.float32))
    assert choose([seen]).quantization == affine_of(-1, 2)


# ---- structure


def test_convolution_saturates_at_the_limits_of_its_clip(tmp_path):
    nodes = [
        node("Conv", "x w b", "c", **CONV),
        node("Relu", "c", "r"),
        node("Conv", "r d", "y", group=8, **CONV),
    ]
    graph = graph_of(tmp_path, nodes, SMALL)
    made, report = quantize(graph, samples(IMAGE))
    assert ops(made) == ops(graph) | {"quantize": 1, "dequantize": 1}
    assert quantization(made, "c") == quantization(made, "r")
    assert quantization(made, "r").zero_point == (-128,)
    assert "c" not in reported(report) and reported(report)["r"] in ("min/max", "least squares")
    assert {name: made.nodes[name].op for name in report.kept} == {
        "x:transpose": "transpose",
        "x:transposed:quantize": "quantize",
        "y:transpose": "transpose",
        f"{made.nodes['y:transpose'].inputs[0].removesuffix(':float')}:dequantize": "dequantize",
    }
    assert set(report.kept.values()) == {BOUNDARY_REASON}
    weights = made.tensors[made.nodes["Conv:y"].inputs[1]]
    assert weights.dtype == "int8" and weights.quantization is not None and weights.quantization.axis == 2


def test_value_with_other_readers_has_its_own_range(tmp_path):
    nodes = [node("Conv", "x w b", "c", **CONV), node("Relu", "c", "r"), node("Add", "c r", "y")]
    made, report = quantize(graph_of(tmp_path, nodes, SMALL), samples(IMAGE))
    assert quantization(made, "c") != quantization(made, "r")
    assert {"c", "r"} <= reported(report).keys()


def test_operators_that_move_elements_keep_the_quantization(tmp_path):
    nodes = [
        node("Conv", "x w b", "c", **CONV),
        node("MaxPool", "c", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "x w b", "e", strides=[2, 2], **CONV),
        node("Concat", "p e", "j", axis=1),
        node("Reshape", "j shape", "s"),
        node("Transpose", "s", "t", perm=[0, 2, 1]),
        node("Flatten", "t", "flat"),
        node("Gemm", "flat k", "y"),
    ]
    constants = {"shape": np.array([1, 16, 36], np.int64), "k": numbers(16 * 36, 5, scale=0.05)}
    graph = read(tmp_path, model(nodes, {"x": numbers(*IMAGE)}, ["y"], SMALL | constants))
    made, _ = quantize(graph, samples(IMAGE))
    shared = {quantization(made, name) for name in ("c", "p", "e", "j")}
    assert len(shared) == 1
    moving = [n for n in made if n.op in ("reshape", "transpose") and made.out(n).dtype == "int8"]
    assert moving and all(made.out(n).quantization in shared for n in moving)


def test_functions_have_the_quantization_required_by_tflite(tmp_path):
    nodes = [
        node("Sigmoid", "x", "s"),
        node("Tanh", "x", "t"),
        node("Softmax", "x", "m", axis=-1),
        node("Concat", "x s t m s", "y", axis=1),
    ]
    made, report = quantize(graph_of(tmp_path, nodes, shape=(1, 2, 8)), samples((1, 2, 8)))
    assert quantization(made, "s") == quantization(made, "m") == Quantization.per_tensor(1 / 256, -128)
    assert quantization(made, "t") == Quantization.per_tensor(1 / 128, 0)
    assert [reported(report)[name] for name in "stm"] == ["fixed"] * 3
    assert ops(made)["requantize"] == 4
    (joined,) = (n for n in made if n.op == "concat")
    assert len({made.tensors[name].quantization for name in (*joined.inputs, *joined.outputs)}) == 1


def test_equally_quantized_functions_are_concatenated_without_conversion(tmp_path):
    nodes = [
        node("Sigmoid", "x", "s"),
        node("Softmax", "x", "m", axis=-1),
        node("Concat", "s m", "y", axis=1),
    ]
    made, _ = quantize(graph_of(tmp_path, nodes, shape=(1, 2, 8)), samples((1, 2, 8)))
    assert "requantize" not in ops(made)
    (joined,) = (n for n in made if n.op == "concat")
    assert made.out(joined).quantization == Quantization.per_tensor(1 / 256, -128)


def test_padding_outside_the_range_needs_a_conversion(tmp_path):
    nodes = [node("Sigmoid", "x", "s"), node("Pad", "s pads value", "y")]
    constants = {"pads": np.array([0, 0, 1, 0, 0, 1], np.int64), "value": np.float32(-1)}
    graph = graph_of(tmp_path, nodes, constants, (1, 2, 8))
    made, report = quantize(graph, samples((1, 2, 8)))
    assert ops(made)["requantize"] == 1
    assert report.outputs[0].max_abs < 0.01


def test_range_of_a_table_includes_all_rows(tmp_path):
    table = np.linspace(-1, 3, 28).astype(np.float32).reshape(7, 4)
    given = {"tokens": np.array([[1, 2]], np.int64)}
    graph = read(tmp_path, model([node("Gather", "table tokens", "y")], given, ["y"], {"table": table}))
    made, _ = quantize(graph, [given])
    last = evaluate(made, {"tokens": np.array([[0, 6]], np.int64)})["y"]
    np.testing.assert_allclose(last[0], table[[0, 6]], atol=4 / 255)


def test_skipped_nodes_stay_float_between_conversions(tmp_path):
    nodes = [
        node("Conv", "x w b", "c", **CONV),
        node("Sigmoid", "c", "s"),
        node("Conv", "s d", "y", group=8, **CONV),
    ]
    graph = graph_of(tmp_path, nodes, SMALL)
    for skip in (["Sigmoid:s"], ["sigmoid"]):
        made, report = quantize(graph, samples(IMAGE), skip=skip)
        assert made.tensors["s"].dtype == "float32" and made.tensors["s:int8"].dtype == "int8"
        assert made.nodes["c:dequantize"].outputs == made.nodes["Sigmoid:s"].inputs
        assert report.kept["Sigmoid:s"] == "asked to stay float"
        assert "Sigmoid:s" in report.kept["c:dequantize"] and "stays float" in report.kept["s:quantize"]
        network = compile(made)
        inside = {host.node for host in network.host if not host.edge}
        assert inside == {"Sigmoid:s"}  # the accelerator reads and writes float32 values


def test_means_of_images_have_their_own_scale(tmp_path):
    nodes = [node("Conv", "x w b", "c", **CONV), node("GlobalAveragePool", "c", "y")]
    graph = graph_of(tmp_path, nodes, SMALL)
    made, _ = quantize(graph, samples(IMAGE))
    (mean,) = (node for node in made if node.op == "reduce_mean")
    assert "avg_pool2d" not in ops(made)
    x, y = (tensor.quantization for tensor in (*made.ins(mean), made.out(mean)))
    assert x is not None and y is not None and y.scale[0] < x.scale[0]
    assert all(host.reason == BOUNDARY_REASON for host in compile(graph, calibration=samples(IMAGE)).host)
