"""Tests of `mla` with PyTorch models: user-defined functions, and their errors."""

import importlib
import json
import sys

import numpy as np
import pytest

from compiler.frontends.torch_module import load_reference

SOURCE = """
import torch
from torch import nn

class Branch(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x

class Fails(nn.Module):
    def forward(self, x):
        return x[10]

class Counted(nn.Module):
    def forward(self, x):
        return x, 3

class Sorted(nn.Module):
    def forward(self, x):
        return torch.linalg.svdvals(x)

class Pair(nn.Module):
    def forward(self, left, right):
        return left - 2 * right

def pair():
    return Pair(), (torch.zeros(1, 4), torch.zeros(1, 4))

def named_pair():
    return Pair(), {"right": torch.zeros(1, 4), "left": torch.zeros(1, 4)}

def small():
    print("user code says something")
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4))

def network():
    return small(), torch.zeros(1, 3, 6, 6)

def open_batch():
    return small(), torch.zeros(2, 3, 6, 6), {"input": {0: torch.export.Dim("batch")}}

def branch():
    return Branch(), torch.zeros(2, 3)

def fails():
    return Fails(), torch.zeros(2, 3)

def counted():
    return Counted(), torch.zeros(2, 3)

def unknown():
    return Sorted(), torch.zeros(3, 3)

def wrong_shape():
    return small(), torch.zeros(1, 5, 6, 6)

def raises():
    raise RuntimeError("no weights at hand")

def leaves():
    raise SystemExit("bye")

def nothing():
    pass

def many():
    return small(), 1, 2, 3

def number():
    return small(), 7

value = 3
"""
DATA = np.random.default_rng(5).standard_normal((3, 3, 6, 6)).astype(np.float32)


@pytest.fixture
def nets(tmp_path, monkeypatch):
    """Write a user's code and data into a folder and return the name of the module, which is unique to the test."""
    name = f"nets_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    (tmp_path / f"{name}_broken.py").write_text("def f(:\n")
    np.save(tmp_path / "data.npy", DATA)
    np.savez(tmp_path / "data.npz", input=DATA)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    importlib.invalidate_caches()
    return name


def test_function_returning_module_and_example(mla, nets):
    options = ("--device", "golden", "--json", "-", "--calibrate", "data.npy", "--input", "data.npz")
    result = mla("run", f"{nets}:network", *options, "--target", "n8")
    assert result.status == 0 and "user code says something" in result.err
    report = json.loads(result.out)
    assert report["model"] == f"{nets}:network" and report["outputs"]["output"]["shape"] == [3, 4]
    assert report["quantization"]["samples"] == 3 and report["quantization"]["outputs"][0]["sqnr_db"] > 30
    assert [layer["names"] for layer in report["layers"]][-1] == ["3/linear"]


@pytest.mark.parametrize("data", ["data.npy", "data.npz"])
def test_samples_replace_missing_example(mla, nets, data):
    result = mla("compile", f"{nets}:small", "-o", "net.mla", "--calibrate", data, "--target", "n8")
    assert result.status == 0, result.err
    again = mla("run", "net.mla", "--input", data, "--device", "golden", "--target", "n8", "--json", "-")
    assert json.loads(again.out)["outputs"]["output"]["shape"] == [3, 4]


def test_graph_prints_a_module(mla, nets):
    result = mla("graph", f"{nets}:network")
    assert result.status == 0 and result.out.startswith(f"graph {nets}.network(")
    assert "user code" not in result.out and "0/conv2d" in result.out
    staged = mla("graph", f"{nets}:small", "--calibrate", "data.npy", "--stage", "layers", "--target", "n8")
    assert staged.status == 0 and "3/linear" in staged.out


def test_size_of_dynamic_dimensions(mla, nets):
    result = mla("graph", f"{nets}:open_batch", "--size", "batch=5")
    assert result.status == 0 and "%input: float32[5, 3, 6, 6]" in result.out


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (
            "branch",
            "branch cannot be exported: GuardOnDataDependentSymNode: Could not guard on data-dependent",
        ),
        (
            "branch",
            "line 7, in forward); what depends on values must be written with torch.where or torch.cond",
        ),
        ("fails", "fails cannot be exported: IndexError: index 10 is out of bounds"),
        ("fails", "line 13, in forward)"),
        ("counted", "counted: output_1 must be a tensor, not 3"),
        ("unknown", "svd"),
        ("wrong_shape", "wrong_shape cannot be exported: RuntimeError"),
        ("small", "return (module, example inputs), or give a file of samples"),
        ("raises", "raises failed: RuntimeError: no weights at hand ("),
        ("leaves", "leaves failed: SystemExit: bye ("),
        ("nothing", "nothing: must be a torch.nn.Module, not None"),
        (
            "many",
            "many: must return a module, (module, example inputs) or (module, example inputs, dynamic shapes)",
        ),
        ("number", "number: example inputs must be tensors or arrays, not 7"),
        ("value", "value: must be a function, not 3"),
        (
            "netwrok",
            "has no netwrok; its functions: Branch, Fails, Counted, Sorted, Pair, pair, named_pair, small",
        ),
    ],
)
def test_export_errors_are_one_message(mla, nets, function, text):
    result = mla("run", f"{nets}:{function}", "--device", "golden")
    lines = [line for line in result.err.splitlines() if line != "user code says something"]
    assert (result.status, result.out, len(lines)) == (2, "", 1)
    assert lines[0].startswith(f"mla run: {nets}:{function}") and text in lines[0]


def test_import_errors_are_one_message(complains, nets):
    complains(2, f"{nets}_broken cannot be imported: SyntaxError: ", "run", f"{nets}_broken:f")
    complains(2, "no_such_module:f: there is no module no_such_module", "run", "no_such_module:f")


def labeled(tmp_path, nets: str, count: int = 12):
    """Write labeled samples whose labels are the classes that PyTorch computes; return the file."""
    torch = importlib.import_module("torch")
    images = np.random.default_rng(4).normal(size=(count, 3, 6, 6)).astype(np.float32)
    with torch.no_grad():
        labels = load_reference(f"{nets}:small").model.eval()(torch.from_numpy(images)).argmax(1).numpy()
    np.savez(tmp_path / "labeled.npz", x=images, y=labels)
    return tmp_path / "labeled.npz"


GOLDEN = ("--target", "n4", "--device", "golden", "--json", "-")


@pytest.mark.parametrize("name", ["network", "small"])
def test_accuracy_beside_pytorch(mla, nets, tmp_path, name):
    arguments = ("eval", f"{nets}:{name}", "--data", labeled(tmp_path, nets), *GOLDEN)
    result = mla(*arguments)
    assert result.status == 0, result.err
    assert "quantizing with the first 12 samples of" in result.err
    found = json.loads(result.out)
    assert (found["reference"], found["reference_top1"], found["samples"]) == ("PyTorch", 1, 12)
    assert found["same_class"] >= 11
    assert found["same_class"] == round(12 * found["top1"])
    assert json.loads(mla(*arguments, "--no-reference").out)["reference"] is None


@pytest.mark.parametrize("name", ["pair", "named_pair"])
def test_accuracy_with_several_inputs_and_a_bound_one(mla, nets, tmp_path, name):
    rng = np.random.default_rng(5)
    a, b = (rng.normal(size=(6, 1, 4)).astype(np.float32) for _ in range(2))
    np.savez(tmp_path / "pair.npz", left=a, right=b, y=(a - 2 * b).reshape(6, 4))
    np.savez(tmp_path / "one.npz", left=a, y=(a - 2).reshape(6, 4))
    for given in (("pair.npz",), ("one.npz", "--bind", "right=1")):
        result = mla("eval", f"{nets}:{name}", "--metric", "mae", "--data", *given, *GOLDEN)
        found = json.loads(result.out)
        assert found["reference_mae"] < 1e-6 < found["mae"] < 0.05
