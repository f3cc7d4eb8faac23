"""Search guided by the performance model: several layers change in each trial, and each gets its own credit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compiler.cost.learned.model import PredictionErrors, find_model
from compiler.cost.learned.online_model import OnlineCostModel, attribution_groups
from compiler.profile.measurement import Measurement
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.search.constraints import UNCONSTRAINED, Constraints, Objective
from compiler.tuning.search.method import SearchMethod, Trial
from hw.errors import InputError

#: Layers that change in a trial, at most; groups of layers from one that changes to the next.
_WIDTH, _SPACING = 6, 3
#: A candidate counts as so many of its expected errors better than it is predicted.
_EXPLORE = 1.0
#: Schedules of a layer that are changed for candidates beside its tilings, and by how many changes at most.
_CHANGED, _STEPS = 24, 2
#: In each so manyth trial tilings drawn anew are changed: changes of what is best so far always promise about as much.
_DRAWN = 2
_PATIENCE = 100
#: What has got better but was never measured together is, after so many trials, if it promises such a part.
_TOGETHER, _PROMISE = 3, 0.001
#: A gain that is less than this part of the network's cycles is none.
_LEAST = 1e-5


@dataclass(frozen=True)
class _Proposal:
    """What a trial was for.

    Parameters
    ----------
    changed : dict
        Group of each layer that differs from the present schedule.
    layers : dict
        The present schedules when it was proposed.
    groups : list of float
        Cycles of the groups under them.
    predicted : float
        Cycles of all.
    """

    changed: dict[str, int]
    layers: dict[str, LayerSchedule]
    groups: list[float]
    predicted: float


class ModelGuidedSearch(SearchMethod):
    """Proposes what the model says is best, less a term for how unsure it is; learns from cycles by layer.

    Layers that the counters do not tell apart are a group. Groups that change in a trial lie apart, so that the
    cycles of each and of its neighbours log whether its change helped; what helped is kept, whatever came of the
    whole trial.
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
        self.foresight = OnlineCostModel(self.conditions, stages, find_model(self.conditions), seed)
        self.layers = dict(self.first.layers)
        together = [names for stage in stages for names in attribution_groups(stage.layers)]
        #: The group that each layer is a part of.
        self.group = {
            name: group
            for group, entry in zip(_merged(baseline, together), baseline.layers, strict=True)
            for name in entry.names
        }
        self._groups = self._cycles(baseline)
        self._tried: set[tuple[str, LayerSchedule]] = set(self.layers.items())
        self._proposals: dict[str, _Proposal] = {}
        self._width, self._since, self._asked = _WIDTH, 0, 0
        #: Cycles of each layer under its present schedule: those of its group, shared out by prediction.
        self.cycles = self._shared_out()
        for name, schedule in self.layers.items():
            self.foresight.learn(name, schedule, self.layers, self.cycles[name])

    @property
    def predictor(self) -> PredictionErrors:
        """How good predictions of whole trials were."""
        return self.foresight.errors

    def propose(self) -> Schedule:
        """The present schedule with the most promising changes, or by itself if that is promising enough."""
        self._asked += 1
        whole = self._with({})
        promises = sum(self._groups) < (self.best.cost or 0.0) * (1 - _PROMISE)
        if (
            self.goal is not Objective.ENERGY
            and promises
            and self._since >= _TOGETHER
            and self.register(whole)
        ):
            return self._proposed(whole, {})
        chosen = self._fitting(self._promising())
        schedule = self._with(chosen)
        if chosen and self.register(schedule):
            return self._proposed(schedule, chosen)
        for _ in range(_PATIENCE):
            name = self.rng.choice(list(self.spaces))
            changed = self._changed(name, self.layers[name])
            schedule = self._with({name: changed})
            if self.register(schedule):
                return self._proposed(schedule, {name: changed})
        return self.first

    def learn(self, trial: Trial) -> None:
        """Keeps the changes that helped."""
        proposal = self._proposals.pop(trial.schedule.to_json(), None)
        if proposal is None:
            self._adopt(trial)
            return
        self._tried |= {(name, trial.schedule.layers[name]) for name in proposal.changed}
        if trial.cost is None or not isinstance(trial.result, Measurement):
            self._width = max(self._width // 2, 1)
            return
        self._width = min(self._width + 1, _WIDTH)
        self._since = self._since + 1 if proposal.changed else 0
        found = self._cycles(trial.result)
        for name, group in proposal.changed.items():
            self._credit(name, group, trial, proposal, found)
        self.foresight.trial(proposal.predicted, float(trial.result.cycles))
        if self.goal is Objective.ENERGY or not proposal.changed:
            self._adopt(trial)

    def _adopt(self, trial: Trial) -> None:
        """Go on from a schedule, if it is the best so far as a whole."""
        better = trial.cost is not None and trial.cost < (self.best.cost or trial.cost)
        if better and isinstance(trial.result, Measurement):
            self.layers, self._groups = dict(trial.schedule.layers), self._cycles(trial.result)
            self.cycles = self._shared_out()

    def _credit(self, name: str, group: int, trial: Trial, proposal: _Proposal, found: list[float]) -> None:
        """A change's own cycles; it is kept if it helped and nothing else was kept for its layer meanwhile."""
        around = range(max(group - 1, 0), min(group + 2, len(found)))
        gain = sum(proposal.groups[at] - found[at] for at in around)
        schedule = trial.schedule.layers[name]
        before = self.cycles[name]
        self.foresight.learn(name, schedule, proposal.layers, before - gain)
        same = self.layers[name] == proposal.layers[name]
        if self.goal is not Objective.ENERGY and same and gain > _LEAST * sum(found):
            self.layers[name] = schedule
            self.cycles[name] = max(before - gain, 1.0)
            for at in around:
                self._groups[at] += found[at] - proposal.groups[at]

    def _promising(self) -> Iterator[tuple[str, LayerSchedule]]:
        """The best change of each layer that promises to help, the greatest gains first."""
        gains = []
        for name in self.spaces:
            candidates = self._candidates(name)
            if not candidates:
                continue
            guess = self.foresight.guess(name, candidates, self.layers)
            hoped = guess.cycles * (1 - _EXPLORE * guess.spread)
            best = int(hoped.argmin())
            gains.append((self.cycles[name] - float(hoped[best]), name, candidates[best]))
        gains.sort(key=lambda each: -each[0])
        some = [each for each in gains if each[0] > 0] or gains[:1]
        return ((name, candidate) for _, name, candidate in some)

    def _candidates(self, name: str) -> list[LayerSchedule]:
        """Tilings of a layer, and changes of its present schedule or of some tilings, that were not tried yet."""
        space, now = self.spaces[name], self.layers[name]
        found = [space.with_context(tiling.schedule, now) for tiling in space.tilings]
        for _ in range(_CHANGED):
            start = now if self._asked % _DRAWN else space.draw(self.rng, now)
            found.append(self._changed(name, start))
        return [each for each in dict.fromkeys(found) if (name, each) not in self._tried]

    def _changed(self, name: str, schedule: LayerSchedule) -> LayerSchedule:
        for _ in range(1 + self.rng.randrange(_STEPS)):
            schedule = self.spaces[name].change(self.rng, schedule)
        return schedule

    def _fitting(self, changes: Iterator[tuple[str, LayerSchedule]]) -> dict[str, LayerSchedule]:
        """Some changes that lie apart and can be compiled together."""
        chosen: dict[str, LayerSchedule] = {}
        for name, schedule in changes:
            group = self.group[name]
            if len(chosen) < self._width and all(
                abs(group - self.group[each]) >= _SPACING for each in chosen
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
        predicted = sum(self._groups)
        for name, changed in changes.items():
            predicted += (
                float(self.foresight.guess(name, [changed], self.layers).cycles[0]) - self.cycles[name]
            )
        changed_groups = {name: self.group[name] for name in changes}
        self._proposals[schedule.to_json()] = _Proposal(
            changed_groups, dict(self.layers), list(self._groups), max(predicted, 1.0)
        )
        return schedule

    def _cycles(self, measured: Measurement) -> list[float]:
        """Of each group; layers that do not count by themselves are in that of the layer before."""
        out = [0.0] * (max(self.group.values()) + 1)
        for entry in measured.layers:
            out[self.group[entry.names[0]]] += entry.cycles
        return out

    def _shared_out(self) -> dict[str, float]:
        guesses = {
            name: float(self.foresight.guess(name, [schedule], self.layers).cycles[0])
            for name, schedule in self.layers.items()
            if name in self.group
        }
        of_group: dict[int, float] = {}
        for name, cycles in guesses.items():
            of_group[self.group[name]] = of_group.get(self.group[name], 0.0) + cycles
        return {
            name: self._groups[self.group[name]] * cycles / of_group[self.group[name]]
            for name, cycles in guesses.items()
        }


def _merged(measured: Measurement, together: Sequence[tuple[str, ...]]) -> list[int]:
    """The group of each entry of a measurement: entries with parts of what is counted together share one."""
    mates = {name: names for names in together for name in names}
    out, group, before = [], -1, set()
    for entry in measured.layers:
        if not before & set(entry.names):
            group, before = group + 1, set()
        before |= {mate for name in entry.names for mate in mates.get(name, (name,))}
        out.append(group)
    return out
