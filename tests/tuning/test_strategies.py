"""Bottlenecks are named from the causes of cycles, and the statistics of strategies decide their order."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from compiler.options import DEFAULT_DRAM, CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.profile.counters import MEANINGS
from compiler.profile.measurement import LayerCycles, Measurement, Rejected
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.constraints import TRANSFORMATIONS
from compiler.tuning.layer_space import spaces_of
from compiler.tuning.search.coordinate import expected_gains
from compiler.tuning.search.search_units import Choice, SearchUnit
from compiler.tuning.strategies import (
    STRATEGIES,
    STRATEGY_ORDER,
    StrategyStatistics,
    bottleneck_of,
    losses,
    strategy_of,
)
from hw.config import load_target

_LAYER = LayerSchedule(rows=4, columns=4, depth=4)


def test_each_transformation_belongs_to_one_strategy() -> None:
    named = [each for names in STRATEGIES.values() for each in names]
    assert sorted(named) == sorted(TRANSFORMATIONS)
    assert set(STRATEGY_ORDER) == set(losses({}, 0.0))
    for strategies in STRATEGY_ORDER.values():
        assert len(set(strategies)) == len(strategies) and set(strategies) >= STRATEGIES.keys() - {"batch"}


@pytest.mark.parametrize(
    ("cause", "bottleneck"),
    [
        ("fill_drain", "fill"),
        ("weight_shift", "weight_shift"),
        ("wait_weights", "banks"),
        ("wait_activations", "banks"),
        ("wait_accumulator", "fuse"),
        ("wait_fuse", "fuse"),
        ("wait_bus", "bandwidth"),
        ("wait_sequencer", "dispatch"),
    ],
)
def test_the_largest_loss_is_the_bottleneck(cause: str, bottleneck: str) -> None:
    where = dict.fromkeys(MEANINGS, 50) | {"useful": 10_000, cause: 2000}
    assert bottleneck_of(where, 100, 10_000) == bottleneck


def test_useful_cycles_above_the_ideal_are_lost_and_latency_is_told_from_bandwidth() -> None:
    where = {"useful": 4000, "wait_bus": 900, "wait_sequencer": 1000}
    assert bottleneck_of(where, 1000, 4000) == "latency"
    assert bottleneck_of(where, 1000, 1000) == "array"
    assert bottleneck_of({"wait_bus": 900}, 100) == "bandwidth"


def test_strategy_of_a_change() -> None:
    assert strategy_of(_LAYER, _LAYER) is None
    assert strategy_of(_LAYER, replace(_LAYER, rows=2)) == "tiling"
    assert strategy_of(_LAYER, replace(_LAYER, rows=2, im2col=not _LAYER.im2col)) == "layout"
    assert strategy_of(_LAYER, replace(_LAYER, prefetch=7)) == "prefetch"


def test_a_strategy_that_fails_makes_room_and_one_that_helps_comes_first() -> None:
    statistics = StrategyStatistics()
    assert statistics.order("latency") == list(STRATEGY_ORDER["latency"])
    assert statistics.rates("latency")["split"] == pytest.approx(1 / 2)
    for _ in range(3):
        statistics.add("latency", "prefetch", 100, 110)
    assert statistics.order("latency")[0] == "split"
    for _ in range(6):
        statistics.add("latency", "kernel", 100, 90)
    assert statistics.order("latency")[0] == "kernel"
    assert statistics.records["latency", "kernel"].mean_gain == pytest.approx(0.1)
    assert StrategyStatistics(statistics).order("latency")[0] == "kernel"
    assert statistics.order("fuse") == list(STRATEGY_ORDER["fuse"])


def test_statistics_of_stored_trials() -> None:
    rng = random.Random(0)

    def result(cycles: int) -> Measurement:
        where = dict.fromkeys(MEANINGS, 0) | {"wait_bus": cycles - 10, "useful": 10}
        return Measurement(cycles, (LayerCycles(("a",), cycles, where),), 1.0, 1, True, 1)

    def schedule(layer: LayerSchedule) -> Schedule:
        return Schedule(layers={"a": layer})

    better = replace(_LAYER, rows=2)
    trials = [
        (schedule(_LAYER), result(1000)),
        (schedule(replace(_LAYER, prefetch=rng.randrange(50, 60))), Rejected("trap", "no")),
        (schedule(better), result(800)),
        (schedule(replace(better, prefetch=9)), result(900)),
    ]
    statistics = StrategyStatistics()
    statistics.learn(trials, 100)
    assert statistics.rows() == [
        {
            "bottleneck": "bandwidth",
            "strategy": "tiling",
            "trials": 1,
            "improvements": 1,
            "mean_gain": pytest.approx(0.2),
        },
        {"bottleneck": "bandwidth", "strategy": "prefetch", "trials": 1, "improvements": 0, "mean_gain": 0.0},
    ]


@pytest.fixture(scope="module")
def unit() -> SearchUnit:
    """Return the search unit of a convolution."""
    graph = CalibrationNetwork((8, 8, 1), (CalibrationOp("conv", 8, 3),)).graph()
    prepared = ModelCompiler(graph, load_target("n4"), CompileOptions(rounding="reference"))
    network = prepared.network()
    space = spaces_of(prepared.config, prepared.lowered(network.schedule.fusions), DEFAULT_DRAM)
    return SearchUnit(tuple(space.values()), None, dict(network.schedule.layers), 1000)


@pytest.mark.parametrize("seed", range(3))
def test_candidates_follow_the_rates_of_strategies_and_the_expected_gains(
    unit: SearchUnit, seed: int
) -> None:
    (name,) = unit.names
    good = {"layout": 0.0, "tiling": 20.0, "prefetch": 30.0}
    rates = {"layout": 1.0}

    def gains(its: SearchUnit, choices: Sequence[Choice]) -> list[float]:
        rows = [choice[name].rows for choice in choices]
        each = [good.get(str(its.strategy_of(choice)), 0.0) for choice in choices]
        return [value * (1 - more / 1000) for value, more in zip(each, rows, strict=True)]

    unit.start_by_strategy(random.Random(seed), lambda _unit: rates, gains)
    drawn = [next(unit.candidates)]
    assert unit.strategy_of(drawn[0]) == "layout"  # no other strategy is to be tried
    rates |= {"layout": 0.5, "tiling": 1.0, "prefetch": 0.5}
    drawn += [next(unit.candidates) for _ in range(6)]
    assert [unit.strategy_of(choice) for choice in drawn[1:]] == ["tiling"] * 6
    rows = [choice[name].rows for choice in drawn[1:]]
    assert rows[0] == min(rows) and len({choice[name] for choice in drawn}) == 7
    rates["prefetch"] = 1.0
    assert unit.strategy_of(next(unit.candidates)) == "prefetch"


def test_expected_gain_of_uncertain_predictions() -> None:
    rng = np.random.default_rng(1)
    for gain, error in ((0.0, 5.0), (3.0, 2.0), (-4.0, 2.0), (10.0, 1e-3), (-10.0, 1e-3)):
        drawn = np.maximum(rng.normal(gain, error, 200_000), 0).mean()
        (expected,) = expected_gains(np.array([gain]), np.array([error]))
        assert expected == pytest.approx(drawn, abs=0.02)
