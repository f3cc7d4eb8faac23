"""The same input gives the same files and reports in every process, whatever the hash seed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

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


#: Runs several commands in one process, since starting a process takes longer than compiling a small network. Each
#: command's lines on standard output and standard error follow a line with its number.
COMMANDS = """
import json, sys
from compiler.cli.main import main
for number, command in enumerate(json.loads(sys.argv[1])):
    for stream in (sys.stdout, sys.stderr):
        print(f"{chr(10)}command {number}", file=stream, flush=True)
    if main(command):
        sys.exit(1)
"""


def results(folder, seed):
    """Compile and run all models in a separate process; return the files and reports of each, by name."""
    verbs = {
        "compile": {"-o": "mla", "--listing": "s", "--save-schedule": "sched", "--json": "made.json"},
        "run": {"--json": "run.json", "--out": "run.npz"},
    }
    commands = {
        (case, verb): [
            verb,
            f"{case}.onnx",
            *(text for name, suffix in options.items() for text in (name, f"{case}.{suffix}")),
            *(("--device", "golden") if verb == "run" else ()),
            *(() if case == "digits" else ("--calibrate", f"{case}.npz")),
            "--no-cache",
        ]
        for case in CASES
        for verb, options in verbs.items()
    }
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps([*commands.values()])],
        cwd=folder,
        env=os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = {case: {} for case in CASES}
    texts = zip(
        *(re.split(r"^command \d+\n", each, flags=re.M)[1:] for each in (done.stdout, done.stderr)),
        strict=True,
    )
    for (case, verb), (printed, said) in zip(commands, texts, strict=True):
        found[case][f"{verb} prints"] = [line for line in printed.splitlines() if " s" not in line]
        found[case][f"{verb} says"] = [line for line in said.splitlines() if "on the host" in line]
    for case in CASES:
        for name in ("made.json", "run.json"):
            found[case][name] = json.loads((folder / f"{case}.{name}").read_text())
            del found[case][name]["compile_seconds"]
        found[case] |= {name: (folder / f"{case}.{name}").read_bytes() for name in ("mla", "s", "sched")}
    return found


def test_results_are_equal_in_all_processes(folder):
    first, *others = (results(folder, seed) for seed in (1, 2, 3))
    for case in CASES:
        assert bool(first[case]["made.json"]["host_ops"]) == (case != "digits"), case
        for other in others:
            assert other[case] == first[case], case


def test_host_nodes_are_reported_in_model_order(folder):
    network = compile(folder / "hosted.onnx", seed=1, cache=False)
    assert network.graph is not None
    host = [each.node for each in network.host]
    assert len(host) > 4 and host == [node.name for node in network.graph if node.name in host]
