"""Tests of ablations of the language model: variants trained without one input or step, and their results."""

import json
from pathlib import Path

import pytest

from compiler.llm.data.examples import CORPUS
from compiler.llm.data.held_out import is_validation
from compiler.llm.data.trajectories import pack, read
from compiler.llm.model.weights import SHIPPED, load
from compiler.llm.training.pretrain import default_plan
from scripts import llm_ablations


def test_each_variant_omits_one_element() -> None:
    whole = default_plan(30, 10)
    plans = {variant: llm_ablations.plan(variant, whole) for variant in llm_ablations.VARIANTS}
    assert plans["nothing"] == whole
    assert [(each.profile, each.want) for each in plans.values()] == [
        (True, True),
        (False, True),
        (True, False),
        (True, True),
    ]
    assert {each.first.steps + each.then.steps for each in plans.values()} == {40}
    assert [each.then.steps for each in plans.values()] == [10, 10, 10, 0]


def test_all_variants_are_trained_and_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    trajectories = [each for each in read(CORPUS) if each.machine == "usual" and len(each.steps) == 15]
    pack(
        [
            *[each for each in trajectories if not is_validation(each)][:4],
            *[each for each in trajectories if is_validation(each)][:2],
        ],
        tmp_path / "small.xz",
    )
    folder = tmp_path / "ablations"
    options = ["--steps", 2, "--then", 2, "--layers", 1, "--samples", 4, "--workers", 1]

    def status(*more: object) -> int:
        where = ["--corpus", tmp_path / "small.xz", "--folder", folder, "--from", SHIPPED]
        monkeypatch.setattr("sys.argv", ["", *map(str, [*where, *options, *more])])
        return llm_ablations.main()

    assert status() == 0
    rows = json.loads((folder / "ablations.json").read_text("utf-8"))
    assert [row["without"] for row in rows] == [*llm_ablations.VARIANTS]
    assert all(len(row["layers"]) == 1 and len(row["layers"][0]["cycles"]) == 4 for row in rows)
    profiles = [load(folder / name / "model.safetensors")[0].profile for name in llm_ablations.VARIANTS]
    assert profiles == [True, False, True, True]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    assert status() == 0  # nothing is left to do
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert json.loads((folder / "ablations.json").read_text("utf-8")) == rows
    assert status("--corpus", str(tmp_path / "none.xz"), "--folder", str(tmp_path / "other")) == 2
    assert "none.xz" in capsys.readouterr().err
