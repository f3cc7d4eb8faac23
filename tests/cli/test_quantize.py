"""Tests of the quantization of float models on the command line."""

import json
import subprocess
import sys

import numpy as np
import pytest

from tests.support.float_graphs import BLOCK, IMAGE, WITHIN, numbers
from tests.support.onnx_models import model
from tests.support.trained_networks import model as trained


@pytest.fixture
def network(tmp_path):
    path = tmp_path / "block.onnx"
    made = model(BLOCK, {"x": numbers(*IMAGE)}, ["y"], WITHIN)
    path.write_bytes(made.SerializeToString())
    return path


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "samples.npy"
    np.save(path, np.concatenate([numbers(*IMAGE, seed=i) for i in range(5)]))
    return path


def process(*arguments):
    """Run `mla` in a separate process, whose log is written to standard error; return output and messages."""
    command = [sys.executable, "-m", "compiler.cli.main", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_run_quantizes_with_calibration_file(mla, network, data, caplog):
    result = mla("run", network, "--calibrate", data, "--device", "golden", "--json", "-")
    assert result.status == 0 and "accuracy is meaningless" not in caplog.text
    report = json.loads(result.out)
    found = report["quantization"]
    assert (found["samples"], found["measured"], found["random"]) == (5, 5, False)
    assert found["outputs"][0]["name"] == "y" and found["outputs"][0]["sqnr_db"] > 30
    assert {each["reason"] for each in report["host_ops"]} == {
        "conversion between float and integers at the model boundary"
    }
    assert {each["node"] for each in report["host_ops"]} == set(found["kept"])
    assert report["outputs"]["y"]["dtype"] == "float32"


def test_random_calibration_warns(network, tmp_path):
    out, err = process("compile", network, "-o", tmp_path / "block.mla", "--seed", 3, "--json", "-")
    assert (
        "2 random samples (seed 3): accuracy is meaningless, pass calibration data (--calibrate)" in err
        and err.count("\n") == 2
    )
    assert json.loads(out)["quantization"]["random"] is True


def test_verbose_prints_quantization_report(network, data, tmp_path):
    quiet, loud = (
        process("compile", network, "--calibrate", data, "-o", tmp_path / "block.mla", *more)[1]
        for more in ((), ("-v",))
    )
    assert quiet.startswith("compile: ") and quiet.count("\n") == 1 and "output y:" in loud and "SQNR" in loud


def test_calibrated_package_needs_no_calibration(mla, network, data, tmp_path):
    package = tmp_path / "block.mla"
    assert mla("compile", network, "--calibrate", data, "-o", package).status == 0
    options = ("--input", data, "--limit", 1, "--device", "golden", "--json", "-")
    found = json.loads(mla("run", package, *options).out)
    wanted = json.loads(mla("run", network, "--calibrate", data, *options).out)
    assert found["outputs"] == wanted["outputs"] and found["quantization"] == wanted["quantization"]
    refused = mla("run", package, "--calibrate", data)
    assert refused.status == 2 and "is already compiled: --calibrate applies to float models" in refused.err


def test_unsuitable_calibration_files_are_rejected(mla, network, data, tmp_path):
    np.save(tmp_path / "wrong.npy", np.zeros((2, 3, 4, 4), np.float32))
    wrong = mla("run", network, "--calibrate", tmp_path / "wrong.npy")
    assert wrong.status == 2 and "float32[samples, 3, 12, 12]" in wrong.err
    images = tmp_path / "images.npy"
    np.save(images, np.zeros((1, 49, 10, 1), np.int8))
    quantized = mla("run", trained("kws_ref_model"), "--calibrate", images)
    assert quantized.status == 2 and "calibration is for float models" in quantized.err


def test_run_and_compile_print_quantization_error(mla, network, data, tmp_path):
    for verb, *more in (("run", "--device", "golden"), ("compile", "-o", tmp_path / "block.mla")):
        result = mla(verb, network, "--calibrate", data, *more)
        told = result.out.splitlines()[-3:] if verb == "run" else result.out.splitlines()[-4:-1]
        assert told[0] == "quantized with 5 samples; compared with float on 5:", result.out
        assert "output y: " in told[1] and " dB, maximum error " in told[1] and "same top 1 in" in told[1]
        assert "of single nodes: " in told[2] and told[2].count(" dB") == 3


def test_accuracy_budget_reports_bits_of_weights(mla, network, data):
    options = ("--device", "golden", "--json", "-", "--no-cache", "--no-db")
    found = mla("run", network, "--calibrate", data, "--accuracy-budget", "20dB", *options)
    weights = json.loads(found.out)["quantization"]["weights"]
    assert weights["sqnr_db"] >= 20 and min(each["bits"] for each in weights["layers"]) < 8
    assert (
        json.loads(mla("run", network, "--calibrate", data, *options).out)["quantization"].get("weights")
        is None
    )


def test_accuracy_budget_of_quantized_model_counts_labels(mla, tmp_path, caplog):
    data, package = tmp_path / "labeled.npz", tmp_path / "kws.mla"
    images = np.random.default_rng(0).integers(-128, 128, (2, 49, 10, 1)).astype(np.int8)
    np.savez(data, x=images, y=np.array([3, 4]))
    command = ("compile", trained("kws_ref_model"), "--calibrate", data, "--no-cache", "--no-db")
    found = mla(*command, "--accuracy-budget", 2, "-o", package)
    assert found.status == 0 and "compared with int8 weights: 0 of 2 samples labelled worse" in found.out
    assert "none of the 2 samples is labelled rightly" in caplog.text
    assert mla("run", package, "--device", "golden", "--accuracy-budget", 2).err.endswith(
        "is already compiled: --accuracy-budget applies to models\n"
    )
    np.savez(data, y=np.array([3, 4]))
    unnamed = mla(*command, "--accuracy-budget", 2, "-o", package)
    assert unnamed.status == 2 and "arrays must be named x or input_1, not none" in unnamed.err
    np.savez(data, x=images, y=np.array([3, 40]))
    wrong = mla(*command, "--accuracy-budget", 2, "-o", package)
    assert wrong.status == 2 and "--accuracy-budget: labels must be 0..11, not 40" in wrong.err


def test_cascade_within_a_budget_in_percent_is_served(mla, tmp_path):
    """The calibration file may have labels, which do not matter."""
    data, lines, report = tmp_path / "labeled.npz", tmp_path / "lines.jsonl", tmp_path / "report.json"
    images = np.random.default_rng(0).integers(-128, 128, (32, 49, 10, 1)).astype(np.int8)
    np.savez(data, x=images, y=np.zeros(32, np.int64))
    np.save(tmp_path / "requests.npy", images[:3])
    budget = ("--calibrate", data, "--accuracy-budget", "90%", "--no-cache", "--no-db")
    files = ("--input", tmp_path / "requests.npy", "--out", lines, "--json", report)
    found = mla("serve", trained("kws_ref_model"), *budget, *files, "--device", "golden")
    assert found.status == 0 and "audited labels changed" in found.err
    *requests, audit = map(json.loads, lines.read_text().splitlines())
    assert len(requests) == 3 and all(each["variant"] and each["why"] for each in requests)
    written = json.loads(report.read_text())["audit"]
    assert written == audit["audit"] and written["accepted"] + written["fallbacks"] == 3
    assert written["budget"] == 0.9 and not written["rolled_back"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--accuracy-budget", "2"], "--accuracy-budget needs calibration samples (--calibrate)"),
        (["--accuracy-budget", "0dB"], "or more than 0% and less than 100% of the requests, not '0dB'"),
        (["--accuracy-budget", "many"], "must be a number of labels, decibels such as 30dB, or more than 0%"),
        (["--accuracy-budget", "1", "--calibrate", "DATA"], "labels in 'y'"),
        (["--accuracy-budget", "0%"], "more than 0% and less than 100% of the requests, not '0%'"),
        (["--accuracy-budget", "100%"], "more than 0% and less than 100% of the requests, not '100%'"),
        (["--accuracy-budget", "0.5%"], "--accuracy-budget needs calibration samples (--calibrate)"),
        (
            ["--accuracy-budget", "0.5%", "--calibrate", "DATA"],
            "--accuracy-budget: a share of requests needs one output that is an int8 or uint8 softmax of one row",
        ),
    ],
)
def test_unsuitable_accuracy_budgets_are_rejected(mla, network, data, options, text):
    found = mla("run", network, *(data if each == "DATA" else each for each in options))
    assert found.status == 2 and text in found.err and found.err.count("\n") == 1
