"""Measurement of calibration networks, with a journal of JSON lines from which an interrupted run continues."""

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from compiler.cost.roofline import bus_rate
from compiler.ir.graph import Graph, Node, random_input
from compiler.ir.identity import identity, restored, stored
from compiler.ir.tensor import Quantization, Tensor
from compiler.lowering.lower import LoweredNetwork
from compiler.lowering.partition import work_of
from compiler.options import CompileOptions, DramTiming, HostCosts
from compiler.passes import simplify
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile, Measurement
from compiler.reference import run_node
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import dram_bytes
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.calibration.calibration_networks import (
    CalibrationNetwork,
    chains,
    singles,
    with_weight_formats,
)
from compiler.tuning.measure.golden_inputs import GoldenModelReference
from compiler.tuning.measure.throughput import measure_network
from compiler.util.files import parsed_line
from compiler.util.progress import building, progress
from cosim.device_pool import DevicePool
from hw.config import MlaConfig
from hw.errors import InputError, WorkError, reason_of

if TYPE_CHECKING:
    from cosim.rtl.rtl_device import RtlDevice

FORMAT, VERSION = "mla-hpm-points", 2


@identity(
    "Sample",
    "index",
    "number",
    "point",
    "schedules",
    "layers",
    "energy_uj",
    "conflicts",
    added=("energy_uj", "conflicts"),
)
@dataclass(frozen=True)
class CalibrationSample:
    """Measurement of a network under one schedule.

    Parameters
    ----------
    index, number : int
        Index of the network, and index of the schedule among the network's schedules; schedule 0 is the initial
        schedule.
    point : CalibrationNetwork
        Network that was measured.
    schedules : dict of str to LayerSchedule
        Schedule of each layer, by layer name.
    layers : dict of str to int
        Cycles of each layer, by layer name.
    energy_uj : dict of str to float or None
        Energy of each layer in microjoules, by layer name; None in journals of earlier versions.
    conflicts : dict of str to int or None
        Accesses of each layer that a memory bank refused, by layer name; None in journals of earlier versions.
    """

    index: int
    number: int
    point: CalibrationNetwork
    schedules: dict[str, LayerSchedule]
    layers: dict[str, int]
    energy_uj: dict[str, float] | None = None
    conflicts: dict[str, int] | None = None

    @property
    def cycles(self) -> int:
        """Total cycles of all layers."""
        return sum(self.layers.values())

    @classmethod
    def of(
        cls, index: int, number: int, point: CalibrationNetwork, schedule: Schedule, found: Measurement
    ) -> "CalibrationSample | None":
        """Return the sample of a measurement; None if layers share a counter tag."""
        entries = {entry.names[0]: entry for entry in found.layers if len(entry.names) == 1}
        if len(entries) != len(found.layers):
            return None
        return cls(
            index,
            number,
            point,
            dict(schedule.layers),
            {name: each.cycles for name, each in entries.items()},
            {name: round(each.energy_uj, 6) for name, each in entries.items()},
            {name: each.conflicts for name, each in entries.items()},
        )


class CalibrationJournal:
    """File with the measurements of a calibration.

    Parameters
    ----------
    path : Path
        Path of the file; created if it does not exist.
    key : str
        Key of the hardware profile.
    seed : int
        Seed of the networks.

    Attributes
    ----------
    samples : list of CalibrationSample
        All measurements so far.
    done : set of int
        Indices of completely measured networks.

    Raises
    ------
    InputError
        The file is damaged or belongs to another calibration.
    WorkError
        The file cannot be written.
    """

    def __init__(self, path: Path, key: str, seed: int):
        self.path = path
        self.samples: list[CalibrationSample] = []
        self.done: set[int] = set()
        header = {"format": FORMAT, "version": VERSION, "conditions": key, "seed": seed}
        try:
            text = path.read_text("utf-8") if path.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"{path}: cannot be read ({reason_of(error)}); remove it to start over"
            ) from None
        lines = text.splitlines(keepends=True)
        if lines and parsed_line(lines[0]) != header:
            raise InputError(
                f"{path}: has measurements of other conditions, seed or version; remove it to start over"
            )
        complete = [line for line in lines[1:] if line.endswith("\n")]  # the last line may be incomplete
        for line in complete:
            self._read(line)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w", encoding="utf-8") as file:
                file.writelines([json.dumps(header) + "\n", *complete])
        except OSError as error:
            raise WorkError(f"{path}: cannot be written: {error.strerror}") from None

    def add(self, sample: CalibrationSample) -> None:
        """Append a sample."""
        self.samples.append(sample)
        self._write(stored(sample))

    def finish(self, index: int) -> None:
        """Mark a network as completely measured."""
        self.done.add(index)
        self._write({"done": index})

    def _write(self, data: dict[str, Any]) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(data) + "\n")
        except OSError as error:
            raise WorkError(f"{self.path}: cannot be written: {error.strerror}") from None

    def _read(self, line: str) -> None:
        data = parsed_line(line)
        try:
            if "done" in data:
                self.done.add(int(data["done"]))
                return
            schedules = {name: restored(LayerSchedule, fields) for name, fields in data["schedules"].items()}
            layers = {str(name): int(cycles) for name, cycles in data["layers"].items()}
            point = CalibrationNetwork.from_json(data["point"])
            more: list[dict[str, Any] | None] = [
                None if name not in data else {layer: kind(data[name][layer]) for layer in layers}
                for name, kind in (("energy_uj", float), ("conflicts", int))
            ]
            self.samples.append(
                CalibrationSample(int(data["index"]), int(data["number"]), point, schedules, layers, *more)
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{self.path}: damaged line ({error}); remove the file to start over") from None


#: Graph passes that change the sizes or the number of layers.
_CHANGING_PASSES = ("remove_channels", "shrink_kernels", "compose_convolutions", "move_strides")
#: Fraction of networks that are chains.
CHAIN_FRACTION = 0.3
#: Number of schedules per network in addition to the static compiler's: with random tilings, with mutated random
#: tilings, and for chains with a changed fusion of two neighbours, like the options of the fusion engine.
_DRAWN, _MUTATED, _FUSION_VARIANTS = 3, 2, 3
#: Maximum number of changes of a mutated layer schedule.
_MAX_CHANGES = 2
#: Fraction of the layers of a chain whose schedules are drawn at random.
_DRAWN_FRACTION = 0.6
#: Fraction of the drawn schedules of a chain in which the fusion of two neighbours is changed.
_FUSION_FRACTION = 0.5
#: Maximum cycles of a measurement.
_MAX_CYCLES = 150_000
_DRAM_BYTES = 1 << 24
#: Minimum interval of progress messages in seconds.
_LOG_INTERVAL_S = 10.0


def calibration_options(conditions: HardwareProfile) -> CompileOptions:
    """Return the options with which calibration networks are compiled.

    Passes that change the layers are off: journals then remain valid when such passes change, and the measured layers
    are those that were drawn.
    """
    return CompileOptions(rounding="reference", dram=conditions.dram, disable=_CHANGING_PASSES)


class CalibrationSpace(Protocol):
    """Search space of a layer."""

    def draw(self, rng: random.Random, schedule: LayerSchedule) -> LayerSchedule:
        """Return a random tiling."""
        ...

    def change(self, rng: random.Random, schedule: LayerSchedule) -> LayerSchedule:
        """Return a schedule with one random change."""
        ...


#: Function that returns the search spaces of all layers of a network, by layer name.
Spaces = Callable[[MlaConfig, list[LoweredNetwork], DramTiming], Mapping[str, CalibrationSpace]]


class CalibrationCollector:
    """Measures random networks for a limited time.

    Parameters
    ----------
    conditions : HardwareProfile
        Machine configuration and DRAM timing.
    journal : CalibrationJournal
        File that measurements are appended to.
    seed : int
        Seed of the networks.
    spaces : callable
        Returns the search spaces of a network's layers.
    log : callable
        Called with each progress message.
    """

    def __init__(
        self,
        conditions: HardwareProfile,
        journal: CalibrationJournal,
        seed: int,
        spaces: Spaces,
        log: Callable[[str], None],
    ):
        self.conditions, self.journal, self.seed = conditions, journal, seed
        self.spaces, self.log = spaces, log
        self._lock, self._last_message = Lock(), 0.0
        self._measured = {(sample.index, sample.number) for sample in journal.samples}

    def run(self, seconds: float, devices: int | None = 1) -> int:
        """Measure networks for a number of seconds; return the number of new samples.

        Raises
        ------
        WorkError
            A simulator died, or the journal cannot be written.
        """
        before = len(self.journal.samples)
        self.log("opening the simulated chip")
        with DevicePool(self._open, devices) as pool, progress("measuring", seconds=seconds):
            end = monotonic() + seconds
            index = 0
            while monotonic() < end:
                chunk = []
                while len(chunk) < 2 * len(pool.devices):
                    if index not in self.journal.done:
                        chunk.append(index)
                    index += 1
                pool.map(lambda device, each: self._network(device, each, end), chunk)
        return len(self.journal.samples) - before

    def _network(self, device: "RtlDevice", index: int, end: float) -> None:
        """Measure the remaining schedules of a network; stop at the time limit."""
        rng = random.Random(f"{self.seed} {index}")
        point = with_weight_formats(
            draw_network(self.conditions.config.n, rng), random.Random(f"{self.seed} {index} formats")
        )
        with self._lock:
            left = max(end - monotonic(), 0.0)
            if monotonic() - self._last_message > _LOG_INTERVAL_S:
                self._last_message = monotonic()
                self.log(
                    f"{len(self.journal.samples)} measurements, {left:.0f} s left; network {index}: {point.family}"
                )
        try:
            variants = _NetworkVariants(point, self.conditions, rng, self.spaces)
        except InputError:  # not supported on this machine
            return
        for number, network in variants.networks():
            if monotonic() > end:
                return
            if (index, number) not in self._measured:
                self._measure(device, variants, index, number, network)
        with self._lock:
            self.journal.finish(index)

    def _measure(
        self,
        device: "RtlDevice",
        variants: "_NetworkVariants",
        index: int,
        number: int,
        network: CompiledNetwork,
    ) -> None:
        config, rate = self.conditions.config, self.conditions.rate
        found = measure_network(
            device, network, variants.reference.golden_io(0), bus_rate(config, rate), _MAX_CYCLES
        )
        if not isinstance(found, Measurement):
            return
        if not found.exact:
            self.log(f"network {index}, schedule {number} ({variants.point.family}): wrong outputs; left out")
            return
        sample = CalibrationSample.of(index, number, variants.point, network.schedule, found)
        if sample is not None:
            with self._lock:
                self.journal.add(sample)

    def _open(self) -> "RtlDevice":
        from cosim.rtl.rtl_device import RtlDevice

        dram = self.conditions.dram
        return RtlDevice(
            self.conditions.config,
            _DRAM_BYTES,
            latency=dram.latency,
            bytes_per_cycle=self.conditions.rate,
            throttle=dram.throttle,
            monitor=building,
        )


def draw_network(n: int, rng: random.Random) -> CalibrationNetwork:
    """Draw a random network, which usually has a single operator."""
    return next(chains(n, rng) if rng.random() < CHAIN_FRACTION else singles(n, rng))


class _NetworkVariants:
    """Network compiled under several schedules.

    Raises
    ------
    InputError
        The machine cannot run the whole network.
    """

    def __init__(
        self, point: CalibrationNetwork, conditions: HardwareProfile, rng: random.Random, spaces: Spaces
    ):
        self.point, self.rng = point, rng
        options = calibration_options(conditions)
        self.prepared = ModelCompiler(point.graph(), conditions.config, options)
        self.first = self.prepared.network()
        stages = self.prepared.lowered(self.first.schedule.fusions)
        if (
            len(stages) != 1
            or len(self.first.codes) != 1
            or self.first.host
            or dram_bytes(self.first) > _DRAM_BYTES
        ):
            raise InputError(f"{point.family}: the accelerator cannot run the network as one stage")
        self.spaces = spaces(conditions.config, stages, conditions.dram)
        self.reference = GoldenModelReference(self.first)

    def networks(self) -> Iterator[tuple[int, CompiledNetwork]]:
        """Yield the distinct networks that can be compiled, each with the number of its schedule."""
        seen: set[str] = set()
        for number in range(1 + _DRAWN + _MUTATED + (_FUSION_VARIANTS if len(self.spaces) > 1 else 0)):
            schedule = self._schedule(number)
            text = schedule.to_json()
            if text in seen:
                continue
            seen.add(text)
            try:
                network = self.prepared.network(schedule) if number else self.first
            except InputError:  # the schedule does not fit
                continue
            if dram_bytes(network) <= _DRAM_BYTES:
                yield number, network

    def _schedule(self, number: int) -> Schedule:
        first = self.first.schedule
        if number > _DRAWN + _MUTATED:
            return replace(first, layers=first.layers | change_fusion(self.rng, first.layers))
        return self._draw(number) if number else first

    def _draw(self, number: int) -> Schedule:
        first, rng = self.first.schedule, self.rng
        layers = dict(first.layers)
        for name, space in self.spaces.items():
            if len(self.spaces) == 1 or rng.random() < _DRAWN_FRACTION:
                layers[name] = space.draw(rng, layers[name])
            for _ in range(rng.randint(1, _MAX_CHANGES) if number > _DRAWN else 0):
                layers[name] = space.change(rng, layers[name])
        if len(layers) > 1 and rng.random() < _FUSION_FRACTION:
            layers |= change_fusion(rng, layers)
        return replace(first, layers=layers)


def change_fusion(rng: random.Random, layers: dict[str, LayerSchedule]) -> dict[str, LayerSchedule]:
    """Toggle one kind of fusion of two random adjacent layers: one program, interleaving, or on-chip tensor."""
    names = list(layers)
    number = rng.randrange(1, len(names))
    first, second = ((name, layers[name]) for name in names[number - 1 : number + 1])
    field = rng.choice(("same_program_as_previous", "interleave", "on_chip"))
    if field == "same_program_as_previous":
        return {
            second[0]: replace(second[1], same_program_as_previous=not second[1].same_program_as_previous)
        }
    if field == "on_chip":
        return {first[0]: replace(first[1], on_chip=not first[1].on_chip, stream_row_blocks=0)}
    interleave = not second[1].interleave
    return {name: replace(schedule, interleave=interleave) for name, schedule in (first, second)}


#: Networks from which the host's costs are measured, and repetitions of each node, of which the fastest counts.
_HOST_NETWORKS, _HOST_REPEATS = 150, 3
#: Rows and columns of the weights of products with one row.
_HOST_ROWS = (64, 256, 512)


def measure_host_costs(n: int, clock: float, seed: int = 0, networks: int = _HOST_NETWORKS) -> HostCosts:
    """Measure how long the operators of random small networks take on this host.

    The time of an operator is fitted as a constant plus multiples of elements and products, by least squares, in which
    large tensors have more weight, because they leave the caches. Products of one row with large weights are measured
    besides, because small networks have none.

    Parameters
    ----------
    n : int
        Number of lanes, to which the sizes of the networks are related.
    clock : float
        Clock frequency of the accelerator in MHz, which is kept with the costs.
    seed, networks : int
        Seed of the networks, and their number.
    """
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    seen: dict[str, list[tuple[int, int, float]]] = {}
    drawn = [draw_network(n * (1 + 3 * (number % 2)), rng).graph() for number in range(networks)]
    for graph in map(simplify, (*drawn, *(_row_product(size) for size in _HOST_ROWS))):
        values = {name: random_input(numbers, graph.tensors[name], {}) for name in graph.inputs}
        for node in graph:
            operands = [values.get(each.name, each.data) for each in graph.ins(node)]
            times, results = [], list[NDArray]()
            for _ in range(_HOST_REPEATS):
                started = time.perf_counter()
                results = run_node(graph, node, operands)  # type: ignore[arg-type]
                times.append(time.perf_counter() - started)
            values |= zip(node.outputs, results, strict=True)
            seen.setdefault(node.op, []).append((*work_of(graph, node), min(times) * 1e6))
    operators = tuple((op, *_fitted(found)) for op, found in sorted(seen.items()))
    return HostCosts(operators, clock=clock)


def _row_product(size: int) -> Graph:
    """Return the product of one row with square weights."""
    graph, meaning = Graph("row"), Quantization.per_tensor(0.1)
    graph.add_input(Tensor("x", (1, size), "int8", meaning))
    graph.add_tensor(Tensor("w", (size, size), "int8", meaning, np.ones((size, size), np.int8)))
    graph.add_tensor(Tensor("y", (1, size), "int8", meaning))
    graph.add_node(Node("y", "dense", ("x", "w"), ("y",)))
    return graph.finish(["y"])


def _fitted(found: list[tuple[int, int, float]]) -> tuple[float, float, float]:
    """Return microseconds per node, and nanoseconds per element and per product, all at least 0."""
    from scipy.optimize import nnls  # imported on demand: loading takes half a second

    elements, products, times = (np.array(each, float) for each in zip(*found, strict=True))
    sides = np.stack([np.ones(len(times)), elements / 1e3, products / 1e3], 1) / np.sqrt(times)[:, None]
    solved, _ = nnls(sides, np.sqrt(times))
    fixed, element, product = (round(float(each), 3) for each in solved)
    return fixed, element, product
