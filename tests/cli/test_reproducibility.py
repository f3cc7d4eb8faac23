"""The same input gives the same files and reports in every process, whatever the hash seed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from compiler.api import compile
from scripts.networks.digits import MODEL
from tests.support.float_graphs import BLOCK, IMAGE, WITHIN, numbers
from tests.support.onnx_models import model, node

#: Network with host nodes between accelerator nodes, and with several inputs and outputs that need conversions.
HOSTED = [
    node("Conv", "x w b", "c", kernel_shape=[3, 3], pads=[1] * 4),
    node("Relu", "c", "r"),
    node("LogSoftmax", "r", "l", axis=1),
    node("Conv", "l d", "e", kernel_shape=[3, 3], pads=[1] * 4, group=8),
    node("Transpose", "e", "t", perm=[0, 2, 3, 1]),
    node("LogSoftmax", "t", "y"),
    node("Relu", "e", "z"),
    node("Add", "r q", "v"),
    node("TopK", "v k", "top places", axis=1),
]
ROOT = Path(__file__).parents[2]
CASES = ("block", "hosted", "digits")


@pytest.fixture
def folder(tmp_path):
    made = model(BLOCK, {"x": numbers(*IMAGE)}, ["y"], WITHIN)
    (tmp_path / "block.onnx").write_bytes(made.SerializeToString())
    inputs = {"x": numbers(*IMAGE), "q": numbers(1, 8, 12, 12)}
    outputs = ["y", "z", "v", "top", "places"]
    constants = WITHIN | {"k": np.array([2])}
    made = model(HOSTED, inputs, outputs, {name: constants[name] for name in "wbdk"})
    (tmp_path / "hosted.onnx").write_bytes(made.SerializeToString())
    (tmp_path / "digits.onnx").write_bytes(MODEL.read_bytes())
    many = {
        name: np.concatenate([numbers(*value.shape, seed=i) for i in range(3)])
        for name, value in inputs.items()
    }
    np.savez(tmp_path / "hosted.npz", x=many["x"], q=many["q"])
    np.savez(tmp_path / "block.npz", x=many["x"])
    return tmp_path


def results(folder, case, seed):
    """Compile and run a model in a separate process; return all files and reports by name."""
    outputs = {
        "compile": (
            "-o",
            "made.mla",
            "--listing",
            "made.s",
            "--save-schedule",
            "made.sched",
            "--json",
            "made.json",
        ),
        "run": ("--device", "golden", "--json", "run.json", "--out", "run.npz"),
    }
    given = () if case == "digits" else ("--calibrate", f"{case}.npz")
    texts = {}
    for verb, options in outputs.items():
        command = [
            sys.executable,
            "-m",
            "compiler.cli.main",
            verb,
            f"{case}.onnx",
            *options,
            *given,
            "--no-cache",
        ]
        environment = os.environ | {
            "PYTHONHASHSEED": str(seed),
            "PYTHONPATH": str(ROOT),
        }
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        texts[f"{verb} prints"] = [line for line in done.stdout.splitlines() if " s" not in line]
        texts[f"{verb} says"] = [line for line in done.stderr.splitlines() if "on the host" in line]
    reports = {name: json.loads((folder / name).read_text()) for name in ("made.json", "run.json")}
    for report in reports.values():
        del report["compile_seconds"]
    files = {name: (folder / name).read_bytes() for name in ("made.mla", "made.s", "made.sched")}
    return texts | reports | files


@pytest.mark.parametrize("case", CASES)
def test_results_are_equal_in_all_processes(folder, case):
    first, *others = (results(folder, case, seed) for seed in (1, 2, 3))
    assert bool(first["made.json"]["host_ops"]) == (case != "digits")
    for other in others:
        assert other == first


def test_host_nodes_are_reported_in_model_order(folder):
    network = compile(folder / "hosted.onnx", seed=1, cache=False)
    assert network.graph is not None
    host = [each.node for each in network.host]
    assert len(host) > 4 and host == [node.name for node in network.graph if node.name in host]
