"""Measures small networks for the language model: each under a walk of schedules towards better ones."""

import random
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from compiler.hpm.collect import point_of
from compiler.hpm.points import Point
from compiler.llm.corpus.held_out import is_held_out
from compiler.llm.corpus.machines import MACHINES, TRAINING, Machine
from compiler.llm.corpus.walk import Step, Walk, different, unusual
from compiler.measure.measurement import Measurement
from compiler.measure.reference import Reference
from compiler.measure.trial import measure_network
from compiler.network import Network
from compiler.pipeline import Prepared
from compiler.profile.floors import bus_rate
from compiler.runtime import dram_bytes
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.search.method import with_layer
from compiler.specialize.space import LayerSpace, spaces_of
from hw.errors import InputError
from hw.isa.counters import CAUSES

if TYPE_CHECKING:
    from cosim.rtl.rtl_device import RtlDevice

#: Schedules of a network beside the first, and more for each layer that follows another one.
_STEPS, _MORE = 14, 6
#: Part of the steps that are tilings drawn anew, and single changes of a schedule otherwise at most.
_DRAWN, _CHANGES = 0.4, 2
#: Steps start from what is best so far, but for this part of them, which start from any other.
_ASTRAY = 0.15
_PATIENCE = 20
#: A schedule that takes more cycles is of no use to anybody.
_LIMIT = 150_000
_DRAM_BYTES = 1 << 24


class Devices:
    """Simulated machines, each opened when it is first asked for; to be closed."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._open: dict[str, RtlDevice] = {}

    def of(self, machine: Machine) -> "RtlDevice":
        """The machine's, with its memory's timing."""
        conditions = machine.conditions
        if machine.target not in self._open:
            from cosim.rtl.rtl_device import RtlDevice

            device = self._stack.enter_context(RtlDevice(conditions.config, _DRAM_BYTES))
            self._open[machine.target] = device
        device = self._open[machine.target]
        device.set_dram_timing(latency=conditions.dram.latency, bytes_per_cycle=conditions.rate)
        return device

    def close(self) -> None:
        """Close all."""
        self._stack.close()


def places(seed: int, lane: int, lanes: int) -> Iterator[tuple[str, int]]:
    """Machines and numbers of networks without end, every `lanes`-th of them."""
    names, weights = list(TRAINING), [weight for _, weight in TRAINING.values()]
    number = lane
    while True:
        (name,) = random.Random(f"{seed} {number}").choices(names, weights)
        yield name, number
        number += lanes


def measure(devices: Devices, machine: str, index: int, seed: int) -> Walk | None:
    """A walk over schedules of one network; None: it is not for the machine, or to be kept out of training.

    Raises
    ------
    WorkError
        A simulator died.
    """
    rng = random.Random(f"{seed} {machine} {index}")
    point = point_of(MACHINES[machine].conditions.config.n, rng)
    if is_held_out(point):
        return None
    try:
        walker = Walker(devices, machine, point, rng)
    except InputError:  # no operator for this machine
        return None
    return walker.walk(index)


class Walker:
    """One network on one machine.

    Parameters
    ----------
    devices : Devices
        Who measures.
    name : str
        The machine, a key of MACHINES.
    point : Point
        The network.
    rng : random.Random
        Chance.

    Attributes
    ----------
    prepared, first : Prepared, Network
        The network, to be compiled; as the static compiler makes it.
    names : list of str
        Its layers.

    Raises
    ------
    InputError
        Not all of it runs there in one go.
    """

    def __init__(self, devices: Devices, name: str, point: Point, rng: random.Random):
        self.name, self.point, self.rng, self.devices = name, point, rng, devices
        self.machine = MACHINES[name]
        conditions = self.machine.conditions
        self.prepared = Prepared(point.graph(), conditions.config, self.machine.options)
        self.first = self.prepared.network()
        stages = self.prepared.lowered(self.first.schedule.fusions)
        whole = len(stages) == len(self.first.codes) == 1 and not self.first.host
        if not whole or dram_bytes(self.first) > _DRAM_BYTES:
            raise InputError(f"{point.family}: not all of it runs on the machine in one go")
        self.names = [layer.name for layer in stages[0].layers]
        self.spaces = spaces_of(self.prepared.config, stages, conditions.dram)
        self.question = Reference(self.first).question(0)

    def walk(self, index: int) -> Walk | None:
        """As many steps as there are to be, fewer where there are not as many schedules."""
        first = self.first.schedule
        layers = [first.layers[name] for name in self.names]
        walk = Walk(self.name, index, self.point, [unusual(each) for each in layers])
        measured = self.measured(self.first)
        if measured is None:
            return None
        schedules, costs = [first], [measured.cycles]
        walk.steps.append(self.step(-1, -1, {}, measured))
        seen = {first.to_json()}
        for _ in range(_STEPS + _MORE * (len(self.names) - 1)):
            best = costs.index(min(costs))
            base = self.rng.randrange(len(costs)) if self.rng.random() < _ASTRAY else best
            found = self._next(schedules[base], seen)
            if found is None:
                continue
            layer, schedule, measured = found
            changes = different(schedule.layers[layer], schedules[base].layers[layer])
            walk.steps.append(self.step(base, self.names.index(layer), changes, measured))
            schedules.append(schedule)
            costs.append(measured.cycles)
        return walk

    def _next(self, base: Schedule, seen: set[str]) -> tuple[str, Schedule, Measurement] | None:
        """A new schedule that differs from one in a layer, measured."""
        for _ in range(_PATIENCE):
            layer = self.rng.choice(self.names)
            schedule = with_layer(base, layer, self._changed(self.spaces[layer], base.layers[layer]))
            text = schedule.to_json()
            if text in seen:
                continue
            seen.add(text)
            try:
                network = self.prepared.network(schedule)
            except InputError:  # it does not fit
                continue
            if (measured := self.measured(network)) is not None:
                return layer, schedule, measured
        return None

    def _changed(self, space: LayerSpace, now: LayerSchedule) -> LayerSchedule:
        if self.rng.random() < _DRAWN:
            return space.draw(self.rng, now)
        for _ in range(self.rng.randint(1, _CHANGES)):
            now = space.change(self.rng, now)
        return now

    def measured(self, network: Network) -> Measurement | None:
        """What a schedule of it costs; None: too much, or it is not believable."""
        if dram_bytes(network) > _DRAM_BYTES:
            return None
        conditions = self.machine.conditions
        rate = bus_rate(conditions.config, conditions.rate)
        device = self.devices.of(self.machine)
        found = measure_network(device, network, self.question, rate, _LIMIT)
        return found if isinstance(found, Measurement) and found.believable else None

    def step(self, base: int, layer: int, changes: dict, measured: Measurement) -> Step:
        """What was measured, as a step; `base`, `layer` and `changes` as there."""
        numbers = {self.names.index(entry.names[0]): entry for entry in measured.layers}
        cycles = {number: entry.cycles for number, entry in numbers.items()}
        where = {number: [entry.where[c] for c in CAUSES] for number, entry in numbers.items()}
        return Step(base, layer, changes, measured.cycles, cycles, where)
