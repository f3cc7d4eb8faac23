"""`mla eval` reports the accuracy of a model and of its own runtime; invalid data and metrics are one-line errors."""

import json
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler.api import compile
from scripts.networks.digits import MODEL, load_digits_split
from tests.support.tflite_recurrent import steps_in_litert, svdf
from tests.support.trained_networks import Reference, model

GOLDEN = ("--device", "golden")
COUNT = 60


@pytest.fixture
def digits(tmp_path):
    """Return a file of held-out digits, with the images and the labels."""
    images, labels = (part[:COUNT] for part in load_digits_split()[1])
    path = tmp_path / "digits.npz"
    np.savez(path, x=images, y=labels)
    return path, images, labels


def ranks(scores: np.ndarray, labels: np.ndarray) -> list[int]:
    """Return the number of classes that precede the label, by score and then by index."""
    return [
        sum(value > row[label] or (value == row[label] and index < label) for index, value in enumerate(row))
        for row, label in zip(scores.tolist(), labels.tolist(), strict=True)
    ]


def evaluated(mla, *arguments) -> dict:
    """Run `mla eval` and return its JSON report."""
    result = mla("eval", *arguments, *GOLDEN, "--json", "-")
    assert result.status == 0, result.err
    return json.loads(result.out)


def test_digits_equal_onnxruntime(mla, digits):
    path, images, labels = digits
    session = onnxruntime.InferenceSession(str(MODEL))
    (entry,) = session.get_inputs()
    scores = np.concatenate([session.run(None, {entry.name: image[None]})[0] for image in images])
    place = np.array(ranks(scores, labels))
    found = evaluated(mla, MODEL, "--target", "n4", "--data", path)
    assert found["samples"] == COUNT
    assert found["reference"] == "onnxruntime"
    assert found["reference_top1"] == np.mean(place == 0)
    assert found["reference_top5"] == np.mean(place < 5)
    assert (found["top1"], found["top5"]) == (found["reference_top1"], found["reference_top5"])
    assert found["same_class"] == COUNT
    assert found["cycles_per_sample"] is None  # the golden model has no clock


def test_spoken_words_equal_litert(mla, tmp_path):
    network = model("kws_ref_model")
    rng = np.random.default_rng(3)
    inputs = rng.integers(-128, 128, (12, 49, 10, 1)).astype(np.int8)
    labels = rng.integers(0, 12, 12)
    np.savez(tmp_path / "words.npz", x=inputs, y=labels)
    for rounding in ("reference", "xnnpack"):
        reference = Reference(network, rounding)
        scores = np.concatenate([reference({"input": sample[None]})[0] for sample in inputs])
        found = evaluated(mla, network, "--data", tmp_path / "words.npz", "--rounding", rounding)
        assert found["reference_top1"] == np.mean(np.array(ranks(scores, labels)) == 0)
        assert found["same_class"] == 12


def test_cycles_on_the_chip(mla, digits):
    path, _, _ = digits
    arguments = (MODEL, "--target", "n4", "--data", path, "--limit", "1")
    result = mla("eval", *arguments, "--json", "-")
    assert result.status == 0, result.err
    run = mla("run", MODEL, "--target", "n4", "--limit", "1", "--json", "-")
    assert json.loads(result.out)["cycles_per_sample"] == json.loads(run.out)["cycles_per_sample"]


def test_table_and_absent_reference(mla, digits):
    path, _, _ = digits
    text = mla("eval", MODEL, "--target", "n4", "--data", path, *GOLDEN).out
    assert "onnxruntime" in text
    assert f"same class in {COUNT} of {COUNT} samples" in text
    found = evaluated(mla, MODEL, "--target", "n4", "--data", path, "--no-reference")
    assert (found["reference"], found["reference_top1"], found["same_class"]) == (None, None, None)


def test_metric_of_the_user(mla, digits, tmp_path, monkeypatch):
    path, images, labels = digits
    source = """
def confusions(outputs, labels):
    print("not a part of the report")
    (scores,) = outputs.values()
    return int((scores.reshape(len(labels), -1).argmax(1) != labels).sum())

def broken(outputs, labels):
    return outputs["nothing"]

CONSTANT = 3
"""
    (tmp_path / "own_metric.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_metric", raising=False)
    arguments = (MODEL, "--target", "n4", "--data", path)
    session = onnxruntime.InferenceSession(str(MODEL))
    (entry,) = session.get_inputs()
    scores = np.concatenate([session.run(None, {entry.name: image[None]})[0] for image in images])
    wrong = int((np.array(ranks(scores, labels)) != 0).sum())
    found = evaluated(mla, *arguments, "--metric", "own_metric:confusions")
    assert (found["confusions"], found["reference_confusions"]) == (wrong, wrong)
    for metric, message in (
        ("own_metric:broken", "--metric own_metric:broken failed: KeyError: 'nothing'"),
        ("own_metric:CONSTANT", "must be a function of outputs and labels, not 3"),
        ("own_metric:missing", "own_metric has no"),
        ("accuracy", "--metric must be classes, mae, mse or module:function, not 'accuracy'"),
    ):
        result = mla("eval", *arguments, *GOLDEN, "--metric", metric)
        assert result.status == 2
        assert message in result.err.splitlines()[-1]


def test_metrics_receive_equal_shapes_and_return_finite_numbers(mla, digits, tmp_path, monkeypatch):
    """The outputs of both devices have the same shape, so that metrics along the last axis are comparable."""
    path, _, _ = digits
    source = """
def top1(outputs, labels):
    (scores,) = outputs.values()
    assert scores.shape == (len(labels), 10), scores.shape
    return 100 * float((scores.argmax(-1) == labels).mean())

def samples(outputs, labels):
    return 1

def invalid(outputs, labels):
    return float("nan")
"""
    (tmp_path / "shaped_metric.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "shaped_metric", raising=False)
    arguments = (MODEL, "--target", "n4", "--data", path)
    found = evaluated(mla, *arguments, "--metric", "shaped_metric:top1")
    assert found["top1"] == found["reference_top1"] > 90
    assert "%" not in mla("eval", *arguments, *GOLDEN, "--metric", "shaped_metric:top1").out
    np.savez(tmp_path / "nan.npz", x=np.zeros((1, 1, 8, 8), np.int8), y=np.full((1, 10), np.nan))
    for data, metric, message in (
        (path, "shaped_metric:samples", "samples is another field of the report: rename the function"),
        (path, "shaped_metric:invalid", "the result for golden must be a finite number, not nan"),
        (tmp_path / "nan.npz", "mae", "the result for golden must be a finite number, not nan"),
    ):
        result = mla("eval", MODEL, "--target", "n4", "--data", data, *GOLDEN, "--metric", metric)
        assert result.status == 2
        assert message in result.err.splitlines()[-1]


def test_errors_of_an_output(mla, tmp_path):
    path = tmp_path / "scores.npz"
    images = load_digits_split()[1].images[:3]
    session = onnxruntime.InferenceSession(str(MODEL))
    (entry,) = session.get_inputs()
    scores = np.concatenate([session.run(None, {entry.name: image[None]})[0] for image in images]).astype(int)
    np.savez(path, x=images, y=scores + np.array([[2]] * 3))
    arguments = (MODEL, "--target", "n4", "--data", path)
    assert evaluated(mla, *arguments, "--metric", "mae")["mae"] == 2
    assert evaluated(mla, *arguments, "--metric", "mse")["reference_mse"] == 4


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((2, 1, 8, 8), np.int8)}, "inputs in 'x' and labels in 'y'"),
        ({"z": np.zeros((2, 1, 8, 8), np.int8), "y": [1, 2]}, "besides y, arrays must be named x or "),
        ({"x": np.zeros((2, 1, 8, 8), np.int8), "y": [1]}, "must have the same number of samples"),
        ({"x": np.zeros((2, 1, 8, 9), np.int8), "y": [1, 2]}, "must be int8[samples, 1, 8, 8]"),
        (
            {"x": np.zeros((2, 1, 8, 8), np.int8), "y": [1, 10]},
            "label 10 of sample 1 must be at least 0 and below 10",
        ),
        ({"x": np.zeros((2, 1, 8, 8), np.int8), "y": [0.5, 1]}, "labels y must be integers, one per sample"),
        ({"x": np.zeros((0, 1, 8, 8), np.int8), "y": []}, "at least one"),
    ],
)
def test_invalid_data_are_one_line_errors(mla, tmp_path, arrays, message):
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    result = mla("eval", MODEL, "--target", "n4", "--data", path, *GOLDEN)
    assert (result.status, result.out) == (2, "")
    assert message in result.err.splitlines()[-1]


def test_classes_need_one_vector_of_scores(mla, tmp_path):
    inputs = np.zeros((2, 3, 6), np.float32)
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Relu", ["x"], ["scores"])]
    x, scores = (value(name, TensorProto.FLOAT, [3, 6]) for name in ("x", "scores"))
    graph = helper.make_graph(nodes, "rows", [x], [scores])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path := tmp_path / "m.onnx"
    )
    np.savez(tmp_path / "data.npz", x=inputs, y=[1, 2])
    result = mla("eval", path, "--target", "n4", "--data", tmp_path / "data.npz", *GOLDEN)
    assert (result.status, result.out) == (2, "")
    message = "needs one vector of class scores per sample, but output 'scores' has shape [3, 6]"
    assert message in result.err.splitlines()[-1]


def test_compiled_file_has_no_reference(mla, digits, tmp_path):
    path, _, _ = digits
    package = tmp_path / "digits.mla"
    assert mla("compile", MODEL, "--target", "n4", "-o", package).status == 0
    found = evaluated(mla, package, "--target", "n4", "--data", path)
    assert found["reference"] is None
    assert found["top1"] == evaluated(mla, MODEL, "--target", "n4", "--data", path)["top1"]


def test_bound_input_reaches_the_reference(mla, tmp_path):
    rng = np.random.default_rng(5)
    weights = rng.normal(size=(6, 4)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["rows", "weights"], ["product"]),
        helper.make_node("Mul", ["product", "factors"], ["scores"]),
    ]
    inputs = [
        helper.make_tensor_value_info("rows", TensorProto.FLOAT, [1, 6]),
        helper.make_tensor_value_info("factors", TensorProto.FLOAT, [1, 4]),
    ]
    outputs = [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 4])]
    graph = helper.make_graph(nodes, "bound", inputs, outputs, [numpy_helper.from_array(weights, "weights")])
    network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(network, tmp_path / "bound.onnx")
    rows = rng.normal(size=(20, 1, 6)).astype(np.float32)
    labels = rng.integers(0, 4, 20)
    np.savez(tmp_path / "rows.npz", x=rows, y=labels)
    arguments = (tmp_path / "bound.onnx", "--target", "n4", "--data", tmp_path / "rows.npz")
    for sign in (1, -1):
        found = evaluated(mla, *arguments, "--bind", f"factors={sign}")
        wanted = np.mean((sign * (rows @ weights)).reshape(20, 4).argmax(1) == labels)
        assert found["reference_top1"] == wanted
        assert found["same_class"] >= 16  # the accelerator computes in int8


@pytest.mark.parametrize("reset", (False, True))
def test_samples_of_a_model_with_states_are_a_sequence_unless_it_is_reset(mla, tmp_path, reset):
    data, file = svdf(np.random.default_rng(4), activation=1), tmp_path / "samples.npz"
    path = tmp_path / "svdf.tflite"
    path.write_bytes(data)
    (x,), (y,) = (compile(path, "n4").inputs, compile(path, "n4").outputs)
    samples = np.random.default_rng(0).integers(-128, 128, (4, *x.shape)).astype(np.int8)
    runs = [steps_in_litert(data, [sample], "reference")[0] for sample in samples]
    wanted = runs if reset else steps_in_litert(data, list(samples), "reference")
    np.savez(file, x=samples, y=np.array([each[0] for each in wanted]).reshape(4, *y.shape))
    options = ("--reset-state",) if reset else ()
    report = evaluated(mla, path, "--data", file, "--metric", "mae", "--target", "n4", *options)
    assert report["mae"] == report["reference_mae"] == 0


def test_reset_needs_a_model_with_states(mla, digits):
    result = mla("eval", MODEL, "--data", digits[0], "--reset-state", *GOLDEN)
    assert result.status == 2 and "keeps no state from one sample to the next" in result.err, result.err
