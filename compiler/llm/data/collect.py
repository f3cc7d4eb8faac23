"""Measures small networks for the training data: each along a trajectory of improving schedules."""

import random
from collections.abc import Iterator
from dataclasses import replace

from compiler.llm.data.edit_trajectories import edit_walk
from compiler.llm.data.held_out import is_held_out
from compiler.llm.data.machines import MACHINES, TRAINING
from compiler.llm.data.measure_harness import Devices, MeasureHarness
from compiler.llm.data.trajectories import Trajectory, different, unusual
from compiler.profile.measurement import Measurement
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork
from compiler.tuning.calibration.collect import point_of
from compiler.tuning.search.method import with_layer
from compiler.tuning.space.layer_space import LayerSpace, spaces_of
from hw.errors import InputError

#: Number of schedules per network besides the first, and extra ones per layer that follows another.
_STEPS, _MORE = 14, 6
#: Fraction of steps with freshly sampled tilings, and maximum number of single-field changes otherwise.
_DRAWN, _CHANGES = 0.4, 2
#: Fraction of steps that start from an arbitrary schedule instead of the best one so far.
_ASTRAY = 0.15
_PATIENCE = 20


def places(seed: int, lane: int, lanes: int) -> Iterator[tuple[str, int]]:
    """Yield hardware configurations and network numbers indefinitely, every `lanes`-th of them."""
    names, weights = list(TRAINING), [weight for _, weight in TRAINING.values()]
    number = lane
    while True:
        (name,) = random.Random(f"{seed} {number}").choices(names, weights)
        yield name, number
        number += lanes


def measure(devices: Devices, machine: str, index: int, seed: int) -> Trajectory | None:
    """Measure a trajectory of schedules of one network, then of edits of a program.

    Returns None if the network does not fit the configuration or is held out from training.

    Raises
    ------
    WorkError
        A simulator process died.
    """
    rng = random.Random(f"{seed} {machine} {index}")
    point = point_of(MACHINES[machine].conditions.config.n, rng)
    if is_held_out(point):
        return None
    try:
        walker = _Walker(devices, machine, point, rng)
    except InputError:  # no operator for this machine
        return None
    walk = walker.walk(index)
    return None if walk is None else with_edits(devices, walk, seed)


def with_edits(devices: Devices, walk: Trajectory, seed: int) -> Trajectory:
    """Extend a trajectory with measured edits of one of its programs, if any can be edited.

    Raises
    ------
    WorkError
        A simulator process died.
    """
    return replace(
        walk, edited=edit_walk(devices, walk, random.Random(f"{seed} {walk.machine} {walk.index} edits"))
    )


class _Walker:
    """Samples schedules of one network on one hardware configuration.

    Raises
    ------
    InputError
        The network needs host operators or several programs there.
    """

    def __init__(self, devices: Devices, name: str, point: CalibrationNetwork, rng: random.Random):
        self.name, self.point, self.rng = name, point, rng
        self.rig = MeasureHarness(devices, name, point)
        self.names = self.rig.names
        self.spaces = spaces_of(self.rig.prepared.config, self.rig.stages, self.rig.machine.conditions.dram)

    def walk(self, index: int) -> Trajectory | None:
        """Measure the steps of a trajectory; fewer if there are not enough schedules."""
        first = self.rig.first.schedule
        layers = [first.layers[name] for name in self.names]
        walk = Trajectory(self.name, index, self.point, [unusual(each) for each in layers])
        measured = self.rig.measured(self.rig.first)
        if measured is None:
            return None
        schedules, costs = [first], [measured.cycles]
        walk.steps.append(self.rig.step(-1, -1, {}, measured))
        seen = {first.to_json()}
        for _ in range(_STEPS + _MORE * (len(self.names) - 1)):
            best = costs.index(min(costs))
            base = self.rng.randrange(len(costs)) if self.rng.random() < _ASTRAY else best
            found = self._next(schedules[base], seen)
            if found is None:
                continue
            layer, schedule, measured = found
            changes = different(schedule.layers[layer], schedules[base].layers[layer])
            walk.steps.append(self.rig.step(base, self.names.index(layer), changes, measured))
            schedules.append(schedule)
            costs.append(measured.cycles)
        return walk

    def _next(self, base: Schedule, seen: set[str]) -> tuple[str, Schedule, Measurement] | None:
        """Measure a new schedule that differs from `base` in one layer."""
        for _ in range(_PATIENCE):
            layer = self.rng.choice(self.names)
            schedule = with_layer(base, layer, self._changed(self.spaces[layer], base.layers[layer]))
            text = schedule.to_json()
            if text in seen:
                continue
            seen.add(text)
            try:
                network = self.rig.prepared.network(schedule)
            except InputError:  # it does not fit
                continue
            if (measured := self.rig.measured(network)) is not None:
                return layer, schedule, measured
        return None

    def _changed(self, space: LayerSpace, now: LayerSchedule) -> LayerSchedule:
        if self.rng.random() < _DRAWN:
            return space.draw(self.rng, now)
        for _ in range(self.rng.randint(1, _CHANGES)):
            now = space.change(self.rng, now)
        return now
