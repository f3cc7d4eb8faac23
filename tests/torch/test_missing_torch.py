"""Tests of messages about a missing PyTorch or an invalid model name; they run without PyTorch."""

import sys

import pytest

from compiler.api import compile
from compiler.frontends.model import default_rounding
from compiler.frontends.torch_module import is_reference
from hw.errors import InputError

HOW = "`make setup EXTRAS=torch`, or `pip install -e '.[torch]'` in the checkout, installs it"


@pytest.fixture
def without(monkeypatch):
    """Return a function that makes a package appear not to be installed."""
    return lambda name: monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("verb", [("run",), ("compile", "-o", "net.mla"), ("graph",)])
def test_message_names_installation_command(complains, without, verb):
    without("torch")
    complains(2, f"PyTorch models need torch, which is not installed: {HOW}", *verb, "json:network")


def test_exporter_is_required(complains, without):
    pytest.importorskip("torch", reason="the extra `torch` is not installed: make setup EXTRAS=torch")
    without("onnxscript")
    complains(2, f"PyTorch models need onnxscript, which is not installed: {HOW}", "run", "json:network")


@pytest.mark.parametrize("name", ["net.py", "net.pt", "weights.pth"])
def test_pickled_models_are_rejected(complains, name):
    complains(
        2, "pickled models are not loaded (unsafe); pass module:function, or export to ONNX", "run", name
    )


def test_exported_programs_are_named_by_a_function(complains):
    complains(2, "write a function that returns torch.export.load('program.pt2')", "run", "program.pt2")


def test_module_references(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("net:make", "package.net:make", "net:Class.make", "_a1:b2"):
        assert is_reference(name) and default_rounding(name) == "onnxruntime"
    for name in ("net", "net:", ":make", "a/b:c", "net.onnx", "1a:b", "a:b:c", "a..b:c", "a:b-c"):
        assert not is_reference(name)
    (tmp_path / "net:make").touch()
    assert not is_reference("net:make")


def test_invalid_model_type():
    with pytest.raises(InputError, match=r"a model must be a file, module:function, .*not 3"):
        compile(3)  # pyright: ignore[reportArgumentType]
