"""Tests of the search guided by the cost model: attribution to layers, adopted changes, and learning."""

from dataclasses import replace

import numpy as np
import pytest

from compiler.cost.features import rows_of
from compiler.cost.learned_model import CycleModel, PredictionErrors, energy_model, spearman
from compiler.cost.online_model import OnlineCostModel, apportion, attribution_groups
from compiler.options import CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile, LayerCycles, Measurement
from compiler.schedule.schedule import Schedule
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.constraints import Objective
from compiler.tuning.layer_space import spaces_of
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.search.model_guided import ModelGuidedSearch
from compiler.tuning.search.tuner import tune
from hw.config import load_target
from tests.support.small_network import OPTIONS

N4 = HardwareProfile(load_target("n4"))


def stage_of(*ops: CalibrationOp):
    prepared = ModelCompiler(
        CalibrationNetwork((6, 6, 8), ops).graph(), N4.config, CompileOptions(rounding="reference")
    )
    (stage,) = prepared.lowered(prepared.fusions)
    return prepared, stage


def test_fuse_only_layers_are_grouped_with_the_next() -> None:
    _, stage = stage_of(
        CalibrationOp("conv", 8, 3),
        CalibrationOp("max_pool", 0, 2, 2),
        CalibrationOp("conv", 8, 1),
        CalibrationOp("softmax"),
    )
    names = [layer.name for layer in stage.layers]
    assert attribution_groups(stage.layers) == [(names[0],), (names[1], names[2]), (names[3],)]
    cycles = dict(zip(names, (100.0, 0.0, 90.0, 40.0), strict=True))
    expected = dict(zip(names, (80.0, 20.0, 40.0, 50.0), strict=True))
    assert list(apportion(stage.layers, cycles, expected).values()) == [100, 30, 60, 40]


def test_measurements_correct_similar_predictions() -> None:
    prepared, stage = stage_of(CalibrationOp("conv", 24, 3))
    (name,) = (layer.name for layer in stage.layers)
    now = dict(prepared.network().schedule.layers)
    tilings = [each.schedule for each in spaces_of(N4.config, [stage], N4.dram)[name].tilings]
    foresight = OnlineCostModel(N4, [stage], CycleModel((), {}), 0)
    before = foresight.predict(name, tilings, now)
    foresight.learn(name, tilings[0], now, 2 * before.cost[0])
    after = foresight.predict(name, tilings, now)
    assert after.cost[0] == pytest.approx(2 * before.cost[0], rel=1e-3) and after.spread[0] == 0
    assert (after.cost >= before.cost).all() and (after.cost <= 2.001 * before.cost).all()
    assert after.spread.max() > 0
    foresight.trial(110, 100)
    assert foresight.errors.count == 1 and foresight.errors.mape == pytest.approx(10)


def test_own_measurements_train_a_model() -> None:
    """From a few trials, a model learns that half of the layers take twice the predicted cycles."""
    prepared, stage = stage_of(CalibrationOp("conv", 40, 3))
    (name,) = (layer.name for layer in stage.layers)
    now = dict(prepared.network().schedule.layers)
    tilings = [each.schedule for each in spaces_of(N4.config, [stage], N4.dram)[name].tilings]
    foresight = OnlineCostModel(N4, [stage], CycleModel((), {}), 0)
    plain = foresight.predict(name, tilings, now).cost
    true = plain * np.where([each.order == "rows" for each in tilings], 2.0, 1.0)
    rng = np.random.default_rng(6)
    chosen = rng.permutation(len(tilings))[:48]
    for at in chosen:
        foresight.learn(name, tilings[at], now, float(true[at]))
        foresight.trial(float(plain[at]), float(true[at]))
    others = np.setdiff1d(np.arange(len(tilings)), chosen)
    found = foresight.predict(name, [tilings[at] for at in others], now).cost
    learnt, before = (
        PredictionErrors.from_pairs(found, true[others]),
        PredictionErrors.from_pairs(plain[others], true[others]),
    )
    print(f"{before.mape:.1f}% -> {learnt.mape:.1f}%")
    assert learnt.mape < before.mape / 2


def measured(measurer: Measurer, schedule: Schedule, layers: list[int]) -> Measurement:
    names = [layer.name for layer in measurer.first.layers]
    entries = tuple(LayerCycles((name,), cycles, {}) for name, cycles in zip(names, layers, strict=True))
    return Measurement(sum(layers), entries, 1.0, 1, True, 1)


def test_only_helpful_changes_are_adopted(measurer: Measurer) -> None:
    baseline = measured(measurer, measurer.first.schedule, [1000, 800])
    method = ModelGuidedSearch(measurer, Objective.LATENCY, baseline, 1)
    first = dict(method.layers)
    worse = method.propose()
    (changed,) = [name for name in first if worse.layers[name] != first[name]]
    method.record(worse, measured(measurer, worse, [1100, 800]))
    assert method.layers == first and method.best.schedule == measurer.first.schedule
    better = method.propose()
    assert better != worse and better.layers != first
    method.record(better, measured(measurer, better, [900, 790]))
    assert method.layers == better.layers and method.best.schedule == better
    assert sum(method.costs.values()) == pytest.approx(1690)
    assert method.predictor.count == 2 and changed in first


def with_energy(found: Measurement, energy: list[float]) -> Measurement:
    """Return a measurement with other energies of its layers."""
    layers = tuple(replace(entry, energy_uj=each) for entry, each in zip(found.layers, energy, strict=True))
    return replace(found, layers=layers, energy_uj=sum(energy))


def test_energy_search_adopts_changes_that_save_energy(measurer: Measurer) -> None:
    start = with_energy(measured(measurer, measurer.first.schedule, [1000, 800]), [5.0, 4.0])
    method = ModelGuidedSearch(measurer, Objective.ENERGY, start, 1)
    assert sum(method.costs.values()) == pytest.approx(9000)
    first = dict(method.layers)
    trial = method.propose()
    # Fewer cycles for the same energy are no gain.
    method.record(trial, with_energy(measured(measurer, trial, [10, 10]), [5.0, 4.0]))
    assert method.layers == first
    trial = method.propose()
    method.record(trial, with_energy(measured(measurer, trial, [2000, 800]), [4.0, 4.0]))
    assert method.layers == trial.layers and sum(method.costs.values()) == pytest.approx(8000)


def test_energy_search_ranks_by_predicted_energy(measurer: Measurer) -> None:
    method = ModelGuidedSearch(measurer, Objective.ENERGY, measurer.baseline(), 1)
    (stage,) = measurer.prepared.lowered(method.first.fusions)
    name = next(iter(method.spaces))
    candidates = [tiling.schedule for tiling in method.spaces[name].tilings[:20]]
    rows = [
        rows_of(stage, method.layers | {name: each}, measurer.conditions, [name])[name] for each in candidates
    ]
    expected = energy_model().predict_many([row.for_energy for row in rows])[0]
    found = method.online_model.predict(name, candidates, method.layers).cost
    assert spearman(found, expected) > 0.9


def test_energy_of_earlier_measurements_is_divided_by_cycles(measurer: Measurer) -> None:
    found = replace(measured(measurer, measurer.first.schedule, [300, 100]), energy_uj=2.0)
    assert Objective.ENERGY.layer_costs(found) == [1500.0, 500.0]
    assert Objective.LATENCY.layer_costs(found) == [300.0, 100.0]


def test_predictions_are_reported(measurer: Measurer) -> None:
    found = tune(measurer, "hpm", 6, seed=3)
    assert found.predictor is not None and 0 < found.predictor.count <= 6 and found.predictor.mape < 50
    assert tune(measurer, "random", 2, seed=3).predictor is None
    assert OPTIONS.rounding == "reference"


def test_better_external_schedule_is_adopted(measurer: Measurer) -> None:
    method = ModelGuidedSearch(
        measurer, Objective.LATENCY, measured(measurer, measurer.first.schedule, [1000, 800]), 1
    )
    first = measurer.first.schedule
    names = list(first.layers)
    # No cycles are attributed to the second layer.
    other = replace(
        first, layers=first.layers | {names[1]: replace(first.layers[names[1]], own_counter_tag=False)}
    )
    for cycles, layers in ((1900, first.layers), (1700, other.layers)):
        entry = LayerCycles(tuple(names), cycles, {})
        method.record(other, Measurement(cycles, (entry,), 1.0, 1, True, 1))
        assert method.layers == dict(layers)
    assert sum(method.costs.values()) == pytest.approx(1700)
