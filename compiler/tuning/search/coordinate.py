"""Coordinate search: each trial changes every second unit; the cycles by counter tag show which changes helped."""

import re
from collections.abc import Mapping, Sequence
from math import erfc, pi, sqrt
from typing import NamedTuple

import numpy as np

from compiler.codegen.buffer_allocation import MemoryFullError
from compiler.cost.learned_model import Floats
from compiler.cost.online_model import CostPrediction, OnlineCostModel
from compiler.profile.measurement import Measurement
from compiler.schedule.schedule import Schedule
from compiler.tuning.constraints import UNCONSTRAINED, Constraints, Objective
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.search.method import SearchMethod, Trial
from compiler.tuning.search.search_units import (
    Choice,
    SearchUnit,
    neighbour_loss,
    network_mutations,
    units_of,
    with_choices,
)
from compiler.tuning.strategies import StrategyStatistics, bottleneck_of
from hw.errors import InputError

#: Interval, in trials, at which the best choices of all units are tried together.
_COMBINED_INTERVAL = 4
#: Maximum number of times that choices which do not fit are dropped from one trial.
_MAX_FIT_ATTEMPTS = 12
#: Maximum number of generated schedules that are already known; after that, a known one is returned.
_MAX_ATTEMPTS = 60
#: Minimum expected error of a prediction in cycles.
_MIN_ERROR = 1e-3


class _Proposal(NamedTuple):
    """Schedule with its new choices by unit, and the digest of its programs."""

    schedule: Schedule
    tried: dict[int, Choice]
    programs: str


class CoordinateSearch(SearchMethod):
    """Search method that changes many layers per trial, and accepts each change separately.

    A change is accepted if the cycles counted under the tags of the changed and the adjacent layers decrease. Adjacent
    layers do not change in the same trial, since the loads of a layer may overlap the computation of the previous
    layer.
    """

    def __init__(
        self,
        measurer: Measurer,
        goal: Objective,
        baseline: Measurement,
        seed: int,
        constraints: Constraints = UNCONSTRAINED,
    ):
        super().__init__(measurer, goal, baseline, seed, constraints)
        self._begin(self.best)
        self._count = 0
        #: Digests of the programs that were proposed: other schedules with the same programs are not measured.
        self._programs = {measurer.first.digest}
        #: New choices of each proposal by unit: {} if the best choices of all units are combined, None for mutations.
        self._tried: dict[str, dict[int, Choice] | None] = {}
        #: Best trial without program texts, which are written for the programs of one schedule.
        self._base = self.best
        self._mutations = network_mutations(self.prepared.graph, self.first, baseline)

    def propose(self) -> Schedule:
        """Return network mutations first, then schedules with new choices for every second search unit.

        At regular intervals, the best choices of all units are combined instead.
        """
        while self._mutations:
            schedule = self._mutations.pop()(self._base.schedule)
            if self.register(schedule):
                self._tried[schedule.to_json()] = None
                return schedule
        for _ in range(_MAX_ATTEMPTS):
            self._count += 1
            schedule, tried, programs = (
                self._combined() if self._count % _COMBINED_INTERVAL == 0 else self._changed()
            )
            if self.register(schedule) and programs not in self._programs:
                self._programs.add(programs)
                self._tried[schedule.to_json()] = tried
                return schedule
        return self.first

    def accepts(self, schedule: Schedule) -> bool:
        """Return True for schedules without program texts; the method handles all fusions."""
        return not schedule.programs

    def learn(self, trial: Trial) -> None:
        """Accept each change that saves more cycles in its unit than the adjacent units lose.

        The trial of another method counts as a trial of the units in which it differs from their best choices, unless
        some of these are adjacent.
        """
        text = trial.schedule.to_json()
        tried = self._tried.pop(text) if text in self._tried else self._tried_by_others(trial)
        if trial.cost is None or not isinstance(trial.result, Measurement) or self._base.cost is None:
            return
        better = trial.cost <= self._base.cost
        if tried:
            self._accept(tried, trial.result)
        elif tried is not None:
            self._restore(trial if better else self._base)
        elif better and (trial.schedule.fusions != self.fusions or self._beats_units(trial.result)):
            self._restore(trial)
        if trial.cost < self._base.cost:
            self._base = trial

    def _accept(self, tried: dict[int, Choice], result: Measurement) -> None:
        """Accept the choices that helped."""
        cycles = [unit.cycles_in(result) for unit in self.units]
        increases = [now - unit.cycles for now, unit in zip(cycles, self.units, strict=True)]
        for number, choice in tried.items():
            if increases[number] + neighbour_loss(increases, number) < 0:
                self.units[number].best = choice
                self.units[number].cycles = cycles[number]

    def _tried_by_others(self, trial: Trial) -> dict[int, Choice] | None:
        """Return the choices by which the trial of another method differs; None if they cannot be judged separately."""
        layers = trial.schedule.layers
        if trial.schedule.fusions != self.fusions:
            return None
        tried: dict[int, Choice] = {}
        for number, unit in enumerate(self.units):
            choice = {name: layers[name] for name in unit.names}
            if choice != unit.best:
                tried[number] = choice
                if any(
                    choice[name].own_counter_tag != unit.best[name].own_counter_tag for name in unit.names
                ):
                    return None
        return None if not tried or any(number + 1 in tried for number in tried) else tried

    def _beats_units(self, result: Measurement) -> bool:
        """Return True if a measurement has fewer cycles than the best choices of all units promise together."""
        return sum(unit.cycles_in(result) for unit in self.units) <= sum(unit.cycles for unit in self.units)

    def _restore(self, trial: Trial) -> None:
        """Set every unit to its choice in a trial, since changes that help separately may not help together."""
        assert isinstance(trial.result, Measurement)
        if trial.schedule.fusions != self.fusions:
            self._begin(trial)
            return
        for unit in self.units:
            unit.best = {name: trial.schedule.layers[name] for name in unit.names}
            unit.cycles = unit.cycles_in(trial.result)

    def _begin(self, trial: Trial) -> None:
        """Create the search units for the layers that result from the fusions of a trial."""
        assert isinstance(trial.result, Measurement)
        self.fusions = trial.schedule.fusions
        stages, dram, frozen = (
            self.prepared.lowered(self.fusions),
            self.conditions.dram,
            self.constraints.frozen_fields,
        )
        self.units = units_of(
            self.prepared.config, stages, dram, trial.schedule, trial.result, self.rng, frozen
        )

    def _combined(self) -> _Proposal:
        return self._fitting({})._replace(tried={})

    def _changed(self) -> _Proposal:
        odd = self.rng.randrange(min(len(self.units), 2))
        tried = {number: next(unit.candidates) for number, unit in enumerate(self.units) if number % 2 == odd}
        return self._fitting(tried)

    def _fitting(self, tried: dict[int, Choice]) -> _Proposal:
        """Drop the choices that do not fit together with the others; return the resulting proposal."""
        for _ in range(_MAX_FIT_ATTEMPTS):
            choices = [tried.get(number, unit.best) for number, unit in enumerate(self.units)]
            schedule = with_choices(self._base.schedule, choices)
            if schedule.to_json() in self._registered:
                return _Proposal(schedule, tried, "")
            try:
                network = self.prepared.network(schedule)
            except InputError as error:
                dropped = self._units_to_drop(error, tried)
                tried = {number: choice for number, choice in tried.items() if number not in dropped}
                continue
            return _Proposal(schedule, tried, network.digest)
        return _Proposal(self._base.schedule, {}, "")

    def _units_to_drop(self, error: InputError, tried: dict[int, Choice]) -> set[int]:
        """Return the units whose choices must be dropped: the units that the error names, or else a random one."""
        names = set(error.layers) if isinstance(error, MemoryFullError) else set()
        names |= set(re.findall(r"layer '([^']*)'", str(error)))
        named = {number for number, unit in enumerate(self.units) if names & set(unit.names)}
        for number in named - tried.keys():  # its best choice fits only with other choices of the other units
            self._reset(self.units[number])
        return named & tried.keys() or set(self.rng.sample(sorted(tried), 1) if tried else ())

    def _reset(self, unit: SearchUnit) -> None:
        """Reset a unit to the static compiler's choice."""
        unit.best = {name: self.first.layers[name] for name in unit.names}


class StrategySearch(CoordinateSearch):
    """Coordinate search that orders the changes of a layer by its bottleneck and by their expected gain.

    The gain that the cost model expects of a change is weighted by the rate with which its strategy helped against the
    bottleneck. The cost model and the rates learn from the trials.

    Attributes
    ----------
    statistics : StrategyStatistics
        Results of the strategies in this search.
    first_strategies : dict of str to (str, str)
        Bottleneck of each layer when it was changed for the first time, and the strategy of that change.
    """

    def __init__(
        self,
        measurer: Measurer,
        goal: Objective,
        baseline: Measurement,
        seed: int,
        constraints: Constraints = UNCONSTRAINED,
    ):
        self.statistics = StrategyStatistics()
        self.first_strategies: dict[str, tuple[str, str]] = {}
        self._model, self._seed = measurer.cost_model, seed
        super().__init__(measurer, goal, baseline, seed, constraints)

    def learn(self, trial: Trial) -> None:
        """Count the strategy of each changed unit, then accept changes like the coordinate search."""
        if isinstance(trial.result, Measurement) and trial.cost is not None:
            for number, choice in (self._tried.get(trial.schedule.to_json()) or {}).items():
                unit = self.units[number]
                strategy = unit.strategy_of(choice)
                if strategy is not None:
                    bottleneck, cycles = self.bottleneck(unit), unit.cycles_in(trial.result)
                    self.first_strategies.setdefault(unit.names[0], (bottleneck, strategy))
                    self.statistics.add(bottleneck, strategy, unit.cycles, cycles)
                    self._learn_cycles(unit, choice, cycles)
        super().learn(trial)

    def _learn_cycles(self, unit: SearchUnit, choice: Choice, cycles: float) -> None:
        """Update the cost model with the measured cycles of a unit, divided between its layers as predicted."""
        predicted = {name: float(each.cost[0]) for name, each in self._predicted(unit, [choice]).items()}
        for name, part in predicted.items():
            share = part / sum(predicted.values())
            self.cost_model.learn(name, choice[name], self._layers | choice, cycles * share)

    def _predicted(self, unit: SearchUnit, choices: Sequence[Choice]) -> dict[str, CostPrediction]:
        """Return the predicted cycles of each layer of a unit under several choices."""
        layers = self._layers
        networks = [layers | choice for choice in choices]
        return {name: self.cost_model.predict_in(name, networks) for name in unit.names}

    def gains(self, unit: SearchUnit, choices: Sequence[Choice]) -> Sequence[float]:
        """Return the expected gains of choices in cycles, where a choice without a gain counts as 0.

        The gain of a choice is assumed to be normally distributed around its prediction.
        """
        predicted = self._predicted(unit, [unit.best, *choices]).values()
        cycles = np.sum([each.cost for each in predicted], axis=0)
        error = np.sqrt(np.sum([(each.cost * each.spread) ** 2 for each in predicted], axis=0))[1:]
        return expected_gains(cycles[0] - cycles[1:], np.maximum(error, _MIN_ERROR)).tolist()

    @property
    def _layers(self) -> Choice:
        """Best schedules of all layers."""
        return {name: layer for unit in self.units for name, layer in unit.best.items()}

    def bottleneck(self, unit: SearchUnit) -> str:
        """Return the bottleneck of a unit in the best trial so far."""
        assert isinstance(self.best.result, Measurement)
        where: dict[str, int] = {}
        for entry in {each.names: each for each in map(self.best.result.layer_entry, unit.names)}.values():
            for cause, cycles in entry.where.items():
                where[cause] = where.get(cause, 0) + cycles
        ideal = sum(self._macs.get(name, 0) for name in unit.names) / self.prepared.config.n**2
        return bottleneck_of(where, self.conditions.dram.latency, ideal)

    def rates(self, unit: SearchUnit) -> Mapping[str, float]:
        """Return the expected rate of improvements of each strategy in a unit; at first, only that of the first one."""
        bottleneck = self.bottleneck(unit)
        rates = self.statistics.rates(bottleneck)
        if unit.names[0] in self.first_strategies:
            return rates
        first = self.statistics.order(bottleneck)[0]
        return {first: rates[first]}

    def _begin(self, trial: Trial) -> None:
        super()._begin(trial)
        stages = self.prepared.lowered(trial.schedule.fusions)
        self.cost_model = OnlineCostModel(self.conditions, stages, self._model, self._seed)
        infos = self.prepared.network(trial.schedule).infos
        self._macs = {info.name: info.floor.macs for info in infos}
        for unit in self.units:
            self._learn_cycles(unit, unit.best, unit.cycles)
            unit.start_by_strategy(self.rng, self.rates, self.gains)


def expected_gains(gain: Floats, error: Floats) -> Floats:
    """Return the mean of max(x, 0), where x is normally distributed with given means and standard deviations.

    This is the expected improvement of Jones, Schonlau and Welch, "Efficient Global Optimization" (1998).
    """
    z = gain / error
    below = np.array([erfc(-each / sqrt(2)) / 2 for each in z])
    return gain * below + error * np.exp(-(z**2) / 2) / sqrt(2 * pi)
