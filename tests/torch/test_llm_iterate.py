"""Tests of training on the language model's own answers, from a small corpus to the learning curve."""

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from compiler.llm.data.held_out import is_validation
from compiler.llm.data.trajectories import read
from compiler.llm.model.weights import SHIPPED, load
from compiler.llm.training.pretrain import fine_tune, fine_tuning_plan
from hw.errors import InputError
from scripts import llm_iterate


def test_rounds_and_resumption(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    folder, out = tmp_path / "rounds", tmp_path / "own.xz"

    def status(*more: object) -> int:
        options = [
            "--networks",
            3,
            "--answers",
            2,
            "--steps",
            3,
            "--layers",
            1,
            "--samples",
            4,
            "--workers",
            1,
            *more,
        ]
        monkeypatch.setattr(
            "sys.argv", ["", "--corpus", str(corpus), "--folder", str(folder), *map(str, options)]
        )
        return llm_iterate.main()

    assert status("--rounds", 1, "--pack", out) == 0
    points = json.loads((folder / "curve.json").read_text("utf-8"))
    assert [each["round"] for each in points] == [0, 1] and points[1]["networks"] == 3
    before, after = (
        {(each.machine, each.index): each.steps for each in read(path)} for path in (corpus, out)
    )
    assert before.keys() == after.keys()
    assert all(after[key][: len(before[key])] == before[key] for key in before)
    more = [len(after[key]) - len(before[key]) for key in before]
    assert sum(more) == points[1]["answers"] and 0 < sum(map(bool, more)) <= 3
    ElementTree.parse(folder / "curve.svg")
    found, about = load(folder / "1" / "model.safetensors")
    model = found.weights
    assert about["asked"] == 3
    assert any(not np.array_equal(array, model[name]) for name, array in load(SHIPPED)[0].weights.items())

    # A run that resumes from a journal with a truncated last line has the same results.
    journal = folder / "1" / "0.jsonl"
    whole = journal.read_text("utf-8")
    journal.write_text(whole[: len(whole) * 2 // 3], "utf-8")
    (folder / "1" / "model.safetensors").unlink()
    (folder / "judged.1.jsonl").unlink()
    assert status("--rounds", 1) == 0
    assert journal.read_text("utf-8") == whole
    again = load(folder / "1" / "model.safetensors")[0].weights
    assert all(np.array_equal(array, again[name]) for name, array in model.items())
    assert json.loads((folder / "curve.json").read_text("utf-8")) == points
    assert status("--rounds", 1) == 0  # nothing is left to do
    assert json.loads((folder / "curve.json").read_text("utf-8")) == points

    capsys.readouterr()
    assert status("--rounds", 1, "--answers", 3) == 2
    assert "was created with another --answers: choose another --folder" in capsys.readouterr().err
    assert status("--rounds", -1) == 2 and "--rounds must be at least 0, not -1" in capsys.readouterr().err


def test_too_few_networks_to_learn_from(corpus: Path, tmp_path: Path) -> None:
    trajectories = [each for each in read(corpus) if not is_validation(each)]
    asked = {(trajectories[0].machine, trajectories[0].index)}
    with pytest.raises(InputError, match="1 networks are too few for training"):
        fine_tune(load(SHIPPED)[0], trajectories, asked, fine_tuning_plan(3, 0), tmp_path)
