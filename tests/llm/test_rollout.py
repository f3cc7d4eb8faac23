"""Answers to one question, all of them measured: what they cost holds, and files of them are not trusted."""

import json
import random

import pytest

from compiler.hpm.points import Op, Point
from compiler.llm.asking import Ask
from compiler.llm.changes import with_changes
from compiler.llm.corpus import rollout
from compiler.llm.corpus.rig import Rig
from compiler.llm.corpus.rollout import WORST, Group, rolled_out
from compiler.llm.edits import edits_of
from compiler.llm.weights import load
from compiler.llm.writer import SHIPPED
from compiler.schedule.schedule import Schedule
from compiler.specialize.edits.workshop import Workshop
from hw.errors import InputError

POINT = Point((6, 6, 16), (Op("conv", 32, 3),))


@pytest.mark.parametrize("part", [0.0, 1.0], ids=["schedules", "edits"])
def test_costs_are_those_of_a_new_measurement(devices, walk, part, monkeypatch):
    monkeypatch.setattr(rollout, "_EDITS", part)
    model = load(SHIPPED)[0]
    group = rolled_out(devices, walk, model, 6, random.Random(3))
    assert group is not None and group == rolled_out(devices, walk, model, 6, random.Random(3))
    assert group.ask is (Ask.EDITS if part else Ask.SCHEDULE) and group.ask.value in group.question
    assert len(group.answers) == len(group.costs) == 6
    rig = Rig(devices, "usual", POINT)
    workshop, ((name, first),) = Workshop(rig.first), rig.first.schedule.layers.items()
    (piece,) = workshop.pieces
    for words, cost in zip(group.answers, group.costs, strict=True):
        schedule = (
            workshop.with_edits({piece.name: edits_of(words)})
            if part
            else Schedule(rig.first.schedule.fusions, {name: with_changes(words, first)})
        )
        measured = rig.measured(rig.prepared.network(schedule))
        assert cost == (WORST if measured is None else min(measured.cycles / walk.steps[0].cycles, WORST))
    assert Group.of(json.loads(json.dumps(group.as_json()))) == group


def test_what_cannot_be_measured_costs_most(devices, walk, monkeypatch):
    monkeypatch.setattr(rollout, "_EDITS", 0.0)
    monkeypatch.setattr(Rig, "measured", lambda rig, network: rig_first if network is rig_first else None)
    rig_first = Rig(devices, "usual", POINT).first
    assert rolled_out(devices, walk, load(SHIPPED)[0], 2, random.Random(3)) is None  # not even as it was
    monkeypatch.undo()
    monkeypatch.setattr(rollout, "_EDITS", 0.0)
    real, calls = Rig.measured, []

    def only_the_first(rig, network):
        calls.append(network.digest)
        return real(rig, network) if len(calls) == 1 else None

    monkeypatch.setattr(Rig, "measured", only_the_first)
    group = rolled_out(devices, walk, load(SHIPPED)[0], 4, random.Random(3))
    assert group is not None and set(group.costs) <= {1.0, WORST} and WORST in group.costs
    assert len(set(calls[1:])) == len(calls[1:])  # each once


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ask": "ask nothing"}, "no answers with their costs"),
        ({"costs": [1.0]}, "2 answers must have as many costs, up to 3"),
        ({"costs": [1.0, 3.5]}, "up to 3"),
        ({"costs": [1.0, 0.0]}, "up to 3"),
        ({"costs": None}, "no answers with their costs"),
        ({"answers": [], "costs": []}, "must have words"),
        ({"answers": [["end"], []]}, "must have words"),
        ({"answers": [["end"], ["nonsense"]]}, "must have words"),
        ({"question": []}, "must have words"),
    ],
)
def test_other_files_are_refused(change, message):
    data = {"ask": "ask edits", "question": ["end"], "answers": [["end"], ["end"]], "costs": [1.0, 0.5]}
    assert Group.of(data).costs == [1.0, 0.5]
    with pytest.raises(InputError, match=message):
        Group.of(data | change)
