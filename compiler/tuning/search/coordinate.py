"""Coordinate search: every other unit of the network tries something in each trial; counters log which of it helped."""

import re

from compiler.codegen.buffer_allocation import MemoryFullError
from compiler.profile.measurement import Measurement
from compiler.schedule.schedule import Schedule
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.search.constraints import UNCONSTRAINED, Constraints, Objective
from compiler.tuning.search.method import SearchMethod, Trial
from compiler.tuning.search.search_units import (
    Choice,
    SearchUnit,
    neighbour_loss,
    network_mutations,
    units_of,
    with_choices,
)
from hw.errors import InputError

#: Each so many trials the best choices of all units are tried together.
_TOGETHER = 4
#: What does not fit is left out so often before a trial is given up.
_ATTEMPTS = 12
#: Trials that all turned out to be known, until a known one is taken.
_PATIENCE = 20


class CoordinateSearch(SearchMethod):
    """Changes many layers in one trial, and takes each change by the cycles counted under its own tags.

    Neighbours do not change in the same trial, since one layer's loads may come while the one before it computes.
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
        self._tried: dict[str, dict[int, Choice]] = {}
        self._wholes = network_mutations(self.prepared.graph, self.first, baseline)

    def propose(self) -> Schedule:
        """First what changes all; then something new for every other unit, and now and then the best of all."""
        while self._wholes:
            schedule = self._wholes.pop()(self.best.schedule)
            if self.register(schedule):
                return schedule
        for _ in range(_PATIENCE):
            self._count += 1
            schedule, tried = self._together() if self._count % _TOGETHER == 0 else self._changed()
            if self.register(schedule):
                self._tried[schedule.to_json()] = tried
                return schedule
        return self.first

    def learn(self, trial: Trial) -> None:
        """Each unit's cycles count for what it tried, and so does what its neighbours lose by that."""
        tried = self._tried.pop(trial.schedule.to_json(), {})
        if trial.cost is None or not isinstance(trial.result, Measurement):
            return
        cycles = [unit.measured(trial.result) for unit in self.units]
        if not tried:
            self._return_to(trial if self._better(trial) else self.best)
            return
        more = [now - unit.cycles for now, unit in zip(cycles, self.units, strict=True)]
        for number, choice in tried.items():
            if more[number] + neighbour_loss(more, number) < 0:
                self.units[number].best = choice
                self.units[number].cycles = cycles[number]

    def _better(self, trial: Trial) -> bool:
        return trial.cost is not None and self.best.cost is not None and trial.cost <= self.best.cost

    def _return_to(self, trial: Trial) -> None:
        """Every unit has what it had in a trial: changes that helped one by one need not do so together."""
        assert isinstance(trial.result, Measurement)
        if trial.schedule.fusions != self.fusions:
            self._begin(trial)
            return
        for unit in self.units:
            unit.best = {name: trial.schedule.layers[name] for name in unit.names}
            unit.cycles = unit.measured(trial.result)

    def _begin(self, trial: Trial) -> None:
        """Units of the layers that the fusions of a trial make."""
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

    def _together(self) -> tuple[Schedule, dict[int, Choice]]:
        schedule, _ = self._fitting({})
        return schedule, {}

    def _changed(self) -> tuple[Schedule, dict[int, Choice]]:
        odd = self.rng.randrange(2)
        tried = {number: next(unit.candidates) for number, unit in enumerate(self.units) if number % 2 == odd}
        return self._fitting(tried)

    def _fitting(self, tried: dict[int, Choice]) -> tuple[Schedule, dict[int, Choice]]:
        """A schedule of what was chosen, without those that do not fit beside the others."""
        for _ in range(_ATTEMPTS):
            choices = [tried.get(number, unit.best) for number, unit in enumerate(self.units)]
            schedule = with_choices(self.best.schedule, choices)
            try:
                self.prepared.network(schedule)
            except InputError as error:
                here = self._guilty(error, tried)
                tried = {number: choice for number, choice in tried.items() if number not in here}
                continue
            return schedule, tried
        return self.best.schedule, {}

    def _guilty(self, error: InputError, tried: dict[int, Choice]) -> set[int]:
        """Units whose choices are to be left out: those that the error names, or else one of them."""
        names = set(error.layers) if isinstance(error, MemoryFullError) else set()
        names |= set(re.findall(r"layer '([^']*)'", str(error)))
        here = {number for number, unit in enumerate(self.units) if names & set(unit.names)}
        for number in here - tried.keys():  # it was the best one, which something else made room for
            self._give_up(self.units[number])
        return here & tried.keys() or set(self.rng.sample(sorted(tried), 1) if tried else ())

    def _give_up(self, unit: SearchUnit) -> None:
        """Back to what the unit had at first."""
        unit.best = {name: self.first.layers[name] for name in unit.names}
