"""Measurements of a calibration, kept one by one as lines of JSON: another one goes on from there."""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from compiler.cost.roofline import bus_rate
from compiler.ir.identity import identity, restored, stored
from compiler.lowering.lower import LoweredNetwork
from compiler.options import CompileOptions, DramTiming
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile, Measurement
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import dram_bytes
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, chains, singles
from compiler.tuning.measure.equivalence import GoldenModelReference
from compiler.tuning.measure.throughput import measure_network
from compiler.util.progress import building, progress
from cosim.device_pool import DevicePool
from hw.config import MlaConfig
from hw.errors import InputError, WorkError

if TYPE_CHECKING:
    from cosim.rtl.rtl_device import RtlDevice

FORMAT, VERSION = "mla-hpm-points", 2


@identity("Sample", "index", "number", "point", "schedules", "layers")
@dataclass(frozen=True)
class CalibrationSample:
    """A point under one schedule, measured.

    Parameters
    ----------
    index, number : int
        Of the point; of the schedule among those of the point, 0 for the static compiler's.
    point : Point
        What was measured.
    schedules : dict
        Of each layer, by name.
    layers : dict
        Cycles of each, by name.
    """

    index: int
    number: int
    point: CalibrationNetwork
    schedules: dict[str, LayerSchedule]
    layers: dict[str, int]

    @property
    def cycles(self) -> int:
        """Of all layers."""
        return sum(self.layers.values())


class CalibrationJournal:
    """The file of a calibration.

    Parameters
    ----------
    path : Path
        Of the file; made if it is not there.
    key : str
        Name of the conditions.
    seed : int
        Of the points.

    Attributes
    ----------
    samples : list of Sample
        All that have been measured.
    done : set of int
        Points of which nothing is left to do.

    Raises
    ------
    InputError
        The file is of something else: says what to do.
    WorkError
        It cannot be written.
    """

    def __init__(self, path: Path, key: str, seed: int):
        self.path = path
        self.samples: list[CalibrationSample] = []
        self.done: set[int] = set()
        header = {"format": FORMAT, "version": VERSION, "conditions": key, "seed": seed}
        try:
            text = path.read_text("utf-8") if path.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: cannot be read ({error}); remove it to begin anew") from None
        lines = text.splitlines(keepends=True)
        if lines and parsed_line(lines[0]) != header:
            raise InputError(
                f"{path}: measurements of other conditions, of another seed or version; remove it to begin anew"
            )
        whole = [line for line in lines[1:] if line.endswith("\n")]  # the last one may be torn
        for line in whole:
            self._read(line)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w", encoding="utf-8") as file:
                file.writelines([json.dumps(header) + "\n", *whole])
        except OSError as error:
            raise WorkError(f"{path}: cannot be written: {error.strerror}") from None

    def add(self, sample: CalibrationSample) -> None:
        """Keep a sample."""
        self.samples.append(sample)
        self._write(stored(sample))

    def finish(self, index: int) -> None:
        """Nothing of a point is left to do."""
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
            self.samples.append(
                CalibrationSample(int(data["index"]), int(data["number"]), point, schedules, layers)
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{self.path}: damaged line ({error}); remove the file to begin anew") from None


def parsed_line(line: str) -> dict[str, Any]:
    """The JSON object of a line; an empty one, if it is none."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


#: Part of the points that are chains.
CHAINS = 0.3
#: Schedules of a point: the first, some drawn from all tilings, some of these changed; of a chain also the first one
#: with two neighbours together in another way, which is what the fusion engine compares.
_DRAWN, _CHANGED, _OTHERWISE = 3, 2, 3
_CHANGES = 2
#: Part of the layers of a chain that are drawn anew.
_SHARE = 0.6
#: Part of its schedules in which a layer goes with the one before it in another way than by estimates.
_TOGETHER = 0.5
#: A schedule that takes more cycles is of no use to anybody.
_LIMIT = 150_000
_DRAM_BYTES = 1 << 24
#: Seconds from one message to the next.
_SAY = 10.0


class CalibrationSpace(Protocol):
    """The schedules of a layer."""

    def draw(self, rng: random.Random, schedule: LayerSchedule) -> LayerSchedule:
        """One of its tilings."""
        ...

    def change(self, rng: random.Random, schedule: LayerSchedule) -> LayerSchedule:
        """A schedule that differs in one thing."""
        ...


#: Spaces of all layers of a network, by name.
Spaces = Callable[[MlaConfig, list[LoweredNetwork], DramTiming], Mapping[str, CalibrationSpace]]


class CalibrationCollector:
    """Measures points until time is over.

    Parameters
    ----------
    conditions : Conditions
        The machine and its memory.
    journal : Journal
        Keeps what is measured.
    seed : int
        Of the points.
    spaces : callable
        Gives the schedules to draw from.
    log : callable
        Hears of progress.
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
        self._lock, self._told = Lock(), 0.0
        self._have = {(sample.index, sample.number) for sample in journal.samples}

    def run(self, seconds: float, devices: int | None = 1) -> int:
        """Measure for so long; returns the samples that were made anew.

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
                pool.map(lambda device, each: self._point(device, each, end), chunk)
        return len(self.journal.samples) - before

    def _point(self, device: "RtlDevice", index: int, end: float) -> None:
        """Measure what is left of a point, while there is time."""
        rng = random.Random(f"{self.seed} {index}")
        point = draw_network(self.conditions.config.n, rng)
        with self._lock:
            left = max(end - monotonic(), 0.0)
            if monotonic() - self._told > _SAY:
                self._told = monotonic()
                self.log(
                    f"{len(self.journal.samples)} measurements, {left:.0f} s left; point {index}: {point.family}"
                )
        try:
            tries = _Tries(point, self.conditions, rng, self.spaces)
        except InputError:  # no operator for this machine
            return
        for number, network in tries.networks():
            if monotonic() > end:
                return
            if (index, number) not in self._have:
                self._measure(device, tries, index, number, network)
        with self._lock:
            self.journal.finish(index)

    def _measure(
        self, device: "RtlDevice", tries: "_Tries", index: int, number: int, network: CompiledNetwork
    ) -> None:
        config, rate = self.conditions.config, self.conditions.rate
        found = measure_network(device, network, tries.reference.golden_io(0), bus_rate(config, rate), _LIMIT)
        if not isinstance(found, Measurement):
            return
        if not found.exact:
            self.log(f"point {index}, schedule {number} ({tries.point.family}): wrong outputs; left out")
            return
        layers = {entry.names[0]: entry.cycles for entry in found.layers if len(entry.names) == 1}
        if len(layers) == len(found.layers):
            with self._lock:
                self.journal.add(
                    CalibrationSample(index, number, tries.point, dict(network.schedule.layers), layers)
                )

    def _open(self) -> "RtlDevice":
        from cosim.rtl.rtl_device import RtlDevice

        dram = self.conditions.dram
        return RtlDevice(
            self.conditions.config,
            _DRAM_BYTES,
            latency=dram.latency,
            bytes_per_cycle=self.conditions.rate,
            monitor=building,
        )


def draw_network(n: int, rng: random.Random) -> CalibrationNetwork:
    """The next point: most are single operators."""
    return next(chains(n, rng) if rng.random() < CHAINS else singles(n, rng))


class _Tries:
    """A point compiled under one schedule after another.

    Raises
    ------
    InputError
        It is not for the machine, or only in part.
    """

    def __init__(
        self, point: CalibrationNetwork, conditions: HardwareProfile, rng: random.Random, spaces: Spaces
    ):
        self.point, self.rng = point, rng
        options = CompileOptions(rounding="reference", dram=conditions.dram)
        self.prepared = ModelCompiler(point.graph(), conditions.config, options)
        self.first = self.prepared.network()
        stages = self.prepared.lowered(self.first.schedule.fusions)
        if (
            len(stages) != 1
            or len(self.first.codes) != 1
            or self.first.host
            or dram_bytes(self.first) > _DRAM_BYTES
        ):
            raise InputError(f"{point.family}: not all of it runs on the machine in one go")
        self.spaces = spaces(conditions.config, stages, conditions.dram)
        self.reference = GoldenModelReference(self.first)

    def networks(self) -> Iterator[tuple[int, CompiledNetwork]]:
        """Those that can be compiled, each schedule once, with their numbers."""
        seen: set[str] = set()
        for number in range(1 + _DRAWN + _CHANGED + (_OTHERWISE if len(self.spaces) > 1 else 0)):
            schedule = self._schedule(number)
            text = schedule.to_json()
            if text in seen:
                continue
            seen.add(text)
            try:
                network = self.prepared.network(schedule) if number else self.first
            except InputError:  # it does not fit
                continue
            if dram_bytes(network) <= _DRAM_BYTES:
                yield number, network

    def _schedule(self, number: int) -> Schedule:
        first = self.first.schedule
        if number > _DRAWN + _CHANGED:
            return replace(first, layers=first.layers | _together(self.rng, first.layers))
        return self._draw(number) if number else first

    def _draw(self, number: int) -> Schedule:
        first, rng = self.first.schedule, self.rng
        layers = dict(first.layers)
        for name, space in self.spaces.items():
            if len(self.spaces) == 1 or rng.random() < _SHARE:
                layers[name] = space.draw(rng, layers[name])
            for _ in range(rng.randint(1, _CHANGES) if number > _DRAWN else 0):
                layers[name] = space.change(rng, layers[name])
        if len(layers) > 1 and rng.random() < _TOGETHER:
            layers |= _together(rng, layers)
        return replace(first, layers=layers)


def _together(rng: random.Random, layers: dict[str, LayerSchedule]) -> dict[str, LayerSchedule]:
    """Two neighbours in one program or in two, in turns or not, the result between them on the chip or in DRAM."""
    names = list(layers)
    number = rng.randrange(1, len(names))
    first, second = ((name, layers[name]) for name in names[number - 1 : number + 1])
    way = rng.choice(("same_program_as_previous", "interleave", "on_chip"))
    if way == "same_program_as_previous":
        return {
            second[0]: replace(second[1], same_program_as_previous=not second[1].same_program_as_previous)
        }
    if way == "on_chip":
        return {first[0]: replace(first[1], on_chip=not first[1].on_chip)}
    turns = not second[1].interleave
    return {name: replace(schedule, interleave=turns) for name, schedule in (first, second)}
