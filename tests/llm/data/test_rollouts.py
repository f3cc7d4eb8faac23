"""Groups of measured answers to one question have reproducible costs, and their files are checked."""

import json
import random

import pytest

from compiler.llm.data import self_training
from compiler.llm.data.collect import MeasureHarness
from compiler.llm.data.self_training import MAX_COST_RATIO, RolloutGroup, roll_out
from compiler.llm.model.weights import SHIPPED, load
from compiler.llm.tokens.layer_prompt import Ask
from compiler.llm.tokens.program_tokens import decode_edits
from compiler.llm.tokens.schedule_delta import decode_schedule_delta
from compiler.schedule.schedule import Schedule
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.edits.editable_programs import EditablePrograms
from hw.errors import InputError

POINT = CalibrationNetwork((6, 6, 16), (CalibrationOp("conv", 32, 3),))


@pytest.mark.parametrize("part", [0.0, 1.0], ids=["schedules", "edits"])
def test_costs_equal_a_new_measurement(devices, trajectory, part, monkeypatch):
    monkeypatch.setattr(self_training, "_EDITS_SHARE", part)
    model = load(SHIPPED)[0]
    group = roll_out(devices, trajectory, model, 6, random.Random(3))
    assert group is not None and group == roll_out(devices, trajectory, model, 6, random.Random(3))
    assert group.ask is (Ask.EDITS if part else Ask.SCHEDULE) and group.ask.value in group.prompt
    assert len(group.answers) == len(group.costs) == 6
    harness = MeasureHarness(devices, "usual", POINT)
    editable, ((name, first),) = EditablePrograms(harness.first), harness.first.schedule.layers.items()
    (piece,) = editable.programs
    for words, cost in zip(group.answers, group.costs, strict=True):
        schedule = (
            editable.with_edits({piece.name: decode_edits(words)})
            if part
            else Schedule(harness.first.schedule.fusions, {name: decode_schedule_delta(words, first)})
        )
        measured = harness.measure(harness.prepared.network(schedule))
        assert cost == (
            MAX_COST_RATIO
            if measured is None
            else min(measured.cycles / trajectory.steps[0].cycles, MAX_COST_RATIO)
        )
    assert RolloutGroup.from_json(json.loads(json.dumps(group.as_json()))) == group


def test_unmeasurable_answers_cost_the_most(devices, trajectory, monkeypatch):
    monkeypatch.setattr(self_training, "_EDITS_SHARE", 0.0)
    monkeypatch.setattr(
        MeasureHarness, "measure", lambda harness, network: rig_first if network is rig_first else None
    )
    rig_first = MeasureHarness(devices, "usual", POINT).first
    assert (
        roll_out(devices, trajectory, load(SHIPPED)[0], 2, random.Random(3)) is None
    )  # not even the unchanged network
    monkeypatch.undo()
    monkeypatch.setattr(self_training, "_EDITS_SHARE", 0.0)
    real, calls = MeasureHarness.measure, []

    def fails_after_the_first(harness, network):
        calls.append(network.digest)
        return real(harness, network) if len(calls) == 1 else None

    monkeypatch.setattr(MeasureHarness, "measure", fails_after_the_first)
    group = roll_out(devices, trajectory, load(SHIPPED)[0], 4, random.Random(3))
    assert group is not None and set(group.costs) <= {1.0, MAX_COST_RATIO} and MAX_COST_RATIO in group.costs
    assert len(set(calls[1:])) == len(calls[1:])  # each network is measured once


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ask": "ask nothing"}, "not a group of answers with costs"),
        ({"costs": [1.0]}, "2 answers need the same number of costs, each at most 3"),
        ({"costs": [1.0, 3.5]}, "each at most 3"),
        ({"costs": [1.0, 0.0]}, "each at most 3"),
        ({"costs": None}, "not a group of answers with costs"),
        ({"answers": [], "costs": []}, "must consist of tokens"),
        ({"answers": [["end"], []]}, "must consist of tokens"),
        ({"answers": [["end"], ["nonsense"]]}, "must consist of tokens"),
        ({"question": []}, "must consist of tokens"),
    ],
)
def test_invalid_groups_are_rejected(change, message):
    data = {"ask": "ask edits", "question": ["end"], "answers": [["end"], ["end"]], "costs": [1.0, 0.5]}
    assert RolloutGroup.from_json(data).costs == [1.0, 0.5]
    with pytest.raises(InputError, match=message):
        RolloutGroup.from_json(data | change)
