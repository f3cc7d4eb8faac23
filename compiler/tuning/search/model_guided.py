"""Search guided by the learned cost model: each trial changes several layers, and each change is judged separately."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from compiler.cost.learned_model import PredictionErrors, energy_model
from compiler.cost.online_model import OnlineCostModel, attribution_groups
from compiler.profile.measurement import Measurement, Result
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.constraints import UNCONSTRAINED, Constraints, Objective
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.search.method import SearchMethod, Trial
from hw.errors import InputError

#: Maximum number of layers that change in a trial; minimum distance between them, in groups of layers.
_MAX_WIDTH, _MIN_SPACING = 6, 3
#: Optimism about uncertain candidates: their predicted costs are lowered by this multiple of the expected error.
_EXPLORATION = 1.0
#: Number of mutated schedules of a layer that are candidates in addition to its tilings; maximum number of changes of
#: each.
_MUTATED, _MAX_CHANGES = 24, 2
#: Interval, in trials, at which random tilings are mutated instead of the current schedule, whose mutations always
#: have about the same predicted gain.
_RANDOM_START_INTERVAL = 2
#: Maximum number of random changes tried per proposal.
_MAX_ATTEMPTS = 100
#: Number of trials after which improvements are measured together, and the predicted relative gain that this requires.
_COMBINED_INTERVAL, _MIN_COMBINED_GAIN = 3, 0.001
#: Minimum gain of a change to be accepted, as a fraction of the network's cost.
_MIN_GAIN = 1e-5


@dataclass(frozen=True)
class _Proposal:
    """State of the search when a trial was proposed.

    Parameters
    ----------
    changed : dict of str to int
        Group index of each layer that the trial changes.
    layers : dict of str to LayerSchedule
        Current schedules of all layers at that time, without the changes.
    groups : list of float
        Cost of each group under the schedules in `layers`.
    predicted : float
        Predicted cost of the proposed schedule.
    """

    changed: dict[str, int]
    layers: dict[str, LayerSchedule]
    groups: list[float]
    predicted: float


class ModelGuidedSearch(SearchMethod):
    """Search method that proposes the changes with the lowest predicted costs and learns from the measured costs.

    The cost of a layer is its cycles, or for the goal "energy", its energy in nanojoules.
    An exploration term lowers uncertain predictions. Layers that the counters do not distinguish form a group. Groups
    that change in the same trial are not adjacent, so the costs of a group and its neighbors show whether its change
    helped. Changes that helped are accepted, regardless of the result of the whole trial.
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
        stages = self.prepared.lowered(self.first.fusions)
        energy = goal is Objective.ENERGY
        model = energy_model() if energy else measurer.cost_model
        self.online_model = OnlineCostModel(self.conditions, stages, model, seed, energy=energy)
        self.layers = dict(self.first.layers)
        shared = [names for stage in stages for names in attribution_groups(stage.layers)]
        #: Index of the group of each layer.
        self.group = {
            name: group
            for group, entry in zip(_group_indices(baseline, shared), baseline.layers, strict=True)
            for name in entry.names
        }
        self._groups = self._costs(baseline)
        self._tried: set[tuple[str, LayerSchedule]] = set(self.layers.items())
        self._proposals: dict[str, _Proposal] = {}
        self._width, self._since_combined, self._proposal_count = _MAX_WIDTH, 0, 0
        #: Cost of each layer under its current schedule: the cost of its group, apportioned by prediction.
        self.costs = self._apportion()
        for name, schedule in self.layers.items():
            self.online_model.learn(name, schedule, self.layers, self.costs[name])

    @property
    def predictor(self) -> PredictionErrors:
        """Errors of the costs predicted for whole trials."""
        return self.online_model.errors

    def propose(self) -> Schedule:
        """Return the current schedule with the most promising changes, or unchanged if it has to be measured now."""
        self._proposal_count += 1
        whole = self._with({})
        best = self.best.result
        least = sum(self._costs(best)) if isinstance(best, Measurement) else 0.0
        promises = sum(self._groups) < least * (1 - _MIN_COMBINED_GAIN)
        if promises and self._since_combined >= _COMBINED_INTERVAL and self.register(whole):
            return self._proposed(whole, {})
        chosen = self._fitting(self._promising())
        schedule = self._with(chosen)
        if chosen and self.register(schedule):
            return self._proposed(schedule, chosen)
        for _ in range(_MAX_ATTEMPTS):
            name = self.rng.choice(list(self.spaces))
            changed = self._changed(name, self.layers[name])
            schedule = self._with({name: changed})
            if self.register(schedule):
                return self._proposed(schedule, {name: changed})
        return self.first

    def learn(self, trial: Trial) -> None:
        """Update the cost model with the result of a trial, and accept the changes that helped."""
        proposal = self._proposals.pop(trial.schedule.to_json(), None) or self._of_others(trial)
        if proposal is None:
            if self._beats_groups(trial.result):
                self._adopt(trial)
            return
        self._tried |= {(name, trial.schedule.layers[name]) for name in proposal.changed}
        if trial.cost is None or not isinstance(trial.result, Measurement):
            self._width = max(self._width // 2, 1)
            return
        self._width = min(self._width + 1, _MAX_WIDTH)
        self._since_combined = self._since_combined + 1 if proposal.changed else 0
        found = self._costs(trial.result)
        for name, group in proposal.changed.items():
            self._credit(name, group, trial, proposal, found)
        self.online_model.trial(proposal.predicted, sum(found))
        if not proposal.changed:
            self._adopt(trial)

    def accepts(self, schedule: Schedule) -> bool:
        """Return True for schedules with the first schedule's fusions and without program texts."""
        return schedule.fusions == self.first.fusions and not schedule.programs

    def predicted_gain(self, schedule: Schedule, best: Trial) -> float:
        """Return the predicted relative gain of a schedule over the best trial; 0 if it cannot be predicted.

        The costs of the layers that differ, and of those beside them, are predicted for both schedules.
        """
        if (
            not self.accepts(schedule)
            or not self.accepts(best.schedule)
            or not isinstance(best.result, Measurement)
        ):
            return 0.0
        both, names = (best.schedule.layers, schedule.layers), list(self.group)
        different = {at for at, name in enumerate(names) if both[0][name] != both[1][name]}
        beside = {at + step for at in different for step in (-1, 1)} & set(range(len(names)))
        saved = 0.0
        for at in different | beside:
            before, after = self.online_model.predict_in(names[at], both).cost.tolist()
            saved += before - after
        return saved / max(sum(self._costs(best.result)), 1.0)

    def _of_others(self, trial: Trial) -> _Proposal | None:
        """Return the trial of another method as a proposal; None if its changes cannot be judged separately."""
        changed = {
            name: self.group[name]
            for name, layer in trial.schedule.layers.items()
            if name in self.group and layer != self.layers[name]
        }
        groups = sorted(changed.values())
        near = any(b - a < _MIN_SPACING for a, b in pairwise(groups))
        if not changed or near or not isinstance(trial.result, Measurement):
            return None
        return self._proposal(changed, trial.schedule.layers)

    def _beats_groups(self, result: Result) -> bool:
        """Return True if the cost of a measurement is lower than the accepted changes promise together."""
        return isinstance(result, Measurement) and sum(self._costs(result)) <= sum(self._groups)

    def _adopt(self, trial: Trial) -> None:
        """Continue from the schedule of a trial if it is the best so far."""
        better = trial.cost is not None and trial.cost < (self.best.cost or trial.cost)
        if better and isinstance(trial.result, Measurement):
            self.layers, self._groups = dict(trial.schedule.layers), self._costs(trial.result)
            self.costs = self._apportion()

    def _credit(self, name: str, group: int, trial: Trial, proposal: _Proposal, found: list[float]) -> None:
        """Learn the gain of one change; accept the change if it helped and its layer has not changed since."""
        around = range(max(group - 1, 0), min(group + 2, len(found)))
        gain = sum(proposal.groups[at] - found[at] for at in around)
        schedule = trial.schedule.layers[name]
        before = self.costs[name]
        self.online_model.learn(name, schedule, proposal.layers, before - gain)
        same = self.layers[name] == proposal.layers[name]
        if same and gain > _MIN_GAIN * sum(found):
            self.layers[name] = schedule
            self.costs[name] = max(before - gain, 1.0)
            for at in around:
                self._groups[at] += found[at] - proposal.groups[at]

    def _promising(self) -> Iterator[tuple[str, LayerSchedule]]:
        """Return the most promising change of each layer, largest predicted gain first."""
        gains = []
        for name in self.spaces:
            candidates = self._candidates(name)
            if not candidates:
                continue
            prediction = self.online_model.predict(name, candidates, self.layers)
            optimistic = prediction.cost * (1 - _EXPLORATION * prediction.spread)
            best = int(optimistic.argmin())
            gains.append((self.costs[name] - float(optimistic[best]), name, candidates[best]))
        gains.sort(key=lambda each: -each[0])
        promising = [each for each in gains if each[0] > 0] or gains[:1]
        return ((name, candidate) for _, name, candidate in promising)

    def _candidates(self, name: str) -> list[LayerSchedule]:
        """Return untried schedules of a layer: tilings, and mutations of its current schedule or of random tilings."""
        space, now = self.spaces[name], self.layers[name]
        found = [space.with_context(tiling.schedule, now) for tiling in space.tilings]
        for _ in range(_MUTATED):
            start = now if self._proposal_count % _RANDOM_START_INTERVAL else space.draw(self.rng, now)
            found.append(self._changed(name, start))
        return [each for each in dict.fromkeys(found) if (name, each) not in self._tried]

    def _changed(self, name: str, schedule: LayerSchedule) -> LayerSchedule:
        for _ in range(1 + self.rng.randrange(_MAX_CHANGES)):
            schedule = self.spaces[name].change(self.rng, schedule)
        return schedule

    def _fitting(self, changes: Iterator[tuple[str, LayerSchedule]]) -> dict[str, LayerSchedule]:
        """Select changes to distant groups that can be compiled together."""
        chosen: dict[str, LayerSchedule] = {}
        for name, schedule in changes:
            group = self.group[name]
            if len(chosen) < self._width and all(
                abs(group - self.group[each]) >= _MIN_SPACING for each in chosen
            ):
                if self._compiles(chosen | {name: schedule}):
                    chosen[name] = schedule
                else:
                    self._tried.add((name, schedule))
        return chosen

    def _compiles(self, changes: dict[str, LayerSchedule]) -> bool:
        try:
            self.prepared.network(self._with(changes))
        except InputError:
            return False
        return True

    def _with(self, changes: dict[str, LayerSchedule]) -> Schedule:
        return Schedule(self.first.fusions, self.layers | changes)

    def _proposed(self, schedule: Schedule, changes: dict[str, LayerSchedule]) -> Schedule:
        self._proposals[schedule.to_json()] = self._proposal(changes, schedule.layers)
        return schedule

    def _proposal(self, changed: Iterable[str], layers: Mapping[str, LayerSchedule]) -> _Proposal:
        """Return the state of the search with the predicted cost after changes of some layers."""
        predicted = sum(self._groups)
        for name in changed:
            after = self.online_model.predict(name, [layers[name]], self.layers)
            predicted += float(after.cost[0]) - self.costs[name]
        groups = {name: self.group[name] for name in changed}
        return _Proposal(groups, dict(self.layers), list(self._groups), max(predicted, 1.0))

    def _costs(self, measured: Measurement) -> list[float]:
        """Return the measured cost of each group; a layer without its own counter tag is in the group before it."""
        out = [0.0] * (max(self.group.values()) + 1)
        for entry, cost in zip(measured.layers, self.goal.layer_costs(measured), strict=True):
            out[self.group[entry.names[0]]] += cost
        return out

    def _apportion(self) -> dict[str, float]:
        """Distribute the cost of each group over its layers in proportion to their predicted costs."""
        predictions = {
            name: float(self.online_model.predict(name, [schedule], self.layers).cost[0])
            for name, schedule in self.layers.items()
            if name in self.group
        }
        of_group: dict[int, float] = {}
        for name, cost in predictions.items():
            of_group[self.group[name]] = of_group.get(self.group[name], 0.0) + cost
        return {
            name: self._groups[self.group[name]] * cost / of_group[self.group[name]]
            for name, cost in predictions.items()
        }


def _group_indices(measured: Measurement, shared: Sequence[tuple[str, ...]]) -> list[int]:
    """Return the group index of each entry of a measurement; entries with a common attribution group share an index."""
    mates = {name: names for names in shared for name in names}
    out, group, before = [], -1, set()
    for entry in measured.layers:
        if not before & set(entry.names):
            group, before = group + 1, set()
        before |= {mate for name in entry.names for mate in mates.get(name, (name,))}
        out.append(group)
    return out
