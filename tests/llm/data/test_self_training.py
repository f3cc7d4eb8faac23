"""Tests of the model's answers as further steps of trajectories, their evaluation, and the chart of rounds."""

import random
from dataclasses import replace
from math import prod

import pytest

from compiler.llm.data.collect import Devices, MeasureHarness
from compiler.llm.data.examples import examples
from compiler.llm.data.held_out import is_held_out, is_validation
from compiler.llm.data.self_training import SamplingOptions, extend, is_usable, networks_of_round
from compiler.llm.data.trajectories import Trajectory, TrajectoryStep
from compiler.llm.evaluation import Sampled, figures
from compiler.llm.model.weights import SHIPPED, load
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.visualize.charts import draw_rounds
from hw.errors import InputError, WorkError
from scripts import eval_lm

POINT = CalibrationNetwork((6, 6, 16), (CalibrationOp("conv", 32, 3), CalibrationOp("depthwise", 0, 3)))


def test_answers_become_steps_with_their_measured_cost(devices: Devices, trajectory: Trajectory) -> None:
    asking = SamplingOptions(load(SHIPPED)[0], 6)
    found = extend(devices, trajectory, asking, random.Random(2))
    assert found == extend(devices, trajectory, asking, random.Random(2))
    assert found.steps[: len(trajectory.steps)] == trajectory.steps and len(found.steps) > len(
        trajectory.steps
    )
    schedules = [found.schedules(number) for number in range(len(found.steps))]
    assert all(each not in schedules[:number] for number, each in enumerate(schedules))
    harness = MeasureHarness(devices, "usual", POINT)
    for step, layers in zip(found.steps, schedules, strict=True):
        schedule = replace(harness.first.schedule, layers=dict(zip(harness.names, layers, strict=True)))
        measured = harness.measure(harness.prepared.network(schedule))
        assert measured is not None and harness.step(step.base, step.layer, step.changes, measured) == step
    assert len(list(examples(found))) > len(list(examples(trajectory)))
    # Schedules of the trajectory are not proposed again.
    again = extend(devices, found, asking, random.Random(2))
    schedules = [again.schedules(number) for number in range(len(again.steps))]
    assert all(each not in schedules[:number] for number, each in enumerate(schedules))


def test_the_most_promising_answers_are_measured(devices: Devices, trajectory: Trajectory) -> None:
    """Only the most promising of many drawn answers are measured, in two rounds; all steps have different programs."""
    found = extend(
        devices, trajectory, SamplingOptions(load(SHIPPED)[0], 3, drawn=24, prompts=2), random.Random(2)
    )
    harness, own = MeasureHarness(devices, "usual", POINT), found.steps[len(trajectory.steps) :]
    assert 3 < len(own) <= 6 and own[0].base == 0
    costs = [step.cycles for step in found.steps]
    first = [step for step in own if step.base == 0]
    if len(first) < len(own):
        assert own[-1].base == costs.index(min(costs[: 1 + len(first)]))
    digests = []
    for number in range(len(found.steps)):
        layers = dict(zip(harness.names, found.schedules(number), strict=True))
        digests.append(harness.prepared.network(replace(harness.first.schedule, layers=layers)).digest)
    assert len(set(digests)) == len(digests)


def test_the_most_promising_answers_are_better(devices: Devices, trajectory: Trajectory) -> None:
    """The best of the measured answers are better on average than those of a choice at random, for several seeds."""
    best = {24: 0, 0: 0}
    for seed in range(1, 7):
        for drawn in best:
            options = SamplingOptions(load(SHIPPED)[0], 3, prompts=2, **({"drawn": drawn} if drawn else {}))
            found = extend(devices, trajectory, options, random.Random(seed))
            best[drawn] += min(step.cycles for step in found.steps)
    assert best[24] < best[0]


def test_trajectories_with_another_cost_today_are_unchanged(devices: Devices, trajectory: Trajectory) -> None:
    asking, rng = SamplingOptions(load(SHIPPED)[0], 2), random.Random(4)
    slower = replace(trajectory, steps=[replace(trajectory.steps[0], cycles=trajectory.steps[0].cycles + 1)])
    assert extend(devices, slower, asking, rng) is slower
    fewer = replace(trajectory, first=trajectory.first[:1])
    assert extend(devices, fewer, asking, rng) is fewer
    together = replace(trajectory, steps=[replace(trajectory.steps[0], layers={0: 0, 1: 0})])
    assert extend(devices, together, asking, rng) is together


def _walk(index: int, machine: str = "usual", size: int = 32) -> Trajectory:
    return Trajectory(
        machine,
        index,
        CalibrationNetwork((6, 6, 16), (CalibrationOp("conv", size, 3),)),
        [{}],
        [TrajectoryStep(-1, -1, {}, 9, {0: 9}, {})],
    )


def test_only_training_networks_are_usable() -> None:
    sizes = {is_held_out(_walk(1, size=size).point): size for size in range(1, 99)}
    assert is_usable(_walk(1, size=sizes[False]))
    assert not is_usable(_walk(1, size=sizes[True]))
    assert is_validation(_walk(20)) and not is_usable(_walk(20, size=sizes[False]))
    assert not is_usable(_walk(1, "latency 200", size=sizes[False]))
    with pytest.raises(InputError, match="none of 1 networks are usable for training"):
        networks_of_round([_walk(20)], 1, 4, 0)


def test_rounds_cover_all_networks_before_repeating() -> None:
    trajectories = [_walk(index) for index in range(1, 19)]
    assert all(map(is_usable, trajectories))
    rounds = [
        [each.index for each in networks_of_round(trajectories, number, 6, 3)] for number in range(1, 5)
    ]
    assert (
        sorted(index for each in rounds[:3] for index in each) == list(range(1, 19))
        and rounds[3] == rounds[0]
    )
    assert rounds == [
        [each.index for each in networks_of_round(trajectories[::-1], number, 6, 3)] for number in range(1, 5)
    ]
    assert rounds[0] != [each.index for each in networks_of_round(trajectories, 1, 6, 4)]
    assert len(networks_of_round(trajectories, 1, 100, 3)) == 18


def test_statistics_of_single_answers() -> None:
    layers = [
        Sampled("a", 100, [100, 50, 200, 100]),
        Sampled("b", 10, [20, 40, 30, 20]),
        Sampled("c", 10, [10] * 4),
    ]
    found = figures(layers)
    assert found["one"] == pytest.approx(prod((1, 0.5, 2, 1, 2, 4, 3, 2)) ** (1 / 12))
    assert found["some"] == pytest.approx((0.5 * 2) ** (1 / 3))
    assert found["one_median"] == pytest.approx(1) and found["some_median"] == pytest.approx(1)
    found = figures(layers[:2])  # the median over the means of the layers
    assert found["one_median"] == pytest.approx((1 + prod((2, 4, 3, 2)) ** 0.25) / 2)
    assert found["some_median"] == pytest.approx((0.5 + 2) / 2)
    assert Sampled("a", 10, [10, 5, 20, 10, 1]).ratios(2) == [0.5, 1]


def test_unevaluated_layers_are_reported(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(eval_lm, "run_parallel", lambda *_: 1)
    with pytest.raises(
        WorkError, match="2 layers were not evaluated; run the same command again to continue"
    ):
        eval_lm.evaluate_model(SHIPPED, 2, 4, 1, tmp_path / "judged.jsonl")


def test_chart_of_rounds_has_each_value() -> None:
    text = draw_rounds("Title <1>", "cycles", {"a": [1.25, 1.0, 0.75], "b": [1.0, 1.0, 1.0]})
    assert "Title &lt;1&gt;" in text and "round 2" in text and "round 3" not in text
    assert text.count("<title>a: ") == 3 and "<title>a: 0.7500</title>" in text and "a 0.750" in text
    assert "a 1.000" in draw_rounds("One", "cycles", {"a": [1.0]})
