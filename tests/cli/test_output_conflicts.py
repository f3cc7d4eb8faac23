"""No verb overwrites a file that it reads, under any name, or writes two outputs to one file."""

import argparse
import importlib
import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data

from compiler.cli.options import check_files, check_outputs, unwatch_files
from hw.errors import InputError
from scripts.networks.digits import MODEL


def test_check_outputs(tmp_path):
    there, link, new = tmp_path / "there", tmp_path / "link", tmp_path / "new"
    there.write_bytes(b"")
    link.symlink_to(there)
    with pytest.raises(InputError, match="link is an input: the output must be another file"):
        check_outputs([new, link], [None, there])
    with pytest.raises(InputError, match="there is an input"):
        check_outputs([], [there], str(there))
    with pytest.raises(InputError, match="new is given for two outputs"):
        check_outputs([new, None, tmp_path / "." / "new"])
    check_outputs([Path("/dev/null"), Path("/dev/null"), new], [there, Path("/dev/null")], "-")
    assert there.read_bytes() == b"" and not new.exists()


def test_direct_inputs_are_not_overwritten(complains, tmp_path):
    text, network = tmp_path / "p.s", tmp_path / "m.onnx"
    text.write_text("    halt\n")
    network.write_bytes(MODEL.read_bytes())
    complains(2, f"{text} is an input", "asm", text, "-o", text)
    complains(2, f"{network} is an input", "compile", network, "-o", network)
    complains(2, f"{network} is an input", "run", network, "--out", network)
    complains(2, f"{network} is an input", "run", network, "--json", network)
    complains(2, f"{network} is an input", "profile", network, "--trace", network)
    complains(2, f"{network} is an input", "graph", network, "-o", network)
    assert (text.read_text(), network.read_bytes()) == ("    halt\n", MODEL.read_bytes())


@pytest.fixture
def files(tmp_path, mla, monkeypatch):
    """Write a model with external weights, samples, a schedule, programs and a target into the current folder."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(15)
    weights = [numpy_helper.from_array(rng.normal(size=(6, 6)).astype(np.float32), each) for each in "ab"]
    x, y = (helper.make_tensor_value_info(each, TensorProto.FLOAT, [1, 6]) for each in "xy")
    nodes = [helper.make_node("MatMul", ["x", "a"], ["h"]), helper.make_node("MatMul", ["h", "b"], ["y"])]
    graph = helper.make_graph(nodes, "external", [x], [y], weights)
    versions = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=versions, ir_version=8), "whole.onnx")
    Path("w").mkdir()
    for tensor in weights:
        Path(f"w/{tensor.name}.data").write_bytes(tensor.raw_data)
        set_external_data(tensor, f"w/{tensor.name}.data")
        tensor.ClearField("raw_data")
    onnx.save(
        helper.make_model(
            helper.make_graph(nodes, "external", [x], [y], weights), opset_imports=versions, ir_version=8
        ),
        "m.onnx",
    )
    np.save("samples.npy", rng.normal(size=(2, 6)).astype(np.float32))
    Path("own.toml").write_text("n = 8\n")
    assert (
        mla(
            "compile", "whole.onnx", "-o", "m.mla", "--calibrate", "samples.npy", "--save-schedule", "s.json"
        ).status
        == 0
    )
    Path("p.s").write_text("    halt\n")
    assert mla("asm", "p.s", "-o", "p.mlap").status == 0
    return tmp_path


QUANTIZED = ("--calibrate", "samples.npy")
GOLDEN = ("--device", "golden", "--input", "samples.npy")
#: Commands with {} in place of the output, and the files that each command reads.
VERBS = [
    (("compile", "m.onnx", *QUANTIZED, "-o", "{}"), "m.onnx samples.npy"),
    (("compile", "m.onnx", *QUANTIZED, "--schedule", "s.json", "-o", "{}"), "s.json"),
    (("compile", "m.onnx", *QUANTIZED, "-o", "new.mla", "--listing", "{}"), "m.onnx w/a.data w/b.data"),
    (("compile", "m.onnx", *QUANTIZED, "-o", "new.mla", "--save-schedule", "{}"), "m.onnx w/b.data"),
    (
        ("compile", "whole.onnx", "-o", "new.mla", "--target", "own.toml", "--json", "{}"),
        "whole.onnx own.toml",
    ),
    (("run", "m.onnx", *QUANTIZED, *GOLDEN, "--out", "{}"), "m.onnx w/a.data w/b.data samples.npy"),
    (("run", "m.onnx", *QUANTIZED, *GOLDEN, "--json", "{}"), "m.onnx w/a.data w/b.data samples.npy"),
    (("run", "m.mla", *GOLDEN, "--json", "{}"), "m.mla samples.npy"),
    (("profile", "m.onnx", *QUANTIZED, "--trace", "{}"), "m.onnx w/a.data samples.npy"),
    (("profile", "m.onnx", *QUANTIZED, "--report", "{}"), "m.onnx w/b.data"),
    (("profile", "m.onnx", *QUANTIZED, "--json", "{}"), "m.onnx w/b.data"),
    (("graph", "m.onnx", "--format", "text", "-o", "{}"), "m.onnx w/a.data w/b.data"),
    (
        ("graph", "m.onnx", *QUANTIZED, "--stage", "layers", "--format", "text", "-o", "{}"),
        "m.onnx w/a.data samples.npy",
    ),
    (("asm", "p.s", "-o", "{}"), "p.s"),
    (("asm", "p.s", "--target", "own.toml", "-o", "{}"), "p.s own.toml"),
    (("asm", "p.s", "--network", "m.mla", "-o", "{}"), "p.s m.mla"),
    (("validate", "p.s", "--json", "{}"), "p.s"),
    (("validate", "p.mlap", "--pinned", "p.s", "--json", "{}"), "p.mlap p.s"),
    (("validate", "m.mla", "--json", "{}"), "m.mla"),
    (("validate", "p.s", "--target", "own.toml", "--json", "{}"), "own.toml"),
    (("bench", "gemm", "--case", "8x8x8", "--target", "own.toml", "--json", "{}"), "own.toml"),
    (("verilog", "--target", "own.toml", "-o", "{}"), "own.toml"),
    (("fpga", "--board", "ulx3s-85f", "--target", "own.toml", "--json", "{}"), "own.toml"),
]


@pytest.mark.parametrize(
    ("arguments", "read"), VERBS, ids=lambda value: value[0] if isinstance(value, tuple) else ""
)
def test_inputs_are_not_overwritten_under_any_name(mla, files, arguments, read):
    def contents():
        return {path: path.read_bytes() for path in sorted(files.rglob("*")) if path.is_file()}

    for name in read.split():
        Path("soft").symlink_to(name)
        os.link(name, "hard")
        before = contents()
        for output in (name, f"../{files.name}/{name}", "soft", "hard"):
            result = mla(*(output if each == "{}" else each for each in arguments))
            assert (result.status, result.out) == (2, ""), output
            assert f"{output} is an input: the output must be another file\n" in result.err
        assert contents() == before
        Path("soft").unlink()
        Path("hard").unlink()


@pytest.mark.parametrize(
    "arguments",
    [
        ("compile", "whole.onnx", "-o", "new", "--listing", "other"),
        ("compile", "whole.onnx", "-o", "new", "--json", "other"),
        ("run", "whole.onnx", "--device", "golden", "--out", "new", "--json", "other"),
        ("profile", "whole.onnx", "--trace", "new", "--report", "other"),
    ],
)
def test_two_outputs_to_one_file_are_rejected(complains, files, arguments):
    Path("other").symlink_to("new")
    complains(2, "other is given for two outputs: they must be different files", *arguments)
    assert not Path("new").exists()


def test_imported_python_file_is_an_input(tmp_path, monkeypatch):
    """An imported Python file is an input, whether Python compiles it or uses cached byte code."""
    monkeypatch.syspath_prepend(tmp_path)
    text = tmp_path / "watched_module.py"
    text.write_text("")
    for _ in range(2):
        check_files(argparse.Namespace(output=text), "output")
        with pytest.raises(InputError, match=r"watched_module\.py is an input"):
            importlib.import_module("watched_module")
        unwatch_files()
        importlib.import_module("watched_module")
        monkeypatch.delitem(sys.modules, "watched_module")


def test_outputs_can_be_read_later(mla, files):
    assert mla("run", "whole.onnx", *GOLDEN, *QUANTIZED, "--out", "out.npz").status == 0
    assert mla("compile", "whole.onnx", "-o", "again.mla", *QUANTIZED).status == 0
    assert np.load("out.npz")["y"].shape == (2, 6)
    assert mla("run", "again.mla", *GOLDEN).status == 0
