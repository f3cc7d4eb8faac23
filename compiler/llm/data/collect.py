"""Collection of training data: measurement of small networks along trajectories of schedules and of edits."""

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from compiler.cost.roofline import bus_rate
from compiler.llm.data.held_out import MACHINES, TRAINING, CorpusMachine, is_held_out
from compiler.llm.data.trajectories import (
    EditTrajectory,
    EditVariant,
    Trajectory,
    TrajectoryStep,
    changed_fields,
    non_default,
)
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import Measurement
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import dram_bytes
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, transformers
from compiler.tuning.calibration.collect import draw_network
from compiler.tuning.edits.edit import Edit, EditError, apply_edits, draw_edits
from compiler.tuning.edits.editable_programs import EditableProgram, EditablePrograms
from compiler.tuning.layer_space import LayerSpace, spaces_of
from compiler.tuning.measure.golden_inputs import GoldenModelReference
from compiler.tuning.measure.throughput import measure_network
from compiler.tuning.search.method import with_layer
from compiler.util.progress import building
from hw.errors import InputError
from hw.isa.counters import CAUSES

if TYPE_CHECKING:
    from cosim.rtl.rtl_device import RtlDevice

#: Maximum cycles of a schedule; slower schedules are discarded.
_MAX_CYCLES = 150_000
_DRAM_BYTES = 1 << 24


class Devices:
    """Simulated devices, opened on first use; `close` closes all of them."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._open: dict[str, RtlDevice] = {}

    def get(self, machine: CorpusMachine) -> "RtlDevice":
        """Return the device of a configuration, after setting its DRAM timing."""
        conditions = machine.conditions
        if machine.target not in self._open:
            from cosim.rtl.rtl_device import RtlDevice

            device = self._stack.enter_context(RtlDevice(conditions.config, _DRAM_BYTES, monitor=building))
            self._open[machine.target] = device
        device = self._open[machine.target]
        device.set_dram_timing(latency=conditions.dram.latency, bytes_per_cycle=conditions.rate)
        device.set_throttle(conditions.dram.throttle)
        return device

    def close(self) -> None:
        """Close all devices."""
        self._stack.close()


class MeasureHarness:
    """Compiler and device for measurements of one network on one hardware configuration.

    Parameters
    ----------
    devices : Devices
        Simulated devices to measure on.
    name : str
        Name of the configuration, a key of compiler.llm.data.held_out.MACHINES.
    point : CalibrationNetwork
        Network to measure.

    Attributes
    ----------
    prepared, first : ModelCompiler, CompiledNetwork
        Compiler of the network, and the network compiled with the static schedule.
    names : list of str
        Names of the layers.

    Raises
    ------
    InputError
        The network needs host operators or several programs on this configuration.
    """

    def __init__(self, devices: Devices, name: str, point: CalibrationNetwork):
        self.devices, self.machine = devices, MACHINES[name]
        conditions = self.machine.conditions
        self.prepared = ModelCompiler(point.graph(), conditions.config, self.machine.options)
        self.first = self.prepared.network()
        self.stages = self.prepared.lowered(self.first.schedule.fusions)
        whole = len(self.stages) == len(self.first.codes) == 1 and not self.first.host
        if not whole or dram_bytes(self.first) > _DRAM_BYTES:
            raise InputError(f"{point.family}: the network does not run on the accelerator as a single stage")
        self.names = [layer.name for layer in self.stages[0].layers]
        self._golden_io = GoldenModelReference(self.first).golden_io(0)

    def measure(self, network: CompiledNetwork) -> Measurement | None:
        """Measure a compiled network; return None if its outputs are wrong or the run takes too long."""
        if dram_bytes(network) > _DRAM_BYTES:
            return None
        conditions = self.machine.conditions
        rate = bus_rate(conditions.config, conditions.rate)
        device = self.devices.get(self.machine)
        found = measure_network(device, network, self._golden_io, rate, _MAX_CYCLES)
        return found if isinstance(found, Measurement) and found.valid else None

    def step(self, base: int, layer: int, changes: dict[str, Any], measured: Measurement) -> TrajectoryStep:
        """Convert a measurement to a trajectory step; the other arguments are fields of `TrajectoryStep`."""
        numbers = {self.names.index(entry.names[0]): entry for entry in measured.layers}
        cycles = {number: entry.cycles for number, entry in numbers.items()}
        where = {number: [entry.where[cause] for cause in CAUSES] for number, entry in numbers.items()}
        return TrajectoryStep(base, layer, changes, measured.cycles, cycles, where)


#: Number of variants per program in addition to the compiled one, and maximum attempts for each.
_VARIANTS, _MAX_ATTEMPTS = 24, 10
#: Fraction of trajectories in which a program of a random schedule is edited instead of one of the best schedule.
_OTHER_SCHEDULE_SHARE = 0.25
#: Fraction of variants that start from an arbitrary variant instead of the best one so far.
_RANDOM_BASE_SHARE = 0.15
#: Maximum number of commands of an edited program; building variants of longer programs takes too long.
_MAX_COMMANDS = 400


def edit_trajectory(devices: Devices, trajectory: Trajectory, rng: random.Random) -> EditTrajectory | None:
    """Measure edits of one program of a trajectory's network; return None if no program can be edited.

    Parameters
    ----------
    devices : Devices
        Simulated devices to measure on.
    trajectory : Trajectory
        Network and its schedules.
    rng : random.Random
        Random generator for the edits.

    Raises
    ------
    WorkError
        A simulator process died.
    """
    costs = [step.cycles for step in trajectory.steps]
    step = rng.randrange(len(costs)) if rng.random() < _OTHER_SCHEDULE_SHARE else costs.index(min(costs))
    try:
        harness = MeasureHarness(devices, trajectory.machine, trajectory.point)
        layers = dict(zip(harness.names, trajectory.schedules(step), strict=True))
        network = harness.prepared.network(replace(harness.first.schedule, layers=layers))
    except InputError:  # the trajectory was measured with another compiler version
        return None
    editable = EditablePrograms(network)
    pieces = [piece for piece in editable.programs if 0 < len(piece.unrolled.commands) <= _MAX_COMMANDS]
    measured = harness.measure(network) if pieces else None
    if measured is None:
        return None
    piece = rng.choices(pieces, [max(each.cycles(measured), 1) for each in pieces])[0]
    return _EditSampler(harness, editable, piece, rng).measure(step, measured)


class _EditSampler:
    """Sampler that draws and measures edited variants of one program."""

    def __init__(
        self, harness: MeasureHarness, editable: EditablePrograms, piece: EditableProgram, rng: random.Random
    ):
        self.harness, self.editable, self.piece, self.rng = harness, editable, piece, rng
        self._seen = {_text(editable.schedule)}

    def measure(self, step: int, measured: Measurement) -> EditTrajectory:
        """Draw and measure variants; the result has fewer variants if not enough edits have an effect."""
        result = EditTrajectory(step, self.piece.name, [self._variant(-1, None, measured)])
        edits: list[tuple[Edit, ...]] = [()]
        for _ in range(_VARIANTS):
            costs = [variant.cycles for variant in result.variants]
            best = costs.index(min(costs))
            base = self.rng.randrange(len(costs)) if self.rng.random() < _RANDOM_BASE_SHARE else best
            found = self._next(edits[base])
            if found is not None:
                result.variants.append(self._variant(base, *found))
                edits.append((*edits[base], found[0]))
        return result

    def _next(self, edits: tuple[Edit, ...]) -> tuple[Edit, Measurement] | None:
        """Measure one more random edit; return None if no new variant is found."""
        commands = apply_edits(self.editable.config, self.piece.unrolled.commands, edits)
        for _ in range(_MAX_ATTEMPTS):
            found = draw_edits(self.editable.config, commands, self.rng)
            if found is None:
                return None
            try:
                schedule = self.editable.with_edits({self.piece.name: (*edits, found[0])})
                if (text := _text(schedule)) in self._seen:
                    continue
                self._seen.add(text)
                network = self.harness.prepared.network(schedule)
            except (EditError, InputError):  # the program exceeds the instruction store
                continue
            if (measured := self.harness.measure(network)) is not None:
                return found[0], measured
        return None

    def _variant(self, base: int, edit: Edit | None, measured: Measurement) -> EditVariant:
        entries = [entry for entry in measured.layers if set(self.piece.layers) & set(entry.names)]
        where = [sum(entry.where[cause] for entry in entries) for cause in CAUSES]
        return EditVariant(base, edit, self.piece.cycles(measured), where)


def _text(schedule: Schedule) -> str:
    return "".join(each.text for each in schedule.programs.values())


#: Number of schedules per network in addition to the first, and number of further schedules per layer after the first
#: layer.
_TRAJECTORY_STEPS, _STEPS_PER_FURTHER_LAYER = 14, 6
#: Fraction of steps with a newly sampled tiling, and maximum number of single-field changes in the other steps.
_FRESH_SHARE, _MAX_CHANGES = 0.4, 2
_MAX_TRAJECTORY_ATTEMPTS = 20


#: Number of the first network that is a part of a transformer; networks with smaller numbers are of all kinds.
FIRST_TRANSFORMER = 1 << 20


def corpus_indices(
    seed: int, first: int, stride: int, names: Sequence[str] = tuple(TRAINING)
) -> Iterator[tuple[str, int]]:
    """Yield pairs of a random hardware configuration and a network number: `first`, `first + stride`, and so on.

    Parameters
    ----------
    seed : int
        Random seed for the configurations.
    first, stride : int
        First network number, and difference of successive numbers.
    names : sequence of str
        Names of the configurations to draw from, keys of TRAINING.
    """
    weights = [TRAINING[name][1] for name in names]
    number = first
    while True:
        (name,) = random.Random(f"{seed} {number}").choices(names, weights)
        yield name, number
        number += stride


def measure(devices: Devices, machine: str, index: int, seed: int) -> Trajectory | None:
    """Measure a trajectory of schedules of one network, then edits of one of its programs.

    From number `FIRST_TRANSFORMER` on, networks are parts of transformers. Return None if the network does
    not fit the configuration or is held out from training.

    Raises
    ------
    WorkError
        A simulator process died.
    """
    rng = random.Random(f"{seed} {machine} {index}")
    lanes = MACHINES[machine].conditions.config.n
    point = draw_network(lanes, rng) if index < FIRST_TRANSFORMER else next(transformers(lanes, rng))
    if is_held_out(point):
        return None
    try:
        sampler = _ScheduleSampler(devices, machine, point, rng)
    except InputError:  # an operator is not supported by this configuration
        return None
    trajectory = sampler.measure(index)
    return None if trajectory is None else with_edits(devices, trajectory, seed)


def measure_again(devices: Devices, trajectory: Trajectory, seed: int) -> Trajectory | None:
    """Measure the schedules of a trajectory under the current compiler and hardware, then new ones and new edits.

    The first step is the current compiler's static schedule. If this is the recorded one, and it and the best recorded
    schedule take the recorded cycles (within 2%), the trajectory is returned unchanged. Return None if the network no
    longer runs on the configuration.

    Raises
    ------
    WorkError
        A simulator process died.
    """
    rng = random.Random(f"{seed} {trajectory.machine} {trajectory.index} again")
    try:
        sampler = _ScheduleSampler(devices, trajectory.machine, trajectory.point, rng)
    except InputError:
        return None
    known = [trajectory.schedules(number) for number in range(len(trajectory.steps))]
    if sampler.is_current(trajectory):
        return trajectory
    found = sampler.measure(trajectory.index, known)
    return None if found is None else with_edits(devices, found, seed)


def with_edits(devices: Devices, trajectory: Trajectory, seed: int) -> Trajectory:
    """Return a trajectory with measured edits of one of its programs, if any can be edited.

    Raises
    ------
    WorkError
        A simulator process died.
    """
    return replace(
        trajectory,
        edited=edit_trajectory(
            devices, trajectory, random.Random(f"{seed} {trajectory.machine} {trajectory.index} edits")
        ),
    )


#: Relative difference of cycles up to which a measurement is that of the current machine.
_TOLERANCE = 0.02


class _ScheduleSampler:
    """Sampler that draws and measures schedules of one network on one hardware configuration.

    Raises
    ------
    InputError
        The network needs host operators or several programs on this configuration.
    """

    def __init__(self, devices: Devices, name: str, point: CalibrationNetwork, rng: random.Random):
        self.name, self.point, self.rng = name, point, rng
        self.harness = MeasureHarness(devices, name, point)
        self.names = self.harness.names
        self.spaces = spaces_of(
            self.harness.prepared.config, self.harness.stages, self.harness.machine.conditions.dram
        )

    def measure(self, index: int, known: Iterable[Sequence[LayerSchedule]] = ()) -> Trajectory | None:
        """Measure the steps of a trajectory, fewer if no new schedule is found; return None if the first step fails.

        Parameters
        ----------
        index : int
            Number of the network.
        known : iterable of sequence of LayerSchedule
            Schedules of all layers to measure before new ones. Left out are those that do not compile, and those that
            differ from every earlier step in more than one layer.
        """
        first = self.harness.first.schedule
        layers = [first.layers[name] for name in self.names]
        trajectory = Trajectory(self.name, index, self.point, [non_default(each) for each in layers])
        measured = self.harness.measure(self.harness.first)
        if measured is None:
            return None
        schedules, costs = [first], [measured.cycles]
        trajectory.steps.append(self.harness.step(-1, -1, {}, measured))
        seen = {first.to_json()}

        def add(base: int, layer: str, schedule: Schedule, measured: Measurement) -> None:
            changes = changed_fields(schedule.layers[layer], schedules[base].layers[layer])
            trajectory.steps.append(self.harness.step(base, self.names.index(layer), changes, measured))
            schedules.append(schedule)
            costs.append(measured.cycles)

        for layers in known:
            change = self._single_change(schedules, layers)
            if change is None:
                continue
            base, layer, schedule = change
            if (measured := self._measure_new(schedule, seen)) is not None:
                add(base, layer, schedule, measured)
        for _ in range(_TRAJECTORY_STEPS + _STEPS_PER_FURTHER_LAYER * (len(self.names) - 1)):
            best = costs.index(min(costs))
            base = self.rng.randrange(len(costs)) if self.rng.random() < _RANDOM_BASE_SHARE else best
            found = self._next(schedules[base], seen)
            if found is not None:
                add(base, *found)
        return trajectory

    def is_current(self, trajectory: Trajectory) -> bool:
        """Return True if the static schedule is the recorded one, and it and the best one take the recorded cycles."""
        first = self.harness.first.schedule
        if [first.layers[name] for name in self.names] != trajectory.schedules(0):
            return False
        costs = [step.cycles for step in trajectory.steps]
        for number in dict.fromkeys((0, costs.index(min(costs)))):
            layers = dict(zip(self.names, trajectory.schedules(number), strict=True))
            try:
                measured = self.harness.measure(self.harness.prepared.network(replace(first, layers=layers)))
            except InputError:  # the schedule no longer fits
                return False
            if measured is None or abs(measured.cycles - costs[number]) > _TOLERANCE * costs[number]:
                return False
        return True

    def _single_change(
        self, schedules: Sequence[Schedule], layers: Sequence[LayerSchedule]
    ) -> tuple[int, str, Schedule] | None:
        """Return the index of a schedule that differs from `layers` in one layer, the layer, and the new schedule."""
        if len(layers) != len(self.names):  # other layers are fused today
            return None
        for base, schedule in enumerate(schedules):
            differs = [
                (name, layer)
                for name, layer in zip(self.names, layers, strict=True)
                if schedule.layers[name] != layer
            ]
            if len(differs) == 1:
                return base, differs[0][0], with_layer(schedule, *differs[0])
        return None

    def _measure_new(self, schedule: Schedule, seen: set[str]) -> Measurement | None:
        """Measure a schedule that is not in `seen`, and add it; return None if it is, does not fit or is wrong."""
        if (text := schedule.to_json()) in seen:
            return None
        seen.add(text)
        try:
            return self.harness.measure(self.harness.prepared.network(schedule))
        except InputError:  # the schedule does not fit
            return None

    def _next(self, base: Schedule, seen: set[str]) -> tuple[str, Schedule, Measurement] | None:
        """Measure a new schedule that differs from `base` in one layer; return None if none is found."""
        for _ in range(_MAX_TRAJECTORY_ATTEMPTS):
            layer = self.rng.choice(self.names)
            schedule = with_layer(base, layer, self._changed(self.spaces[layer], base.layers[layer]))
            if (measured := self._measure_new(schedule, seen)) is not None:
                return layer, schedule, measured
        return None

    def _changed(self, space: LayerSpace, now: LayerSchedule) -> LayerSchedule:
        if self.rng.random() < _FRESH_SHARE:
            return space.draw(self.rng, now)
        for _ in range(self.rng.randint(1, _MAX_CHANGES)):
            now = space.change(self.rng, now)
        return now
