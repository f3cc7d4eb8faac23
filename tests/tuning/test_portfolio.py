"""Tests of the portfolio: shares, shared measurements, failing members, targets and the origin of each trial."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compiler.options import DramTiming
from compiler.profile.measurement import HardwareProfile
from compiler.schedule.schedule import Schedule
from compiler.tuning.constraints import Constraints, Objective, Targets
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.registry import PORTFOLIO, RETRIEVAL
from compiler.tuning.search.coordinate import CoordinateSearch
from compiler.tuning.search.method import SearchMethod, Trial
from compiler.tuning.search.portfolio import PortfolioSearch
from compiler.tuning.search.tuner import make_method, tune
from compiler.tuning_api import tune as tune_model
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.session import DatabaseSession
from hw.config import load_target
from hw.errors import InputError
from scripts.measurement_cache import FileCache
from tests.support.small_network import OPTIONS, two_convolutions

SEED = 4
N4_SLOW = DramTiming(latency=400, bytes_per_cycle=1.0)


class Scripted(SearchMethod):
    """Member that proposes one change of the first schedule after the other, and fails after `limit` proposals."""

    limit = 1000

    def propose(self) -> Schedule:
        """Return the first schedule with another number of rows in one layer."""
        if len(self._registered) > self.limit:
            raise ZeroDivisionError("nothing left")
        name, layer = next(iter(self.first.layers.items()))
        for rows in range(1, 9):
            schedule = replace(self.first, layers=self.first.layers | {name: replace(layer, rows=rows)})
            if self.register(schedule):
                return schedule
        return self.first

    def learn(self, trial: Trial) -> None:
        """Do nothing."""


@pytest.fixture(scope="module")
def slow() -> Iterator[Measurer]:
    """Yield a measurer of two convolutions on a machine with a slow memory, where tuning helps."""
    conditions = HardwareProfile(load_target("n4"), N4_SLOW)
    with Measurer(two_convolutions(), conditions, OPTIONS) as made:
        made.cache = FileCache(made.prepared, conditions, None)
        yield made


def portfolio(measurer: Measurer, **members: type[SearchMethod]) -> PortfolioSearch:
    """Return a portfolio of classes of search methods."""
    given = (measurer, Objective.LATENCY, measurer.baseline(), SEED)
    made = {name: (lambda kind=kind: kind(*given)) for name, kind in members.items()}
    return PortfolioSearch(*given, members=made)


def test_portfolio_names_the_proposer_and_the_strategy_of_each_trial(slow: Measurer) -> None:
    found = tune(slow, PORTFOLIO, 16, seed=SEED)
    again = tune(slow, PORTFOLIO, 16, seed=SEED)
    assert again.trials == found.trials
    assert len({trial.schedule.to_json() for trial in found.trials}) == 16
    assert {"hpm", "coordinate"} <= found.proposers.keys() and RETRIEVAL not in found.proposers
    assert sum(each.trials for each in found.proposers.values()) == 16
    assert sum(each.improvements for each in found.proposers.values()) == len(found.curve) - 1
    saved = 1 - found.curve[-1][1] / found.curve[0][1]
    assert sum(each.gain for each in found.proposers.values()) == pytest.approx(saved)
    for trial in found.trials:
        assert trial.proposer in found.proposers
        assert trial.strategy is None or set(trial.strategy.split("+")) <= {
            "fuse",
            "layout",
            "tiling",
            "split",
            "prefetch",
            "kernel",
        }


def test_each_layer_names_the_proposer_of_its_greatest_gain(slow: Measurer) -> None:
    """One member halves the cycles by a layer's tiling; another one saves a cycle by a change of all layers."""
    search = portfolio(slow, hpm=Scripted)
    baseline, first = slow.baseline(), search.first
    one, other = first.layers
    steps = [
        ("llm", {one: replace(first.layers[one], rows=2)}, 0.5),
        ("edits", {other: replace(first.layers[other], rows=3)}, 0.4),
        ("hpm", {other: replace(first.layers[other], rows=2)}, 0.3),
    ]
    schedule = first
    for name, layers, share in steps:
        schedule = replace(schedule, layers=schedule.layers | layers)
        search._names[schedule.to_json()] = name
        search.record(schedule, replace(baseline, cycles=round(share * baseline.cycles), floor=0))
    assert search.proposers_of_best() == ({one: "llm", other: "hpm"}, {})  # the change of edits was replaced
    whole = {name: replace(layer, prefetch=layer.prefetch + 1) for name, layer in schedule.layers.items()}
    last = replace(schedule, layers=whole)
    search._names[last.to_json()] = "coordinate"
    search.record(last, replace(baseline, cycles=round(0.3 * baseline.cycles) - 1, floor=0))
    assert search.proposers_of_best() == ({one: "llm", other: "hpm"}, {})
    search.withdraw(last)
    assert search.best.schedule == schedule


def test_portfolio_is_as_good_as_its_members(slow: Measurer) -> None:
    for seed in range(2):
        alone = [tune(slow, method, 16, seed=seed).best.cost or 0.0 for method in ("hpm", "coordinate")]
        found = tune(slow, PORTFOLIO, 16, seed=seed).best.cost
        print(f"seed {seed}: alone {alone}, portfolio {found}")
        assert found is not None and found <= 1.005 * min(alone)


def test_members_learn_from_the_trials_of_others(slow: Measurer) -> None:
    search = portfolio(slow, hpm=Scripted, coordinate=CoordinateSearch)
    tune(slow, search, 8, seed=SEED)
    coordinate = next(each.method for each in search._members if each.name == "coordinate")
    assert isinstance(coordinate, CoordinateSearch)
    best = min(trial.cost for trial in search._bests if trial.cost is not None)
    assert sum(unit.cycles for unit in coordinate.units) <= 1.01 * best


def test_failing_member_is_reported_and_left_out(slow: Measurer) -> None:
    class Failing(Scripted):
        limit = 2

    class Unusable(Scripted):
        def __init__(self, *_given: object):
            raise InputError("the weights are damaged")

    search = portfolio(slow, hpm=Failing, llm=Unusable, coordinate=CoordinateSearch)
    found = tune(slow, search, 8, seed=SEED)
    assert len(found.trials) == 8 and found.proposers["coordinate"].trials >= 6
    reasons = {each.generator: each.reason for each in found.left_out}
    assert reasons.keys() == {"hpm", "llm"}
    assert "ZeroDivisionError: nothing left" in reasons["hpm"] and "damaged" in reasons["llm"]


def test_search_ends_when_nobody_has_proposals(slow: Measurer) -> None:
    found = tune(slow, portfolio(slow, a=Scripted, b=Scripted), 30, seed=SEED)
    texts = [trial.schedule.to_json() for trial in found.trials]
    assert len(texts) == len(set(texts)) < 9


def test_forbidden_transformations_are_not_used(slow: Measurer) -> None:
    forbidden = Constraints(frozenset({"tiling", "micro-program", "chain", "channel_blocks"}))
    found = tune(slow, PORTFOLIO, 10, seed=SEED, constraints=forbidden)
    first = slow.first.schedule
    assert found.trials and all(forbidden.violation(each.schedule, first) is None for each in found.trials)
    assert "edits" not in found.proposers


def test_targets_end_the_search(slow: Measurer) -> None:
    base = slow.baseline()
    best = tune(slow, PORTFOLIO, 24, seed=SEED)
    assert best.target_met is None and best.best.cost is not None and best.best.cost < base.cycles
    number, cost = best.curve[1]
    found = tune(slow, PORTFOLIO, 24, seed=SEED, targets=Targets(cycles=cost))
    assert found.target_met and len(found.trials) == number and found.best.cost == cost
    assert not tune(slow, PORTFOLIO, 2, seed=SEED, targets=Targets(cycles=1)).target_met
    there = tune(slow, PORTFOLIO, 4, seed=SEED, targets=Targets(energy_uj=base.energy_uj))
    assert there.target_met and not there.trials  # by the static compiler's schedule
    both = Targets(base.cycles, base.energy_uj / 2)
    assert not both.met(base) and not Targets().met(base) and not Targets()
    with pytest.raises(InputError, match="target_energy must be a number above 0 or None, not 0"):
        Targets(energy_uj=0)


def test_targets_of_the_python_interface() -> None:
    found = tune_model(two_convolutions(), "n4", trials=3, target_latency=1e6, options=OPTIONS)
    assert found.target_met and not found.trials


def test_interrupted_search_continues_from_the_database(slow: Measurer, tmp_path: Path) -> None:
    with TuningDatabase(tmp_path / "profile.db") as database:
        results = []
        for trials in (4, 8):
            session = DatabaseSession(database, slow.prepared, slow.conditions, "latency")
            usual, slow.cache = slow.cache, session
            try:
                results.append(tune(slow, PORTFOLIO, trials, seed=SEED, session=session))
            finally:
                slow.cache = usual
        short, long = results
        assert long.trials[:4] == short.trials and long.cached_count == 4
        methods = {trial.method for trial, _ in database.trials(session.key)}
        assert {
            trial.proposer for trial in long.trials
        } <= methods  # the proposer of each measurement is stored


def test_withdrawn_schedule_is_no_longer_the_best(slow: Measurer) -> None:
    search = make_method(PORTFOLIO, slow, Objective.LATENCY, slow.baseline(), SEED)
    found = tune(slow, search, 24, seed=SEED)
    before = [cost for _, cost in found.curve]
    search.withdraw(found.best.schedule)
    assert search.best.cost == before[-2]
    search.withdraw(search.first)
    assert search._bests[0].schedule == search.first
