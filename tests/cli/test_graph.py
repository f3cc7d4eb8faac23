"""Tests of `mla graph`: listings, stages and pictures of a model's graph."""

import json
from collections import Counter
from xml.etree import ElementTree

import numpy as np
import pytest

from compiler.passes import FORMER_NAMES
from scripts.networks.digits import MODEL


def test_listing(mla):
    result = mla("graph", MODEL)
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("graph digits_int8(\n    %image: int8[1, 1, 8, 8]")


def test_stages(mla):
    result = mla("graph", MODEL, "--stage", "scheduled")
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("digits_int8: scheduled, N = 16\n")
    assert "\n-- conv2_sum\n" in result.out
    early, late = (
        mla("graph", MODEL, "--stage", stage, "--format", "json") for stage in ("imported", "placed")
    )
    assert json.loads(early.out)["graph"]["stage"] == "imported"
    assert json.loads(late.out)["graph"]["memories"]["sp"] == [262144, 8]


def test_target_option(mla):
    assert "N = 8\n" in mla("graph", MODEL, "--stage", "layers", "--target", "n8").out


@pytest.mark.parametrize(
    ("name", "form"), [("a.svg", "svg"), ("a.dot", "dot"), ("a.json", "json"), ("a", "text")]
)
def test_file_extension_selects_format(mla, tmp_path, name, form):
    path = tmp_path / name
    assert mla("graph", MODEL, "--stage", "layers", "-o", path) == (0, "", "")
    assert path.read_text() == mla("graph", MODEL, "--stage", "layers", "--format", form).out


def test_picture(mla, tmp_path):
    path = tmp_path / "picture"
    assert mla("graph", MODEL, "--format", "svg", "-o", path) == (0, "", "")
    assert ElementTree.fromstring(path.read_text()).tag.endswith("svg")


def test_bad_graph_arguments_are_one_line_errors(complains, tmp_path):
    complains(2, "stage must be one of imported, fold_constants", "graph", MODEL, "--stage", "drawn")
    complains(2, "timeline, plan, not 'drawn'", "graph", MODEL, "--stage", "drawn")
    complains(2, f"{tmp_path} cannot be written: it is a folder", "graph", MODEL, "-o", tmp_path)
    complains(2, "cannot be written: No such file", "graph", MODEL, "-o", tmp_path / "absent" / "a.svg")
    complains(2, "--format: invalid choice: 'png'", "graph", MODEL, "--format", "png")
    complains(2, "target must be one of", "graph", MODEL, "--stage", "layers", "--target", "n5")
    complains(2, "absent.onnx", "graph", tmp_path / "absent.onnx", "--stage", "placed")
    assert list(tmp_path.iterdir()) == []


def test_former_pass_names_are_accepted_as_stages(mla):
    """Each former name of a pass selects the same stage as the current name of the pass."""
    for former, current in FORMER_NAMES.items():
        assert mla("graph", MODEL, "--stage", former) == mla("graph", MODEL, "--stage", current)


@pytest.fixture
def repeated(tmp_path):
    """Return a file of eight images, of which every second one equals the one before."""
    images = np.random.default_rng(0).integers(-128, 128, (4, 1, 8, 8)).astype(np.int8)
    path = tmp_path / "images.npy"
    np.save(path, np.repeat(images, 2, axis=0))
    return path


def test_plan_shows_the_decisions_of_serve(mla, tmp_path, repeated):
    options = (MODEL, "--reuse", "--input", repeated, "--requests", "20", "--device", "golden")
    plan = mla("graph", *options, "--stage", "plan", "--format", "json")
    assert plan.status == 0
    served = mla("serve", *options, "--no-db", "--out", tmp_path / "lines")
    assert served.status == 0
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    found = json.loads(plan.out)["graph"]["plan"]
    decisions = {(each["variant"], each["why"]): each["requests"] for each in found["decisions"]}
    assert decisions == Counter((each["variant"], each["why"]) for each in lines)
    assert found["guards"] == {"reused": 10, "computed": 10}
    assert (found["option"], found["requests"], found["profile"][0]["repeated"]) == ("--reuse", 20, 10)


def test_plan_without_input_or_strategy(mla):
    """All nodes run on the host, so that no program can follow the data."""
    hosts = [each for op in ("conv2d", "dense", "max_pool2d", "add", "clip") for each in ("--host", op)]
    result = mla("graph", MODEL, "--stage", "plan", "--device", "golden", "--enable", "place_on_host", *hosts)
    assert result.status == 0
    assert "no input given" in result.out
    rejected = [line for line in result.out.splitlines() if line.startswith("strategy --")]
    assert len(rejected) > 3 and all("rejected" in line for line in rejected)
    assert "has no layer on the accelerator" in result.out


def test_bad_arguments_of_plans_are_one_line_errors(complains, tmp_path, repeated):
    plan = ("graph", MODEL, "--stage", "plan", "--device", "golden")
    for option in (("--input", repeated), ("--requests", 3), ("--device", "rtl"), ("--reuse",)):
        complains(2, f"{option[0]} requires --stage plan", "graph", MODEL, *option)
    complains(2, "--reuse-regions requires --stage plan", "graph", MODEL, "--reuse-regions")
    complains(2, "--batches requires --stage plan", "graph", MODEL, "--stage", "layers", "--batches", "1,2")
    complains(2, "--requests requires --input", *plan, "--requests", 3)
    complains(2, "absent.npy: cannot be read", *plan, "--input", tmp_path / "absent.npy")
    complains(2, "--skip cannot be combined with --reuse", *plan, "--reuse", "--skip", "image")
    complains(2, "there is no tensor and no node 'nothing'", *plan, "--skip", "nothing")
    complains(2, "is already compiled", "graph", tmp_path / "a.mla", "--stage", "plan")
    complains(2, "has no regions that could be computed alone", *plan, "--reuse-regions")
    np.save(tmp_path / "small.npy", np.zeros((3, 1, 7, 8), np.int8))
    complains(2, "small.npy", *plan, "--input", tmp_path / "small.npy", "--reuse")
    (tmp_path / "text.npy").write_text("no array")
    complains(2, "must be a .npy or .npz file", *plan, "--input", tmp_path / "text.npy")
