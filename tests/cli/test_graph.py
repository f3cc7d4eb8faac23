"""Tests of `mla graph`: listings, stages and pictures of a model's graph."""

import json
from xml.etree import ElementTree

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
    complains(2, "timeline, not 'drawn'", "graph", MODEL, "--stage", "drawn")
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
