"""Best known schedules and macro-instructions of a network, from the user's database, with a cache in memory."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from compiler.cache.content_store import ContentStore
from compiler.options import MemoryLimits
from compiler.profile.measurement import HardwareProfile
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.stages import LayerInfo, ProgramSource
from compiler.schedule.program_override import ProgramTemplate
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning_db.connection import SHORT_TIMEOUT_S, file_of
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.entries import BestKeys, Entry, best_keys_of, best_of
from compiler.tuning_db.macro_instructions import MacroInstruction
from hw.errors import InputError

#: Goals whose best program may run by default, in the order of preference.
_GOALS = ("latency", "throughput")
#: Maximum number of networks whose entries are kept in memory.
MAX_CACHED_NETWORKS = 256
#: Number of equal neighbours of a layer whose macro-instruction is used without a prediction.
_BOTH = 2
#: Maximum number of compilations by which the layers' schedules are found that do not compile with the others.
_MAX_COMPILATIONS = 24


@dataclass(frozen=True)
class KnownSchedule:
    """Schedule from the database for a network.

    Parameters
    ----------
    schedule : Schedule
        Schedule of the whole network, which must be compiled and proved like any other.
    sources : tuple of ProgramSource
        Source of each layer's schedule.
    templates : dict
        Templates of layers, by name, whose results must be accepted like any program text.
    without : tuple of ProgramSource
        Source of each layer's schedule if its template is not used.
    """

    schedule: Schedule
    sources: tuple[ProgramSource, ...]
    templates: dict[str, ProgramTemplate] = field(default_factory=dict)
    without: tuple[ProgramSource, ...] = ()

    def sources_with(self, applied: Collection[str]) -> tuple[ProgramSource, ...]:
        """Return the source of each layer's schedule, given the names of the layers whose templates are used."""
        if not self.templates:
            return self.sources
        each = zip(self.sources, self.without, strict=True)
        return tuple(
            plain if source.layer in self.templates and source.layer not in applied else source
            for source, plain in each
        )

    def fitting(self, static: Schedule, compiles: Callable[[Schedule], bool]) -> "KnownSchedule | None":
        """Return the schedule with as many of its layers' schedules as compile together; None if no other remains.

        Layers are added by halves, so that a single schedule that does not fit is found with few compilations.

        Parameters
        ----------
        static : Schedule
            Network's own schedule, which the other layers keep.
        compiles : callable
            Function that returns True if a schedule compiles.
        """
        changed = [name for name, layer in self.schedule.layers.items() if layer != static.layers.get(name)]
        if self.schedule.fusions != static.fusions or self.schedule.programs or compiles(self.schedule):
            return None
        layers, groups, attempts = dict(static.layers), [changed], 0
        while groups and attempts < _MAX_COMPILATIONS:
            group = groups.pop()
            more = layers | {name: self.schedule.layers[name] for name in group}
            attempts += 1
            if group != changed and compiles(replace(self.schedule, layers=more)):
                layers = more
            elif len(group) > 1:
                groups += [group[len(group) // 2 :], group[: len(group) // 2]]
        kept = {name for name, layer in self.schedule.layers.items() if layers.get(name) == layer}
        templates = {name: template for name, template in self.templates.items() if name in kept}
        if layers == static.layers and not templates:
            return None
        sources, without = (
            tuple(
                each if each.layer in kept else ProgramSource(each.layer, each.subgraph) for each in sources
            )
            for sources in (self.sources, self.without)
        )
        return KnownSchedule(replace(self.schedule, layers=layers), sources, templates, without)


class _Found(NamedTuple):
    """Entries of the database for a network: its best program, and the macro-instructions for its layers."""

    best: Entry | None
    macros: tuple[MacroInstruction, ...]


class KnownSchedules:
    """Thread-safe LRU cache of the entries of a database that are used to compile networks.

    An entry of an SQLite file is read again after any process has written to the file.

    Parameters
    ----------
    database : TuningDatabase
        Database that contains the entries.
    file : Path or None
        File of an SQLite database; None: entries of other databases are read anew each time.
    max_networks : int
        Maximum number of networks whose entries are kept; the least recently used are evicted first.
    """

    def __init__(
        self, database: TuningDatabase, file: Path | None = None, max_networks: int = MAX_CACHED_NETWORKS
    ):
        self.database, self.file, self.max_networks = database, file, max_networks
        self._kept: OrderedDict[tuple[BestKeys, tuple[str, ...]], tuple[_FileState, _Found]] = OrderedDict()
        self._lock = threading.Lock()

    def entries(self, keys: Sequence[BestKeys], shapes: tuple[str, ...]) -> _Found:
        """Return the best program for the first of several goals that has one, and macro-instructions for some shapes.

        Parameters
        ----------
        keys : sequence of BestKeys
            Keys of the network's best programs for each goal, in the order of preference.
        shapes : tuple of str
            Digests of the network's layers.
        """
        state = _file_state(self.file)
        with self._lock:
            held = self._kept.get((keys[0], shapes))
            if held is not None and state is not None and held[0] == state:
                self._kept.move_to_end((keys[0], shapes))
                return held[1]
        best = next(
            (entry for each in keys if (entry := best_of(self.database.best, each)) is not None), None
        )
        wanted = {replace(each.plain, subgraph=shape) for each in keys for shape in shapes if shape}
        found = _Found(best, tuple(self.database.macros(wanted)))
        with self._lock:
            self._kept[keys[0], shapes] = state, found
            while len(self._kept) > self.max_networks:
                self._kept.popitem(last=False)
        return found

    def find(
        self,
        network: CompiledNetwork,
        conditions: HardwareProfile,
        limits: MemoryLimits,
        predict: Callable[[Schedule], float],
    ) -> list[KnownSchedule]:
        """Return schedules for a network that are better than its own according to measurements, the best first.

        The best schedule of this network comes first. Otherwise, the network's own schedule is combined with the
        macro-instructions for those layers that it shares with other networks, if both adjacent layers are the same as
        in the network where they were measured, or if they reduce the predicted cycles. A combination with templates of
        programs comes before the same one without.

        Parameters
        ----------
        network : CompiledNetwork
            Network with the static compiler's schedule.
        conditions : HardwareProfile
            Machine configuration and DRAM timing for which schedules must have been measured.
        limits : MemoryLimits
            Memory limits of the compilation.
        predict : callable
            Function that returns the predicted cycles of the network under a schedule.
        """
        assert network.graph is not None
        keys = [best_keys_of(network.graph, network.rounding, conditions, limits, goal) for goal in _GOALS]
        infos = network.infos
        found = self.entries(keys, tuple(info.shape for info in infos))
        out = []
        if found.best is not None and isinstance(found.best.schedule, Schedule):
            out.append(_of_network(network, found.best, found.best.schedule, found.macros))
        matches = _matches(network, found.macros)
        certain = {name: match.macro for name, match in matches.items() if match.neighbours == _BOTH}
        likely = _likely(network, certain, matches, predict) if matches else {}
        for chosen in (likely, certain):
            if chosen:
                out += _combined(network, chosen)
        return [
            each
            for number, each in enumerate(out)
            if each not in out[:number] and (each.schedule != network.schedule or each.templates)
        ]

    def elsewhere(
        self, network: CompiledNetwork, keys: BestKeys, profiles: Iterable[str]
    ) -> list[KnownSchedule]:
        """Return combinations with macro-instructions that were not learned in a network itself, to be measured.

        For each machine, those that this user measured in other networks come before those of others. All matches are
        combined first, then those with equal neighbours.

        Parameters
        ----------
        network : CompiledNetwork
            Network with the static compiler's schedule.
        keys : BestKeys
            Keys of the network's best programs.
        profiles : iterable of str
            Keys of the hardware profiles under which the macro-instructions were measured, in the order of preference.
        """
        out = []
        for profile in profiles:
            key = replace(keys.plain, profile=profile)
            wanted = {replace(key, subgraph=info.shape) for info in network.infos if info.shape}
            for foreign in (False, True):
                macros = self.database.macros(wanted, foreign=foreign)
                others = [each for each in macros if foreign or each.network != key.subgraph]
                matches = _matches(network, others)
                for neighbours in (0, _BOTH):
                    chosen = {
                        name: each.macro for name, each in matches.items() if each.neighbours >= neighbours
                    }
                    if chosen:
                        out += _combined(network, chosen)
        return [each for number, each in enumerate(out) if each not in out[:number]]


class _Match(NamedTuple):
    """Macro-instruction for a layer, the number of equal neighbours (at most two), and its relative gain."""

    neighbours: int
    gain: float
    macro: MacroInstruction


def _matches(network: CompiledNetwork, macros: Iterable[MacroInstruction]) -> dict[str, _Match]:
    """Return the best match of each layer that has one, by name.

    A macro-instruction that only contains the network's own schedule is no match.
    """
    infos, own = network.infos, network.schedule.layers
    by_shape: dict[str, list[MacroInstruction]] = {}
    for macro in macros:
        by_shape.setdefault(macro.key.subgraph, []).append(macro)
    shapes = ["", *(info.shape for info in infos), ""]
    out = {}
    for number, info in enumerate(infos):
        before, after = shapes[number], shapes[number + 2]
        matches = [
            _Match(
                (each.before == before) + (each.after == after),
                each.saved / max(each.static_cycles, 1),
                each,
            )
            for each in by_shape.get(info.shape, [])
        ]
        if matches and info.name in own:
            best = max(matches, key=lambda match: match[:2])
            if best.macro.template is not None or best.macro.schedule != own[info.name]:
                out[info.name] = best
    return out


def _likely(
    network: CompiledNetwork,
    certain: dict[str, MacroInstruction],
    matches: Mapping[str, _Match],
    predict: Callable[[Schedule], float],
) -> dict[str, MacroInstruction]:
    """Return the macro-instructions in `certain`, and those of other layers that each reduce the predicted cycles.

    The prediction does not see the changes of a template, which therefore must only not raise it.
    """
    chosen = dict(certain)
    cycles = None
    for name, match in matches.items():
        if match.neighbours == _BOTH:
            continue
        try:
            cycles = predict(_schedule(network, chosen)) if cycles is None else cycles
            new = predict(_schedule(network, chosen | {name: match.macro}))
        except InputError:
            continue
        if new < cycles or (new == cycles and match.macro.template is not None):
            chosen, cycles = chosen | {name: match.macro}, new
    return chosen


def _schedule(network: CompiledNetwork, chosen: Mapping[str, MacroInstruction]) -> Schedule:
    """Return the network's own schedule with the schedules of some layers replaced."""
    layers = network.schedule.layers | {name: macro.schedule for name, macro in chosen.items()}
    return replace(network.schedule, layers=layers)


def _combined(network: CompiledNetwork, chosen: Mapping[str, MacroInstruction]) -> list[KnownSchedule]:
    """Return the network's own schedule with macro-instructions: with their templates, if any, and without."""
    own, plain = network.schedule.layers, {}
    for name, macro in chosen.items():
        if macro.schedule != own[name]:
            plain[name] = replace(macro, template=None)
    out = []
    for each in (chosen, plain) if plain != chosen else (plain,):
        templates = {name: macro.template for name, macro in each.items() if macro.template is not None}
        sources, without = (
            tuple(_source(info, macros.get(info.name)) for info in network.infos) for macros in (each, plain)
        )
        out.append(KnownSchedule(_schedule(network, each), sources, templates, without))
    return out


def _of_network(
    network: CompiledNetwork, best: Entry, schedule: Schedule, macros: Iterable[MacroInstruction]
) -> KnownSchedule:
    """Return the best schedule of a network, with the sources of its layers."""
    own: dict[str, LayerSchedule] = network.schedule.layers
    stored = {each.layer: each for each in macros if each.network == best.key.subgraph}
    sources = []
    for info in network.infos:
        layer, macro = schedule.layers.get(info.name), stored.get(info.name)
        if macro is not None and (
            macro.schedule != layer or (layer == own.get(info.name) and not macro.template)
        ):
            macro = None
        sources.append(_source(info, macro))
    return KnownSchedule(schedule, tuple(sources))


def _source(info: LayerInfo, macro: MacroInstruction | None) -> ProgramSource:
    if macro is None:
        return ProgramSource(info.name, info.shape)
    return ProgramSource(info.name, info.shape, "database", macro.method or None, macro.cycles, macro.name)


#: Modification time in nanoseconds and size of a database file and of its write-ahead log; None if unknown.
_FileState = tuple[tuple[int, int] | None, ...] | None


def _file_state(file: Path | None) -> _FileState:
    """Return the state of an SQLite file, which changes when any process writes to it."""
    if file is None:
        return None

    def state(path: str) -> tuple[int, int] | None:
        try:
            found = Path(path).stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size

    return tuple(state(f"{file}{suffix}") for suffix in ("", "-wal"))


def known_schedules(database: TuningDatabase | str | Path) -> KnownSchedules | None:
    """Return the cache of a database, which all compilations of this process share; None if its file does not exist.

    Raises
    ------
    InputError
        The URL is invalid, or the tables have another schema version.
    WorkError
        The database cannot be used.
    """
    if isinstance(database, TuningDatabase):
        return KnownSchedules(database)
    file = file_of(database)
    if file is not None and not file.exists():
        return None
    return _opened(str(database) if isinstance(database, Path) else database, file, os.getpid())


def _opened_database(where: str | Path) -> TuningDatabase:
    return TuningDatabase(where, secret=ContentStore().secret, read_only=True, timeout_s=SHORT_TIMEOUT_S)


@lru_cache(maxsize=4)
def _opened(url: str, file: Path | None, _process: int) -> KnownSchedules:
    """Return the cache of a database, opened once in each process."""
    where = url if file is None else file
    return KnownSchedules(_opened_database(where), file)
