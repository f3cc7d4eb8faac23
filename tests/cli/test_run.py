"""Tests of `mla run`: reports, samples, batches, packages and options."""

import json

import numpy as np
import pytest

from compiler.api import compile as compile_graph
from compiler.runtime.package_writer import to_bytes
from hw.isa.counters import CAUSES
from tests.lowering.test_partition import compiled
from tests.lowering.test_strict import model as edge_model
from tests.support.float_graphs import numbers
from tests.support.onnx_models import model as onnx_model
from tests.support.onnx_models import node
from tests.support.trained_networks import Reference, model

KWS = model("kws_ref_model")
INPUT = "input_1"
BOUNDS = {"compute", "bus", "bank", "weight_shift", "fuse", "dispatch"}


@pytest.fixture
def samples(tmp_path):
    path = tmp_path / "samples.npy"
    np.save(path, np.random.default_rng(3).integers(-128, 128, (3, 49, 10, 1)).astype(np.int8))
    return path


def test_report_of_rtl(mla, samples, tmp_path):
    out = tmp_path / "out.npz"
    result = mla("run", KWS, "--input", samples, "--limit", 2, "--json", "-", "--out", out)
    assert result.status == 0
    report = json.loads(result.out)
    assert (report["schema_version"], report["target"], report["device"], report["samples"]) == (
        1,
        "n16",
        "rtl",
        2,
    )
    assert report["dram"] == {"latency": 100, "bytes_per_cycle": 16, "throttle": 0.0}
    assert set(report["where"]) == set(CAUSES)
    assert sum(report["where"].values()) == report["cycles"]
    assert sum(layer["cycles"] for layer in report["layers"]) == report["cycles"]
    assert {layer["bound"] for layer in report["layers"]} <= BOUNDS
    assert all(set(layer["layers"]) <= set(layer["names"]) for layer in report["layers"])
    assert report["macs"] == 2 * 2_656_768
    assert report["utilization"] == report["macs"] / (report["cycles"] * 256)
    # Layers overlap, so that only the bound of the whole network holds for their cycles together.
    assert report["floor_cycles"] <= report["floor_layerwise_cycles"]
    assert report["floor_cycles"] < report["cycles"]
    assert report["steady_cycles_per_sample"] <= 1.05 * report["cycles_per_sample"]
    assert report["host_ops"] == [] and report["load_cycles"] > 0 and report["energy_uj"] > 0
    wanted = Reference(KWS)
    with np.load(out) as arrays:
        (name,) = arrays.files
        assert arrays[name].shape == (2, 12) and arrays[name].dtype == np.int8
        for sample, found in zip(np.load(samples), arrays[name], strict=False):
            assert np.abs(found.astype(int) - wanted({"x": sample[None]})[0]).max() <= 1
    assert report["outputs"][name]["shape"] == [2, 12]


def test_golden_model_reports_no_cycles(mla, samples):
    golden, rtl = (
        json.loads(mla("run", KWS, "--input", samples, "--limit", 1, "--json", "-", "--device", device).out)
        for device in ("golden", "rtl")
    )
    assert golden["outputs"] == rtl["outputs"]
    for key in (
        "cycles",
        "cycles_per_sample",
        "steady_cycles_per_sample",
        "load_cycles",
        "utilization",
        "where",
    ):
        assert golden[key] is None
    assert all(layer["cycles"] is None for layer in golden["layers"])
    assert golden["macs"] == rtl["macs"] and golden["dram_bytes_read"] == rtl["dram_bytes_read"]


def test_table_and_random_input(mla):
    result = mla("run", KWS, "--target", "n8", "--device", "golden", "--seed", 4)
    assert result.status == 0
    assert "one random sample (seed 4)" in result.err
    assert "fully_connected_11" in result.out and "sha256" in result.out


def test_unsuitable_files_are_rejected(complains, samples, tmp_path):
    run = ("run", KWS, "--device", "golden")
    complains(2, "nothing.tflite: cannot be read: No such file", "run", "nothing.tflite")
    complains(2, "cannot be read", *run, "--input", tmp_path / "nothing.npy")
    (tmp_path / "text.npy").write_text("hello")
    complains(2, "must be a .npy or .npz file of numbers", *run, "--input", tmp_path / "text.npy")
    np.save(tmp_path / "shape.npy", np.zeros((2, 49, 10), np.int8))
    complains(
        2, "must be int8[samples, 49, 10, 1], not int8[2, 49, 10]", *run, "--input", tmp_path / "shape.npy"
    )
    np.save(tmp_path / "dtype.npy", np.zeros((2, 49, 10, 1), np.int16))
    wrong = "not int16[2, 49, 10, 1]; its scale is 0.584703, its zero point 83"
    complains(2, wrong, *run, "--input", tmp_path / "dtype.npy")
    np.save(tmp_path / "nan.npy", np.full((1, 49, 10, 1), np.nan))
    complains(2, "'input_1' must be finite numbers", *run, "--input", tmp_path / "nan.npy")
    np.save(tmp_path / "none.npy", np.zeros((0, 49, 10, 1), np.int8))
    complains(2, "at least one", *run, "--input", tmp_path / "none.npy")
    np.save(tmp_path / "object.npy", np.array([{}], object), allow_pickle=True)
    complains(2, "must be a .npy or .npz file of numbers", *run, "--input", tmp_path / "object.npy")
    np.savez(tmp_path / "names.npz", wrong=np.zeros((1, 49, 10, 1), np.int8))
    np.savez_compressed(tmp_path / "damaged.npz", input_1=np.zeros((9, 49, 10, 1), np.int8))
    data = bytearray((tmp_path / "damaged.npz").read_bytes())
    data[60:70] = b"\xff" * 10
    (tmp_path / "damaged.npz").write_bytes(data)
    complains(2, "must be a .npy or .npz file of numbers", *run, "--input", tmp_path / "damaged.npz")
    complains(2, "arrays must be named", *run, "--input", tmp_path / "names.npz")
    complains(2, "cannot be written", *run, "--out", tmp_path / "no" / "folder.npz")
    complains(2, "limit: must be an integer of at least 1", *run, "--limit", "0")
    complains(2, "target must be one of", *run, "--target", "n17")


def test_batch_changes_cycles_only(mla, samples, tmp_path):
    one, two = (
        json.loads(mla("run", KWS, "--input", samples, "--batch", batch, "--json", "-").out)
        for batch in (1, 2)
    )
    assert one["outputs"] == two["outputs"]
    assert (one["batch"], two["batch"], two["samples"]) == (1, 2, 3)
    assert two["macs"] == one["macs"]
    assert two["floor_cycles"] <= two["cycles"] and sum(two["where"].values()) == two["cycles"]
    assert sum(layer["cycles"] for layer in two["layers"]) == two["cycles"]
    assert sum(layer["macs"] for layer in two["layers"]) == two["macs"]


@pytest.mark.parametrize(("limit", "batches"), [(1, 1), (2, 1), (3, 2)])
def test_padded_batch(mla, samples, limit, batches):
    """Cycles per sample refer to the given samples, even if the last batch is padded."""
    run = ("run", KWS, "--input", samples, "--limit", limit, "--batch", 2, "--json", "-")
    report = json.loads(mla(*run).out)
    each = report["cycles_per_sample"]
    assert (
        abs(each * limit - report["cycles"]) <= report["cycles"] / 100
    )  # full batches take nearly equal numbers of cycles
    assert each >= report["floor_cycles"] / limit and round(each, 1) == each
    assert report["steady_cycles_per_sample"] * limit >= report["floor_cycles"]
    assert abs(report["utilization"] * each * 256 / (report["macs"] / limit) - 1) < 0.01
    full = json.loads(mla("run", KWS, "--batch", 2, "--input", samples, "--limit", 2, "--json", "-").out)
    assert report["floor_cycles"] == batches * full["floor_cycles"]


def test_package_keeps_batch(mla, complains, samples, tmp_path):
    package = tmp_path / "kws.mla"
    assert json.loads(mla("compile", KWS, "-o", package, "--batch", 2, "--json", "-").out)["batch"] == 2
    options = ("--input", samples, "--device", "golden", "--json", "-")
    found = json.loads(mla("run", package, *options).out)
    assert (found["batch"], found["origin"]) == (2, "file")
    assert found["outputs"] == json.loads(mla("run", KWS, *options).out)["outputs"]
    complains(2, "was compiled for batch size 2, not for --batch 3", "run", package, "--batch", 3)
    complains(2, "argument --batch: must be an integer in 1..4096, not '0'", "run", KWS, "--batch", 0)


def test_origin_of_network_is_reported(mla, tmp_path, monkeypatch):
    monkeypatch.setenv("MLA_CACHE", str(tmp_path / "cache"))
    run = ("run", KWS, "--device", "golden", "--json", "-")
    told = [mla(*run, *more) for more in ((), (), ("--no-cache",))]
    reports = [json.loads(each.out) for each in told]
    assert [each["origin"] for each in reports] == ["compiled", "cache", "compiled"]
    assert all(each["compile_seconds"] > 0 for each in reports)
    assert ["using cached compilation of " in each.err for each in told] == [False, True, False]
    assert reports[0]["outputs"] == reports[1]["outputs"] == reports[2]["outputs"]


def test_options_that_conflict_with_package(mla, complains, tmp_path):
    _, network = compiled(3)
    package, edges = tmp_path / "mixed.mla", tmp_path / "edges.mla"
    package.write_bytes(to_bytes(network))
    (node,) = network.host
    run = ("--device", "golden", "--target", "n8")
    complains(2, f"not for the accelerator: {node.node} ({node.op}): ", "run", package, *run, "--strict")
    complains(
        2,
        "was compiled with --rounding reference, not xnnpack",
        "run",
        package,
        *run,
        "--rounding",
        "xnnpack",
    )
    edges.write_bytes(to_bytes(compile_graph(edge_model(), "n8")))
    for options in ((), ("--strict", "--rounding", "reference")):
        report = json.loads(mla("run", edges, *run, *options, "--json", "-").out)
        assert [each["edge"] for each in report["host_ops"]] == [True] * 4


def test_random_sample_has_valid_indices(mla, tmp_path):
    nodes = [node("Gather", "t ids", "e"), node("MatMul", "e w", "y")]
    constants = {"t": numbers(20, 8), "w": numbers(8, 4)}
    path, package = tmp_path / "words.onnx", tmp_path / "words.mla"
    ids = {"ids": np.zeros((1, 5), np.int64)}
    path.write_bytes(onnx_model(nodes, ids, ["y"], constants).SerializeToString())
    run = ("--device", "golden", "--json", "-", "--seed", 6)
    first = mla("run", path, *run)
    assert first.status == 0, first.err
    assert mla("compile", path, "-o", package, "--seed", 6).status == 0
    again = mla("run", package, *run)
    assert json.loads(again.out)["outputs"] == json.loads(first.out)["outputs"]
