"""Tests of `mla serve`: output lines, inputs of all kinds, one-line errors, Ctrl-C, adaptation."""

import hashlib
import io
import json
import os
import signal
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from compiler.api import compile
from compiler.frontends.model import read_model
from compiler.initial_schedule.initial import naive_schedule
from compiler.options import CompileOptions
from compiler.pipeline import ModelCompiler
from hw.config import load_target
from scripts.networks.digits import MODEL
from tests.support.tflite_recurrent import steps_in_litert, svdf

N4 = ("--target", "n4", "--device", "golden")


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """Return three random images."""
    network = compile(MODEL, "n4")
    (tensor,) = network.inputs
    return np.random.default_rng(5).integers(0, 17, (3, *tensor.shape[1:])).astype(tensor.dtype)


@pytest.fixture(scope="module")
def hashes(images: np.ndarray) -> list[str]:
    """Return the SHA-256 of the expected outputs of each image."""
    network = compile(MODEL, "n4")
    (name,) = (tensor.name for tensor in network.outputs)
    return [hashlib.sha256(network(image[None])[name].tobytes()).hexdigest() for image in images]


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def check(text: str, expected: list[str]) -> list[dict]:
    """Assert that a text has one line per request with these output hashes; return the lines."""
    found = [line for line in lines(text) if "index" in line]
    assert [line["index"] for line in found] == list(range(len(expected)))
    assert [list(line["outputs"].values()) for line in found] == [[each] for each in expected]
    assert all(line["schema_version"] == 1 for line in found)
    return found


def feed(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Replace standard input by these bytes."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_input_file_is_repeated(mla, tmp_path, images, hashes):
    file = tmp_path / "images.npy"
    np.save(file, images)
    result = mla("serve", MODEL, "--input", file, "--requests", "5", *N4)
    assert result.status == 0, result.err
    found = check(result.out, [*hashes, *hashes[:2]])
    assert {line["version"] for line in found} == {0} and found[0]["cycles"] is None
    assert "mla serve: 5 requests" in result.err


def test_standard_input(mla, monkeypatch, images, hashes):
    npy, npz = io.BytesIO(), io.BytesIO()
    np.save(npy, images)
    np.savez(npz, **{compile(MODEL, "n4").inputs[0].name: images})
    name = compile(MODEL, "n4").inputs[0].name
    text = "\n\n".join([json.dumps(images[0].tolist()), json.dumps({name: images[1:2].tolist()})]).encode()
    for data, expected in ((npy.getvalue(), hashes), (npz.getvalue(), hashes), (text, hashes[:2])):
        feed(monkeypatch, data)
        result = mla("serve", MODEL, "--input", "-", *N4)
        assert result.status == 0, result.err
        check(result.out, expected)


def test_cycles_profile_and_a_file_of_lines(mla, tmp_path):
    out, profile = tmp_path / "lines.jsonl", tmp_path / "profile.json"
    result = mla(
        "serve",
        MODEL,
        "--requests",
        "70",
        "--target",
        "n4",
        "--out",
        out,
        "--profile",
        profile,
        "--conditions-at",
        "60:latency=400,bytes=1",
    )
    assert result.status == 0 and result.out == "", result.err
    found = [line for line in lines(out.read_text()) if "index" in line]
    assert len(found) == 70 and found[-1]["cycles"] > found[20]["cycles"] > 0
    document = json.loads(profile.read_text())
    assert document["schema_version"] == 1 and document["bottlenecks"]
    for layer in document["layers"]:
        assert layer["bound"] in ("compute", "bus", "bank", "weight_shift", "fuse", "dispatch")
        assert "bytes per cycle" in layer["evidence"] and layer["history"]
        assert layer["cycles"] == pytest.approx(sum(layer["where"].values()))
    quiet = mla("serve", MODEL, "--requests", "40", "--target", "n4")
    usual = [line["cycles"] for line in lines(quiet.out)]
    assert usual[5:40] == [line["cycles"] for line in found][5:40]  # counters are read in no time


def test_throttled_clock_is_noticed_within_nine_requests(mla, tmp_path):
    profile, change = tmp_path / "profile.json", 16
    options = (
        "--requests",
        "40",
        "--target",
        "n4",
        "--adapt",
        "--trials-per-request",
        "1",
        "--adapt-from",
        "60",
    )
    result = mla("serve", MODEL, *options, "--conditions-at", f"{change}:throttle=0.25", "--profile", profile)
    assert result.status == 0, result.err
    found = lines(result.out)
    cycles = {line["index"]: line["cycles"] for line in found if "index" in line}
    assert cycles[change + 6] == pytest.approx(cycles[change - 6] / 0.75, rel=0.01)
    (drift,) = [line for line in found if line.get("event") == "drift"]
    assert 0 <= drift["request"] - change + 4 <= 9 + 4  # requests in flight at the change are affected, too
    document = json.loads(profile.read_text())
    last = [layer["history"][-1] for layer in document["layers"]]
    assert [each["throttle"] for each in last] == pytest.approx([0.25] * len(last), abs=0.01)
    assert all(each["where"]["throttled"] == pytest.approx(each["cycles"] / 4, rel=0.02) for each in last)


def test_throttle_is_identified(mla):
    # Without trials, which take most of the time of a request, and which this does not depend on.
    options = ("--requests", "28", "--target", "n4", "--adapt", "--trials-per-request", "0", "--seed", "2")
    result = mla("serve", MODEL, *options, "--method", "random", "--conditions-at", "10:throttle=0.4")
    assert result.status == 0, result.err
    conditions = [line for line in lines(result.out) if line.get("event") == "conditions"]
    assert [each["throttle"] for each in conditions] == [0.4]
    assert [(each["latency"], each["bytes_per_cycle"]) for each in conditions] == [(100, 4)]


def test_synchronous_adaptation_is_reproducible(mla, tmp_path):
    path = tmp_path / "svdf.tflite"
    path.write_bytes(svdf(np.random.default_rng(4), activation=1))
    options = ("--requests", "6", "--target", "n4", "--adapt", "--trials-per-request", "1", "--seed", "2")
    first, second = mla("serve", path, *options), mla("serve", path, *options)
    assert first.status == 0 and first.out == second.out, first.err
    events = [line["event"] for line in lines(first.out) if "event" in line]
    assert {"reload", "rejected"} <= set(events)
    assert set(events) <= {"reload", "rollback", "kept", "rejected", "drift", "conditions"}
    assert "rejected candidate" in first.err


def test_adaptation_from_given_schedule_with_picture(mla, tmp_path):
    plain, picture, report, out = (tmp_path / name for name in ("plain.json", "p.svg", "r.json", "lines"))
    prepared = ModelCompiler(read_model(MODEL), load_target("n4"), CompileOptions(rounding="onnxruntime"))
    plain.write_text(naive_schedule(prepared.lowered(())).to_json())
    result = mla(
        "serve",
        MODEL,
        "--requests",
        "24",
        "--target",
        "n4",
        "--adapt",
        "--trials-per-request",
        "0",
        "--adapt-from",
        "10",
        "--schedule",
        plain,
        "--picture",
        picture,
        "--json",
        report,
        "--out",
        out,
    )
    assert result.status == 0 and result.out == "", result.err
    document = json.loads(report.read_text())
    assert document["schema_version"] == 1 and document["target"] == "n4" and document["reloads"] == 1
    (reload,) = [line for line in lines(out.read_text()) if line.get("event") == "reload"]
    assert reload["why"] == "first" and 10 <= reload["request"] <= 12
    assert document["cycles"][-1] < document["cycles"][8] / 1.3 and document["events"][0]["event"] == "reload"
    assert "reload at" in picture.read_text() and "reload at" in result.err


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "standard input is empty"),
        (b"{", "standard input, line 1: must be JSON"),
        (b'{"other": 1}', "missing input '"),
        (b"[[1, 2], [3]]", "not lists of different lengths"),
        (b'["a"]', "not str"),
        (b"[1, 2]", "not [2]"),
        (b"\x93NUMPY damaged", "must be a .npy or .npz file"),
        (b"PK damaged", "must be a .npy or .npz file"),
    ],
)
def test_bad_input_is_one_line(mla, monkeypatch, data, text):
    feed(monkeypatch, data)
    result = mla("serve", MODEL, "--input", "-", *N4)
    assert result.status == 2 and result.out == ""
    assert text in result.err.splitlines()[-1], result.err


def test_requests_before_a_bad_line_are_answered(mla, monkeypatch, images, hashes):
    feed(monkeypatch, json.dumps(images[0].tolist()).encode() + b"\n[7]\n")
    result = mla("serve", MODEL, "--input", "-", *N4)
    assert result.status == 2 and "standard input, line 2: input" in result.err
    check(result.out, hashes[:1])


def test_usage_errors_exit_2(complains, tmp_path):
    complains(2, "cannot be read", "serve", tmp_path / "absent.tflite", *N4)
    complains(2, "--requests: must be an integer of at least 1", "serve", MODEL, "--requests", "0")
    complains(2, "--trials-per-request requires --adapt", "serve", MODEL, "--trials-per-request", "1")
    complains(2, "--adapt-from requires --adapt", "serve", MODEL, "--adapt-from", "1")
    complains(2, "--schedule requires --adapt", "serve", MODEL, "--schedule", tmp_path / "x.json")
    complains(2, "x.json cannot be read", "serve", MODEL, "--adapt", "--schedule", tmp_path / "x.json")
    complains(2, "--picture needs --device rtl", "serve", MODEL, "--picture", tmp_path / "x.svg", *N4)
    complains(2, "--json - needs --out FILE", "serve", MODEL, "--json", "-")
    complains(2, "--adapt needs --device rtl", "serve", MODEL, "--adapt", *N4)
    for option in (("--batch", "4"), ("--batches", "1,2"), ("--skip", "x")):
        complains(2, f"{option[0]} cannot be combined with --reuse", "serve", MODEL, *option, "--reuse")
    given = ("--adapt", "--batches", "1,2", "--schedule", tmp_path / "x.json")
    complains(
        2, "--schedule cannot be combined with --batches: it is for one batch size", "serve", MODEL, *given
    )
    share = ("--accuracy-budget", "0.5%")
    for option in (("--adapt",), ("--reuse",), ("--batch", "4"), ("--batches", "1,2"), ("--skip", "x")):
        conflict = f"{option[0]} cannot be combined with an --accuracy-budget in percent"
        complains(2, conflict, "serve", MODEL, *option, *share)
    for option in (("--interval", "1"), ("--power-cap", "9"), ("--deadline", "9")):
        conflict = f"{option[0]} cannot be combined with an --accuracy-budget in percent"
        complains(2, conflict, "serve", MODEL, *option, *share)
    complains(2, "--accuracy-budget needs calibration samples", "serve", MODEL, *share)
    complains(2, "--adapt needs the model itself", "serve", tmp_path / "x.mla", "--adapt")
    complains(2, "invalid choice", "serve", MODEL, "--adapt", "--method", "luck")
    for text in ("5", "5:speed=3", "5:latency=x", "-1:latency=4", "5:latency=0", "5:bytes=0"):
        complains(2, "must be K:latency=CYCLES,bytes=RATE", "serve", MODEL, f"--conditions-at={text}")


def start_process(*arguments: object) -> subprocess.Popen:
    command = [sys.executable, "-m", "compiler.cli.main", "serve", MODEL, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.PIPE)


@pytest.mark.parametrize(
    ("adapt", "signum"), [((), signal.SIGINT), (("--adapt",), signal.SIGINT), (("--adapt",), signal.SIGTERM)]
)
def test_signal_while_serving(adapt, signum):
    """The requests in flight are served, and the run is completed: reports are made and models retrained."""
    with start_process("--requests", "1000000", "--target", "n4", *adapt) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert json.loads(first)["schema_version"] == 1
        os.kill(process.pid, signum)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + signum, err
    indices = [line["index"] for line in lines((first + out).decode()) if "index" in line]
    assert indices == list(range(len(indices)))
    assert f"mla serve: {len(indices)} requests" in err.decode() and "Traceback" not in err.decode()


def test_interrupt_while_waiting_for_input(images):
    with start_process("--input", "-", *N4) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write(json.dumps(images[0].tolist()).encode() + b"\n")
        process.stdin.flush()
        process.stdout.readline()
        os.kill(process.pid, signal.SIGINT)
        process.wait(timeout=60)
        err = process.stderr.read().decode()
    assert process.returncode == 130 and "mla serve: 1 request" in err, err


def test_closed_output_pipe():
    with start_process("--requests", "1000000", *N4) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=60) == 1
        assert "Traceback" not in process.stderr.read().decode()


def test_states_of_streams_are_kept_and_reset(mla, monkeypatch, tmp_path):
    data = svdf(np.random.default_rng(4), activation=1)
    path = tmp_path / "svdf.tflite"
    path.write_bytes(data)
    (x,) = compile(path, "n4").inputs
    samples = np.random.default_rng(0).integers(-128, 128, (3, *x.shape)).astype(np.int8)
    wanted = [
        hashlib.sha256(each.tobytes()).hexdigest()
        for (each,) in steps_in_litert(data, list(samples), "reference")
    ]
    streams = ["a", "b", "a", "b", "a"]
    requests = [
        {"x": samples[at].tolist(), "stream": name} for at, name in zip((0, 0, 1, 1, 0), streams, strict=True)
    ]
    requests[-1]["reset"] = True
    feed(monkeypatch, "\n".join(map(json.dumps, requests)).encode())
    result = mla("serve", path, "--input", "-", *N4)
    assert result.status == 0, result.err
    found = check(result.out, [wanted[at] for at in (0, 0, 1, 1, 0)])
    assert [line["stream"] for line in found] == streams
    for key, value, message in (
        ("stream", 3, "stream must be a text"),
        ("reset", 1, "reset must be true or false"),
    ):
        feed(monkeypatch, json.dumps({"x": samples[0].tolist(), key: value}).encode())
        result = mla("serve", path, "--input", "-", *N4)
        assert result.status == 2 and message in result.err, result.err


def test_models_with_states_are_tuned_while_serving(mla, tmp_path):
    path, (lines, plain) = tmp_path / "svdf.tflite", (tmp_path / "lines.jsonl", tmp_path / "plain.jsonl")
    path.write_bytes(svdf(np.random.default_rng(4), activation=1))
    serve = ("serve", path, "--requests", "8", "--target", "n4", "--seed", "3", "--out")
    result = mla(*serve, lines, "--adapt", "--trials-per-request", "1", "--method", "random")
    assert result.status == 0, result.err
    assert mla(*serve, plain, "--device", "golden").status == 0
    found = [json.loads(line) for line in lines.read_text().splitlines()]
    wanted = [json.loads(line)["outputs"] for line in plain.read_text().splitlines()]
    assert [line["outputs"] for line in found if "index" in line] == wanted
    assert "search lost" not in {line.get("event") for line in found}
    assert any(line.get("event") in ("reload", "rejected") for line in found)


def test_adaptation_without_layers_on_the_accelerator(mla, tmp_path):
    file = tmp_path / "host.onnx"
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
    found = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "host", [given], [found])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), file)
    options = ("--requests", "5", "--adapt", "--trials-per-request", "1", "--target", "n4")
    result = mla("serve", file, *options, "--db", tmp_path / "profiles.db")
    assert result.status == 0 and "5 requests" in result.err, result.err
