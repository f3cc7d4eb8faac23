"""Tests of the files of measurements for the language model, and of the examples generated from them."""

import json
import random
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path

import pytest

from compiler.ir.identity import restored, stored
from compiler.llm.data.collect import FIRST_TRANSFORMER, corpus_indices
from compiler.llm.data.examples import examples
from compiler.llm.data.held_out import HELD_OUT, MACHINES, TRAINING, is_held_out, key_of
from compiler.llm.data.trajectories import (
    CorpusJournal,
    EditTrajectory,
    EditVariant,
    Trajectory,
    TrajectoryStep,
    changed_fields,
    pack,
    read,
)
from compiler.llm.tokens.layer_prompt import BEST, WANTED, want_of
from compiler.llm.tokens.schedule_delta import decode_schedule_delta
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.pipeline import ModelCompiler
from compiler.schedule.schedule import LayerSchedule
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp, transformers
from compiler.tuning.edits.edit import Move, Split
from hw.errors import InputError
from hw.isa.counters import CAUSES

POINT = CalibrationNetwork((4, 4, 16), (CalibrationOp("conv", 32, 3), CalibrationOp("depthwise", 0, 3)))
WHERE = [100] + [0] * (len(CAUSES) - 2) + [60]


def _walk(index: int = 1, machine: str = "usual") -> Trajectory:
    costs = [
        (-1, -1, {}, 1000),
        (0, 0, {"rows": 2}, 900),
        (0, 0, {"rows": 1}, 1200),
        (1, 1, {"prefetch": 4}, 880),
    ]
    steps = [
        TrajectoryStep(base, layer, changes, cycles, {0: 600, 1: cycles - 600}, {0: WHERE, 1: WHERE})
        for base, layer, changes, cycles in costs
    ]
    first = [{"rows": 4, "taper": True}, {"prefetch": 256, "joined": True}]
    variants = [
        EditVariant(-1, None, 880, WHERE),
        EditVariant(0, Split(3, 2, 1, 4), 850, WHERE),
        EditVariant(1, Move(-2, 3), 840, WHERE),
    ]
    edited = EditTrajectory(3, "conv", variants) if index % 2 else None
    return Trajectory(machine, index, POINT, first, steps, edited)


def test_journal_drops_a_truncated_entry(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.jsonl"
    journal = CorpusJournal(path)
    journal.add(_walk(1))
    journal.add(_walk(2))
    path.write_text(path.read_text("utf-8")[:-9], "utf-8")
    assert CorpusJournal(path).done == {("usual", 1)}
    assert read(path) == [_walk(1)]


def test_packed_files_do_not_depend_on_the_order(tmp_path: Path) -> None:
    trajectories = [_walk(2), _walk(1), _walk(1, "N = 4")]
    pack(trajectories, tmp_path / "a.xz")
    pack(reversed(trajectories), tmp_path / "b.xz")
    assert (tmp_path / "a.xz").read_bytes() == (tmp_path / "b.xz").read_bytes()
    assert read(tmp_path / "a.xz") == [trajectories[2], trajectories[1], trajectories[0]]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("", "another version"),
        ("{}\n", "another version"),
        ("[1]\n", "another version"),
        ('{"format":"mla-llm-corpus","version":1}\n{}\n', r"a\.jsonl:2: damaged"),
        ('{"format":"mla-llm-corpus","version":1}\n[]\n', r"a\.jsonl:2: damaged"),
        ('{"format":"mla-llm-corpus","version":1}\nnonsense\n', r"a\.jsonl:2: damaged"),
    ],
)
def test_foreign_files_are_rejected(tmp_path: Path, change: str, says: str) -> None:
    (tmp_path / "a.jsonl").write_text(change, "utf-8")
    with pytest.raises(InputError, match=says):
        read(tmp_path / "a.jsonl")


def test_step_derived_from_a_later_one_is_rejected(tmp_path: Path) -> None:
    data = _walk().as_json()
    data["steps"][1][0] = 3
    text = '{"format":"mla-llm-corpus","version":1}\n' + json.dumps(data) + "\n"
    (tmp_path / "a.jsonl").write_text(text, "utf-8")
    with pytest.raises(InputError, match="must be derived from an earlier one"):
        read(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (0, 9, "must refer to an existing step"),
        (0, None, "not measurements"),
        (2, [[0, [1, 2], 9, WHERE]], "from an earlier one"),
        (2, [[-1, [], 9, WHERE], [1, [1, 2], 9, WHERE]], "from an earlier one"),
        (2, [[-1, [], 9, [1]]], "by cause"),
        (2, [[-1, [], 9, WHERE], [0, [1, 2, 3, 4, 5], 9, WHERE]], "not measurements"),
    ],
)
def test_invalid_edits_are_rejected(place: int, value: object, says: str) -> None:
    data = _walk().as_json()
    data["edited"][place] = value
    with pytest.raises(ValueError, match=says):
        Trajectory.from_json(data)


def test_edits_that_lead_to_a_variant() -> None:
    edited = _walk().edited
    assert (
        edited is not None and edited.edits(2) == (Split(3, 2, 1, 4), Move(-2, 3)) and edited.edits(0) == ()
    )


def test_invalid_packed_files_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.xz").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "a.xz")
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "none.xz")


def test_schedules_of_a_step_follow_its_changes() -> None:
    first, second = _walk().schedules(3)
    assert (first.rows, first.split_last_tile, second.prefetch, second.same_program_as_previous) == (
        2,
        True,
        4,
        True,
    )


def test_examples_are_pairs_of_steps_that_differ_in_one_layer() -> None:
    trajectory = _walk()
    found = list(examples(trajectory))
    # The first layer has three schedules and the second has two; each schedule is paired with each of its layer.
    assert len(found) == 3 * 3 + 2 * 2
    for example in found:
        layer = 0 if example.subject.layer.name == found[0].subject.layer.name else 1
        wanted = decode_schedule_delta(example.answer, example.subject.schedule)
        assert wanted in [trajectory.schedules(number)[layer] for number in range(4)]
        LANGUAGE.encode([*example.prompt(), *example.answer, *example.prompt(best=True, profile=False)])
    slower = next(each for each in found if each.ratio > 1 and "1" in each.answer)
    assert slower.ratio == pytest.approx(1 + 200 / 600) and not slower.best
    assert [each.ratio for each in found if each.best and each.answer != ("end",)]


def test_words_of_a_question() -> None:
    assert want_of(0.1) == "want 0" and want_of(1.0) == "want 8" and want_of(99) == f"want {len(WANTED)}"
    (example,) = [each for each in examples(_walk()) if each.ratio == pytest.approx(1 - 20 / 300)]
    assert example.prompt()[-2:] == [want_of(example.ratio), "answer"]
    assert BEST in example.prompt(want=False) and BEST in example.prompt(best=True)
    assert "cause useful" in example.prompt() and "cause useful" not in example.prompt(profile=False)


def test_layers_of_benchmark_networks_are_held_out() -> None:
    assert is_held_out(
        CalibrationNetwork((1, 1, 128), (CalibrationOp("dense", 128),))
    )  # a layer of the autoencoder benchmark
    assert key_of(CalibrationOp("depthwise", 0, 3), (25, 5, 64)) == "depthwise 25x5x64 to 64, 3x3 / 1"
    points = [CalibrationNetwork((5, 7, c), (CalibrationOp("conv", 24, 3),)) for c in range(1, 400)]
    assert 20 <= sum(map(is_held_out, points)) <= 60
    held_out = next(filter(is_held_out, points))
    assert is_held_out(replace(held_out, ops=(*held_out.ops, CalibrationOp("dense", 10))))


def test_parts_of_transformers_become_layers() -> None:
    machine = MACHINES["usual"]
    points = {point.family: point for point in islice(transformers(16, random.Random(0)), 60)}
    assert {"dense", "attention", "norm", "softmax", "gelu", "dense+gelu+dense"} <= points.keys()
    for point in points.values():
        network = ModelCompiler(point.graph(), machine.conditions.config, machine.options).network()
        assert len(network.codes) == 1 and not network.host
    assert max(point.shape[2] for point in points.values()) > 256
    names = ("usual", "N = 8")
    drawn = list(islice(corpus_indices(0, FIRST_TRANSFORMER, 2, names), 20))
    assert {name for name, _ in drawn} == set(names) and drawn[1][1] == FIRST_TRANSFORMER + 2


def test_layers_of_published_transformers_are_held_out() -> None:
    for tokens, op, width in (
        (1, CalibrationOp("dense", 512), 128),
        (16, CalibrationOp("attention", groups=2), 128),
    ):
        assert is_held_out(CalibrationNetwork((tokens, 1, width), (op,)))


def test_training_and_held_out_machines_are_disjoint() -> None:
    assert not set(HELD_OUT) & set(TRAINING)
    assert not set(HELD_OUT.values()) & {machine for machine, _ in TRAINING.values()}


@pytest.mark.parametrize("name", [field.name for field in fields(LayerSchedule)])
def test_changes_of_every_field_are_stored(name):
    default = LayerSchedule()
    value = getattr(default, name)
    if isinstance(value, str):  # `order`, the only one
        other = replace(default, **{name: "channels"})
    else:
        other = replace(default, **{name: not value if isinstance(value, bool) else value + 1})
    for base, schedule in ((default, other), (other, default)):
        changes = changed_fields(schedule, base)
        assert len(changes) == 1
        assert restored(LayerSchedule, stored(base) | changes) == schedule
