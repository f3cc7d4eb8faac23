"""Tests of search methods: budgets, seeds, and the best trial."""

import pytest

from compiler.profile.measurement import Measurement, Rejected
from compiler.schedule.schedule import Schedule
from compiler.tuning.constraints import Objective
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.registry import METHODS
from compiler.tuning.search.tuner import rejection_reason, tune

TRIALS = 8


@pytest.mark.parametrize("method", METHODS)
def test_search_budget_seed_and_best_trial(measurer: Measurer, method: str) -> None:
    before = measurer.measurement_count
    found = tune(measurer, method, TRIALS, seed=5)
    assert measurer.measurement_count == before + TRIALS + 1 and len(found.trials) == TRIALS
    costs = [trial.cost for trial in found.trials if trial.cost is not None]
    assert found.best.cost == min([*costs, float(found.baseline.cycles)])
    assert isinstance(found.best.result, Measurement) and found.best.result.valid
    assert [cost for _, cost in found.curve] == sorted({cost for _, cost in found.curve}, reverse=True)
    texts = [trial.schedule.to_json() for trial in found.trials]
    assert len(set(texts)) == TRIALS  # no schedule is proposed twice
    if method in ("coordinate", "strategies"):  # nor are programs
        assert len({measurer.prepared.network(trial.schedule).digest for trial in found.trials}) == TRIALS
    again = tune(measurer, method, TRIALS, seed=5)
    assert [trial.schedule.to_json() for trial in again.trials] == texts
    assert Schedule.from_json(texts[0]) == found.trials[0].schedule


def test_energy_goal_selects_by_energy(measurer: Measurer) -> None:
    found = tune(measurer, "random", 4, Objective.ENERGY, seed=2)
    assert isinstance(found.best.result, Measurement)
    assert found.best.cost == found.best.result.energy_uj <= found.baseline.energy_uj


def test_every_trial_without_cost_has_a_reason(measurer: Measurer) -> None:
    found = tune(measurer, "random", 12, seed=9)
    for trial in found.trials:
        why = rejection_reason(trial)
        assert (why is None) == (trial.cost is not None)
        assert not isinstance(trial.result, Rejected) or trial.result.reason in str(why)
