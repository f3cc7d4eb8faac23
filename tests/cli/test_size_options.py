"""All verbs that compile accept `--size`, `--bind` and the DRAM options."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.onnx_models import model as onnx_model
from tests.support.onnx_models import node, small


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Write an .onnx file with a symbolic dimension and return its path."""
    path = tmp_path / "model.onnx"
    path.write_bytes(small(node("Relu", "x", "y"), shape=("n", "width")).SerializeToString())
    return path


def test_size_at_every_verb(mla, complains, model: Path, tmp_path: Path) -> None:
    package, size = tmp_path / "model.mla", ("--size", "width=5", "--target", "n4")
    for width in (5, 6):  # the cache must distinguish sizes
        report = mla(
            "run", model, "--device", "golden", "--target", "n4", "--size", f"width={width}", "--json", "-"
        )
        assert json.loads(report.out)["outputs"]["y"]["shape"] == [1, width]
    complains(2, "give it as --size width=N", "run", model, "--device", "golden")
    assert mla("compile", model, "-o", package, *size).status == 0
    report = json.loads(mla("run", package, "--device", "golden", "--target", "n4", "--json", "-").out)
    assert report["outputs"]["y"]["shape"] == [1, 5]
    complains(2, f"{package} is already compiled: --size", "run", package, *size)
    profile = mla("profile", model, "--size", "width", "--target", "n4")
    assert profile.status == 2 and "must be NAME=N" in profile.err
    profile = mla("profile", model, *size, "--json", "-")
    assert json.loads(profile.out)["outputs"]["y"]["shape"] == [1, 5]


def test_dram_options_do_not_change_outputs(mla, complains, model: Path, tmp_path: Path) -> None:
    made, package = [], tmp_path / "model.mla"
    run = ("compile", model, "-o", package, "--size", "width=5", "--target", "n4", "--no-cache")
    for more in ((), ("--dram-latency", 40, "--dram-bytes-per-cycle", 8)):
        report = json.loads(mla(*run, "--json", "-", *more).out)
        ran = json.loads(mla("run", package, "--device", "golden", "--target", "n4", "--json", "-").out)
        made.append(ran["outputs"])
    assert report["dram"] == {"latency": 40, "bytes_per_cycle": 8, "throttle": 0.0, "used": True}
    assert made[0] == made[1]
    complains(2, "must be an integer in 1..1000000", *run, "--dram-latency", 0)


def test_inputs_bound_to_constants(mla, complains, tmp_path: Path) -> None:
    path, package, file = tmp_path / "sum.onnx", tmp_path / "sum.mla", tmp_path / "b.npy"
    inputs = {name: np.zeros((2, 3), np.float32) for name in ("a", "b")}
    path.write_bytes(onnx_model([node("Add", "a b", "y")], inputs, ["y"]).SerializeToString())
    np.save(file, np.ones((2, 3), np.float32))
    target = ("--device", "golden", "--target", "n4")
    for value in ("2.5", file):
        report = json.loads(mla("run", path, "--bind", f"b={value}", *target, "--json", "-").out)
        assert list(report["outputs"]) == ["y"]
    complains(2, "there is no input 'c'", "run", path, "--bind", "c=1", *target)
    complains(2, "must be NAME=VALUE", "run", path, "--bind", "b", *target)
    complains(2, "VALUE must be a number", "run", path, "--bind", "b=much", *target)
    complains(2, "input 'b' is bound twice", "run", path, "--bind", "b=1", "--bind", "b=2", *target)
    assert mla("compile", path, "-o", package, "--bind", "b=1", "--target", "n4").status == 0
    complains(2, f"{package} is already compiled: --bind", "run", package, "--bind", "b=1", *target)
    assert "b" not in mla("graph", path, "--bind", "b=1").out.split()
