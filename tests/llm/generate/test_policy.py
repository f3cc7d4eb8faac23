"""On-line policy: training on recorded answers, the gate on held-out layers, and its use by the generator."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from compiler.llm.generate import policy
from compiler.llm.generate.policy import (
    compared,
    current_weights,
    is_better,
    layer_trials,
    learned,
    merged,
    parts,
    retrain_policy,
    weigher,
)
from compiler.llm.generate.requests import fields_of
from compiler.llm.generate.sampler import draw
from compiler.llm.tokens.schedule_delta import ScheduleDeltaGrammar, encode_schedule_delta, position_of
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.options import CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile, LayerCycles, Measurement
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.policy_versions import LayerTrials
from compiler.tuning_db.session import DatabaseSession
from hw.config import load_target
from tests.llm.lm_fixtures import random_model

BASE = LayerSchedule()
FIELDS = ("rows", "columns", "interleave", "prefetch")
MODEL = random_model(3)
#: A network with four different layers, each with a counter of its own.
POINT = CalibrationNetwork(
    (8, 8, 16),
    (
        CalibrationOp("conv", 24, 3),
        CalibrationOp("conv", 32),
        CalibrationOp("conv", 16, 3),
        CalibrationOp("conv", 8),
    ),
)


def recorded(layer: int, better: bool = True, count: int = 16) -> LayerTrials:
    """Return answers to a made-up prompt: interleaving changes the cost by a fifth, other fields by little."""
    rng = Random(layer)
    answers: dict[tuple[str, ...], float] = {}
    while len(answers) < count:
        on = rng.random() < 0.5
        schedule = replace(BASE, rows=rng.randint(2, 40), columns=rng.randint(2, 9), interleave=on)
        cost = (0.8 if on == better else 1.2) * rng.uniform(0.98, 1.02)
        answers[tuple(encode_schedule_delta(schedule, BASE))] = cost
    prompt = ("machine", "16", "layer", "conv", str(layer), "now", "end", "cost", "ask schedule", "answer")
    return LayerTrials(f"{layer:064x}", "0" * 64, "conv", FIELDS, prompt, tuple(answers.items()))


def test_position_of_words() -> None:
    rng, grammar = Random(1), ScheduleDeltaGrammar()
    for _ in range(50):
        tokens: list[str] = []
        while after := grammar.after(tokens):
            heads = [token for token in after if token.startswith("set ")]
            assert ("end" in after) == (position_of(tokens) == "")
            tokens.append(rng.choice(heads[:1] if heads and rng.random() < 0.8 else list(after)))


def test_challenger_is_better_on_held_out_layers() -> None:
    trials = [recorded(layer) for layer in range(6)]
    trained, held_out = parts(trials)
    assert len(trained) == 4 and len(held_out) == 2
    weights = learned(MODEL, trained)
    before, after = compared(MODEL, None, held_out), compared(MODEL, weights, held_out)
    assert is_better(before, after) and max(after) < 0.95 * min(before)
    assert not is_better(after, before) and not is_better(before, before)
    assert learned(MODEL, trained) == weights


def test_equal_layers_are_in_the_same_part() -> None:
    twice = [recorded(layer) for layer in range(3)] + [replace(recorded(1), prompt=("machine", "answer"))]
    trained, held_out = parts(twice)
    assert not {each.layer for each in trained} & {each.layer for each in held_out}
    assert len(trained) + len(held_out) == 4
    assert parts(twice[:2]) == (twice[:2], [])  # too few layers


def test_answers_of_a_layer_are_merged() -> None:
    one = recorded(1)
    first, second = replace(one, answers=one.answers[:10]), replace(one, answers=one.answers[8:])
    (both,) = merged([first], [second])
    assert dict(both.answers) == dict(one.answers)
    many = [recorded(layer, count=1) for layer in range(100)]
    assert merged(many, []) == tuple(many[-96:])


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Any]:
    """Yield a stand-in for the session of a search, with a database."""
    with TuningDatabase(tmp_path / "own.db", secret=b"own") as database:
        yield SimpleNamespace(database=database)


def test_gate_replaces_and_keeps_the_champion(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "load", lambda _path: (MODEL, {}))
    found: list[LayerTrials] = []
    monkeypatch.setattr(policy, "layer_trials", lambda _session, _model: found)
    assert retrain_policy(session) is None and current_weights(session) is None
    found += [recorded(layer) for layer in range(6)]
    first = retrain_policy(session)
    assert first is not None and first.accepted and first.after < first.before
    assert (first.trained, first.held_out) == (4, 2)
    assert current_weights(session) == first.weights
    assert retrain_policy(session) is None  # nothing new was measured
    # Layers with the opposite costs are trained on, but the held-out layers disagree: the champion is kept.
    digests = sorted(each.layer for each in found)
    held = set(digests[1::3])
    found[:] = [
        replace(
            recorded(int(each.layer, 16), each.layer in held, 24),
            prompt=(*each.prompt[:-1], "cost", "answer"),
        )
        for each in found
    ]
    second = retrain_policy(session)
    assert second is not None and not second.accepted and second.after > second.before
    assert current_weights(session) == first.weights
    assert len(second.trials) == 12  # the trials of both
    assert [each.accepted for each in session.database.policies(policy.shipped_digest())] == [True, False]


def test_generator_prefers_words_with_weights() -> None:
    weights = {"conv": {"": {"set overlap": 4.0}, "set overlap": {"1": 4.0}}}
    assert weigher(weights, "pool") is None and weigher(None, "conv") is None
    prompt, grammar = recorded(1).prompt, ScheduleDeltaGrammar(FIELDS)

    class Accepting:
        """Grammar that accepts every answer."""

        after = staticmethod(grammar.after)

        def ends(self, tokens: object) -> bool:
            return True

    def share(words: Any) -> float:
        answers = draw(
            MODEL, LANGUAGE, prompt, Accepting(), 64, np.random.default_rng(0), weigh=weigher(words, "conv")
        )
        return sum("set overlap" in answer.tokens for answer in answers) / len(answers)

    assert share(weights) > share(None) + 0.3


def test_trials_of_a_network_are_answers(tmp_path: Path) -> None:
    """Each measured schedule of a layer is an answer; its cost is relative to the layer's first schedule."""
    conditions = HardwareProfile(load_target("n16"))
    prepared = ModelCompiler(POINT.graph(), conditions.config, CompileOptions(rounding="reference"))
    first = prepared.network().schedule
    with TuningDatabase(tmp_path / "own.db", secret=b"own") as database:
        session = DatabaseSession(database, prepared, conditions, "latency")
        for number in range(9):
            layers = {
                name: replace(each, prefetch=3 + number) if number else each
                for name, each in first.layers.items()
            }
            entries = tuple(LayerCycles((name,), 1000 - 10 * number, {"useful": 1}) for name in layers)
            result = Measurement(sum(each.cycles for each in entries), entries, 1.0, 1, True, 1)
            session.put(Schedule(first.fusions, layers), result)
        trials = layer_trials(session, MODEL)
        assert len(trials) == 4 and {each.word for each in trials} == {"conv"}
        for each in trials:
            assert len(each.prompt) < 100 and each.prompt[0] == "machine"
            assert [cost for _, cost in each.answers] == pytest.approx([1 - 0.01 * n for n in range(1, 9)])
            assert each.answers[0][0] == ("set prefetch", "4", "end")
            assert set(each.fields) <= set(fields_of_all(prepared))
        version = retrain_policy(session)
        assert version is not None and version.trained + version.held_out == 4


def fields_of_all(prepared: ModelCompiler) -> set[str]:
    """Return the names of the schedule fields of all layers of a network."""
    return {
        name
        for stage in prepared.lowered(prepared.fusions)
        for layer in stage.layers
        for name in fields_of(layer)
    }
