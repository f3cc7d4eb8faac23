"""Tests of float graphs quantized after training: accuracy, exactness on the machine, calibration data."""

import numpy as np
import pytest

from compiler.api import compile
from compiler.frontends.builder import GraphBuilder
from compiler.frontends.onnx import read_onnx
from compiler.ir.tensor import Tensor
from compiler.quantize import quantize
from compiler.quantize.report import summary
from compiler.reference import evaluate
from hw.errors import InputError
from tests.frontends.onnx.test_float_models import CASES
from tests.support.float_graphs import BLOCK, IMAGE, WITHIN, graph_of, numbers, samples
from tests.support.onnx_models import model, node, read

ATTENTION = [
    node("MatMul", "x wq", "q"),
    node("MatMul", "x wk", "k"),
    node("MatMul", "x wv", "v"),
    node("Transpose", "k", "kt", perm=[0, 2, 1]),
    node("MatMul", "q kt", "s"),
    node("Softmax", "s", "p", axis=-1),
    node("MatMul", "p v", "o"),
    node("Add", "o x", "a"),
    node("LayerNormalization", "a gamma beta", "y"),
]
LSTM = [node("LSTM", "x w r b", "y -", hidden_size=12)]
#: Nodes, shape of x, constants, minimum SQNR of the output in dB: the measured value minus 2 dB. For
#: other samples the minimum is 5 dB lower, since they may exceed the range.
NETWORKS = {
    "block": (BLOCK, IMAGE, WITHIN, 37.8),
    "attention": (
        ATTENTION,
        (1, 6, 16),
        {
            **{name: numbers(16, 16, seed=i, scale=0.25) for i, name in enumerate(("wq", "wk", "wv"))},
            "gamma": np.abs(numbers(16)) + 0.5,
            "beta": numbers(16),
        },
        31.6,
    ),
    "lstm": (
        LSTM,
        (5, 1, 8),
        {
            "w": numbers(1, 48, 8, scale=0.3),
            "r": numbers(1, 48, 12, scale=0.3),
            "b": numbers(1, 96, scale=0.1),
        },
        30.3,
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_quantized_networks_are_accurate_and_exact_on_the_machine(tmp_path, name):
    nodes, shape, constants, least = NETWORKS[name]
    graph = graph_of(tmp_path, nodes, constants, shape)
    network = compile(graph, "n8", calibration=samples(shape, 32))
    report = network.quantization
    assert report is not None and not report.random and (report.samples, report.measured) == (32, 8)
    (output,) = report.outputs
    assert output.sqnr_db is not None and output.sqnr_db >= least
    assert network.graph is not None
    fresh = samples(shape, 16, seed=900)
    found, quantized = network(**fresh[0])["y"], [evaluate(network.graph, each)["y"] for each in fresh]
    assert found.dtype == np.float32
    if name == "attention":  # the softmax may be one step off
        assert np.abs(found - quantized[0]).max() <= 0.5 * output.max_abs
    else:
        np.testing.assert_array_equal(found, quantized[0])
    wanted = np.stack([evaluate(graph, each)["y"] for each in fresh]).astype(float)
    noise = np.square(np.stack(quantized) - wanted).sum()
    assert 10 * np.log10(np.square(wanted).sum() / noise) >= least - 5


@pytest.mark.parametrize("name", CASES)
def test_every_float_operator_has_a_quantized_form(tmp_path, name):
    op, attributes, shape, constants, _ = CASES[name]
    held = {f"c{i}": array for i, array in enumerate(constants)}
    inputs = {"x": numbers(*shape)}
    made = model(
        [node(op, " ".join(["x", *held]), "y", **attributes)], inputs, ["y"], held, 20 if op == "Gelu" else 17
    )
    network = compile(read(tmp_path, made), "n8", calibration=[inputs])
    assert network.quantization is not None and network.graph is not None
    assert all(each.sqnr_db is None or each.sqnr_db >= 28 for each in network.quantization.outputs)
    wanted = evaluate(network.graph, inputs)
    # Norms, and products with them, may differ by 1 (docs/numerics.md); other results are equal.
    norms = any(node.op in ("layer_norm", "rms_norm") for node in network.graph)
    meanings = [network.graph.out(node).quantization for node in network.graph if norms]
    step = max((meaning.scale[0] for meaning in meanings if meaning), default=0.0)
    for output, array in network(**inputs).items():
        np.testing.assert_allclose(array, wanted[output], rtol=0, atol=1.001 * step)


@pytest.mark.parametrize("rounding", ["xnnpack", "onnxruntime"])
def test_every_rounding_quantizes(tmp_path, rounding):
    network = compile(graph_of(tmp_path, BLOCK, WITHIN), "n8", rounding=rounding, calibration=samples(IMAGE))
    assert network.quantization is not None and network.graph is not None
    assert (network.quantization.outputs[0].sqnr_db or 0) >= 36
    (inputs,) = samples(IMAGE, 1)
    np.testing.assert_array_equal(
        network(**inputs)["y"], evaluate(network.graph, inputs, rounding=rounding)["y"]
    )


def test_scales_per_channel_limit_the_effect_of_an_outlier(tmp_path):
    w = numbers(8, 6)
    w[0, 0] = 100  # multiplied by an input that is always 0
    given = samples((4, 6))
    for sample in given:
        sample["x"][:, 0] = 0
    graph = graph_of(tmp_path, [node("Gemm", "x w", "y", transB=1)], {"w": w}, (4, 6))
    fine, coarse = (quantize(graph, given, per_channel=each)[1].outputs[0] for each in (True, False))
    assert fine.sqnr_db is not None and coarse.sqnr_db is not None
    assert fine.sqnr_db > coarse.sqnr_db + 6


def test_report_equals_the_error_on_the_samples(tmp_path):
    graph = graph_of(tmp_path, BLOCK, WITHIN)
    given = samples(IMAGE, 3)
    made, report = quantize(graph, given)
    wanted, found = (np.stack([evaluate(each, x)["y"] for x in given]) for each in (graph, made))
    (output,) = report.outputs
    noise = np.square(found.astype(float) - wanted).sum()
    assert output.sqnr_db == pytest.approx(10 * np.log10(np.square(wanted.astype(float)).sum() / noise))
    assert output.max_abs == pytest.approx(np.abs(found - wanted).max())
    assert output.top1 == np.mean(found.argmax(-1) == wanted.argmax(-1))
    document = report.document()
    assert document["outputs"][0]["name"] == "y" and len(document["tensors"]) == len(report.tensors)
    assert "output y" in str(report) and all(
        (each.node or each.name) in str(report) for each in report.tensors
    )


# ---- calibration data


def test_samples_in_any_container_give_the_same_graph(tmp_path):
    graph = graph_of(tmp_path, BLOCK, WITHIN)
    given = samples(IMAGE, 3)
    arrays = np.stack([each["x"] for each in given])
    forms = [given, [each["x"] for each in given], {"x": arrays}, {"x": arrays[:, 0]}]
    assert len({str(quantize(graph, form)[0]) for form in forms}) == 1


def test_random_samples_cause_a_warning(tmp_path, caplog):
    graph = graph_of(tmp_path, BLOCK, WITHIN)
    one, same, other = (compile(graph, seed=seed) for seed in (1, 1, 2))
    assert (
        one.quantization is not None
        and one.quantization.random
        and "accuracy is meaningless" in str(one.quantization)
    )
    assert "seed 1" in caplog.text and "accuracy is meaningless" in caplog.text
    assert str(one.graph) == str(same.graph) != str(other.graph)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([], "at least one sample"),
        ({"x": numbers(0, 3, 12, 12)}, "at least one sample"),
        ({"z": numbers(2, *IMAGE)}, "inputs must be x, not z"),
        ([numbers(1, 3, 12, 11)], r"must be float32\[1, 3, 12, 12\], not float32\[1, 3, 12, 11\]"),
        ([numbers(*IMAGE).astype(np.float64)], "not float64"),
        ([np.full(IMAGE, np.nan, np.float32)], "not NaN"),
        ([np.full(IMAGE, np.inf, np.float32)], "must be finite, but has infinite values"),
        ([np.full(IMAGE, -np.inf, np.float32)], "must be finite, but has infinite values"),
    ],
)
def test_invalid_samples_are_rejected(tmp_path, given, text):
    with pytest.raises(InputError, match=text):
        quantize(graph_of(tmp_path, BLOCK, WITHIN), given)


def test_quantized_models_and_unknown_names_are_rejected(tmp_path):
    graph = graph_of(tmp_path, BLOCK, WITHIN)
    made, _ = quantize(graph, samples(IMAGE))
    with pytest.raises(InputError, match="quantized already"):
        quantize(made, samples(IMAGE))
    with pytest.raises(InputError, match="quantized already"):
        compile(made, calibration=samples(IMAGE))
    with pytest.raises(InputError, match="no node and no operator 'nothing'"):
        quantize(graph, samples(IMAGE), skip=["nothing"])


def test_noise_is_attributed_to_its_node():
    """Most noise is attributed to the second layer, where an outlier weight leaves few steps for the other weights."""
    rng = np.random.default_rng(2)
    weights = [rng.normal(size=(16, 16)).astype(np.float32) / 4 for _ in range(3)]
    weights[1][0, 0] = 60
    build, last = GraphBuilder("dense"), Tensor("x", (1, 16), "float32")
    build.graph.add_input(last)
    for i, each in enumerate(weights):
        output = Tensor(f"y{i}", (1, 16), "float32")
        last = build.node(f"layer{i}", "dense", [last, build.constant("w", each)], output)
    graph = build.graph.finish(["y0", "y1", "y2"])  # outputs are not equalized
    samples = {"x": rng.normal(size=(6, 1, 16)).astype(np.float32)}
    _, report = quantize(graph, samples, per_channel=False)
    alone = {each.node: each.node_sqnr_db for each in report.tensors}
    assert alone.pop("") is None
    noise = {name: db for name, db in alone.items() if db is not None}
    assert len(noise) == 3 and min(noise, key=lambda name: noise[name]) == "layer1"
    assert min(noise["layer0"], noise["layer2"]) > noise["layer1"] + 6
    after = {each.node: each.sqnr_db for each in report.tensors}
    assert after["layer2"] is not None and after["layer2"] < noise["layer2"] - 6
    (lowest,) = (line for line in summary(report.document()) if line.startswith("  lowest"))
    assert lowest.split(": ")[1].startswith("layer1 ")
    _, made_up = quantize(graph, samples, random=True)
    assert all(each.node_sqnr_db is None for each in made_up.tensors)
    assert len(summary(made_up.document())) == 4 and "accuracy is meaningless" in str(made_up)


def _report_of(tmp_path, nodes, constants, given, outputs=("y",)):
    path = tmp_path / "m.onnx"
    made = model(nodes, {"x": given[0]}, list(outputs), constants)
    path.write_bytes(made.SerializeToString())
    _, report = quantize(read_onnx(path), [{"x": each} for each in given])
    return report


def test_host_outputs_are_not_reported_as_exact(tmp_path):
    nodes = [node("Relu", "x", "y"), node("Det", "x", "d")]
    report = _report_of(tmp_path, nodes, {}, [numbers(4, 4, seed=i) for i in range(3)], ("y", "d"))
    y, d = report.outputs
    assert (y.quantized, d.quantized) == (True, False) and y.values == 3 * 16
    _, first, second, *_ = summary(report.document())
    assert "dB" in first and "output d: not quantized" in second and "exact" not in second


def test_float_model_is_not_reported_as_quantized(tmp_path):
    report = _report_of(tmp_path, [node("Det", "x", "y")], {}, [numbers(4, 4)])
    assert summary(report.document()) == ["nothing is quantized: no node can be quantized, 1 stay float"]


def test_samples_that_overflow_are_reported(tmp_path):
    nodes = [node("MatMul", "x w", "h"), node("Relu", "h", "y")]
    huge = np.full((4, 4), 3e38, np.float32)
    report = _report_of(tmp_path, nodes, {"w": 10 * np.ones((4, 4), np.float32)}, [huge])
    (line,) = summary(report.document())
    assert line.startswith("nothing is quantized: 2 of 2 nodes have infinite numbers on the samples")


@pytest.mark.parametrize("op", ["ArgMax", "Identity"])
def test_calibration_of_models_without_an_8_bit_form(tmp_path, op):
    """Models of operators without an 8-bit form remain in floating point; no message claims that they are quantized."""
    x = numbers(4, 4)
    network = compile(read(tmp_path, model([node(op, "x", "y")], {"x": x}, ["y"])), calibration=[x])
    assert network.quantization is not None and not network.quantization.tensors
    np.testing.assert_array_equal(network(x)["y"], x if op == "Identity" else x.argmax(0, keepdims=True))


def test_nans_are_counted_and_not_reported_as_exact(tmp_path):
    bad = numbers(6, 5)
    bad[2] = np.nan
    relu, product = node("Relu", "x", "r"), node("MatMul", "r w", "y")
    part, whole = (
        _report_of(tmp_path, [relu, product], {"w": each}, [numbers(3, 6, seed=i) for i in range(2)])
        for each in (np.where(np.arange(5) == 1, bad, 1).astype(np.float32), bad)
    )
    (line,) = (line for line in summary(part.document()) if "output y" in line)
    assert part.outputs[0].left_out == 6 and "6 of its 30 values are infinite or NaN" in line
    assert "dB" in line and part.outputs[0].top1 is None
    (line,) = (line for line in summary(whole.document()) if "output y" in line)
    assert line == "  output y: not measured: 30 of its 30 values are infinite or NaN"
