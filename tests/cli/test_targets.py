"""Targets are the TOML files of one folder, and every verb accepts the name of each file."""

import importlib
import shutil
import sys

import pytest

from hw import config

HELP = "n4, n8, n12w, n16, n16-bus32, n32, ulx3s-85f or a TOML file of the same fields"


@pytest.fixture
def one_more(tmp_path, monkeypatch) -> None:
    """Add a target to the folder."""
    folder = tmp_path / "targets"
    shutil.copytree(config.TARGETS, folder)
    (folder / "n12w.toml").write_text((folder / "n16.toml").read_text() + "line_depth = 512\n")
    monkeypatch.setattr(config, "TARGETS", folder)


def test_target_names_are_in_numeric_order():
    assert config.target_names()[:5] == ["n4", "n8", "n16", "n16-bus32", "n32"]
    assert config.targets_by_lanes() == {4: "n4", 8: "n8", 16: "n16", 32: "n32"}


@pytest.mark.usefixtures("one_more")
def test_new_file_adds_target(mla, complains, tmp_path):
    assert config.load_target("n12w").line_depth == 512
    assert config.targets_by_lanes()[16] == "n16"
    for verb in ("run", "tune", "exec", "verilog"):
        assert HELP in " ".join(mla(verb, "--help").out.split()), verb
    known = "target must be one of n4 n8 n12w n16 n16-bus32 n32 ulx3s-85f or an existing .toml file, not 'n5'"
    complains(2, known, "verilog", "-o", tmp_path / "x.v", "--target", "n5")


def test_conditions_and_training_use_targets_of_folder(monkeypatch):
    """Benchmark conditions and training data find the folder's targets by number of lanes."""
    from compiler.bench import networks_suite
    from compiler.llm.data import held_out

    names = [(each.name, each.target) for each in networks_suite.CONDITIONS if each.target != "n16"]
    assert names == [("N = 8", "n8"), ("N = 32", "n32")]
    others = {name: each.target for name, (each, _) in held_out.TRAINING.items() if each.target != "n16"}
    assert others == {"N = 4": "n4", "N = 8": "n8", "N = 32": "n32"}
    # The folder now lacks n4.
    fewer = {lanes: name for lanes, name in config.targets_by_lanes().items() if lanes != 4}
    monkeypatch.setattr(config, "targets_by_lanes", lambda: fewer)
    monkeypatch.delitem(sys.modules, held_out.__name__)
    monkeypatch.setattr("compiler.llm.data.held_out", held_out, raising=False)
    assert "N = 4" not in importlib.import_module(held_out.__name__).TRAINING
