"""Best known schedules and macro-instructions of a network, from the user's database, with a cache in memory."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
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
from compiler.tuning_db.connection import file_of
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.entries import Entry
from compiler.tuning_db.macro_instructions import MacroInstruction, subgraph_of_layers
from compiler.tuning_db.session import BestKeys, best_keys_of, best_of
from hw.errors import InputError

#: Goals whose best program may run by default, in the order of preference.
_GOALS = ("latency", "throughput")
#: Maximum number of networks whose entries are kept in memory.
MAX_CACHED_NETWORKS = 256
#: Number of equal neighbours of layers whose macro-instruction is used without a prediction.
_BOTH = 2
#: Maximum number of layers of a program for which macro-instructions are looked up.
_MAX_RUN = 8


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
        Templates of programs, by the names of their layers, whose results must be accepted like any program text.
    """

    schedule: Schedule
    sources: tuple[ProgramSource, ...]
    templates: dict[tuple[str, ...], ProgramTemplate] = field(default_factory=dict)


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
        """Return the best program for the first of several goals that has one, and all macros for runs of layers.

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
        wanted = {
            replace(each.plain, subgraph=subgraph)
            for each in keys
            for subgraph in set(_runs(shapes).values())
        }
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
        certain = _certain(matches)
        likely = _likely(network, certain, matches, predict) if matches else {}
        for chosen in (likely, certain):
            if chosen:
                out += _combined(network, chosen)
        return [
            each
            for number, each in enumerate(out)
            if each not in out[:number] and (each.schedule != network.schedule or each.templates)
        ]

    def foreign(self, network: CompiledNetwork, keys: BestKeys) -> list[KnownSchedule]:
        """Return combinations with macro-instructions of others, which must be measured before use.

        Parameters
        ----------
        network : CompiledNetwork
            Network with the static compiler's schedule.
        keys : BestKeys
            Keys of the network's best programs.
        """
        runs = _runs(tuple(info.shape for info in network.infos))
        wanted = {replace(keys.plain, subgraph=subgraph) for subgraph in set(runs.values())}
        matches = _matches(network, self.database.macros(wanted, foreign=True))
        return _combined(network, _apart(matches)) if matches else []


#: Names of the layers of a run, and the macro-instruction for it.
_Chosen = dict[tuple[str, ...], MacroInstruction]


@lru_cache(maxsize=MAX_CACHED_NETWORKS)
def _runs(shapes: tuple[str, ...]) -> dict[tuple[int, int], str]:
    """Return the digests of all runs of adjacent layers, at most `_MAX_RUN` long, by start and end."""
    return {
        (start, end): subgraph_of_layers(shapes[start:end])
        for start in range(len(shapes))
        for end in range(start + 1, min(start + _MAX_RUN, len(shapes)) + 1)
        if all(shapes[start:end])
    }


class _Match(NamedTuple):
    """Macro-instruction for a run of layers, the number of equal neighbours (at most two), and its relative gain."""

    neighbours: int
    gain: float
    names: tuple[str, ...]
    macro: MacroInstruction


def _matches(network: CompiledNetwork, macros: Iterable[MacroInstruction]) -> list[_Match]:
    """Return the best match of each run of layers that has one, the best first.

    A macro-instruction that only contains the network's own schedules is no match.
    """
    infos, own = network.infos, network.schedule.layers
    by_subgraph: dict[str, list[MacroInstruction]] = {}
    for macro in macros:
        by_subgraph.setdefault(macro.key.subgraph, []).append(macro)
    if not by_subgraph:
        return []
    plain = tuple(info.shape for info in infos)
    shapes = ["", *plain, ""]
    out = []
    for (start, end), subgraph in _runs(plain).items():
        names = tuple(info.name for info in infos[start:end])
        matches = [
            _Match(
                (each.before == shapes[start]) + (each.after == shapes[end + 1]),
                each.saved / max(each.static_cycles, 1),
                names,
                each,
            )
            for each in by_subgraph.get(subgraph, [])
            if len(each.schedules) == len(names)
        ]
        if not matches or not all(name in own for name in names):
            continue
        best = max(matches, key=lambda match: match[:2])
        if best.macro.template is not None or best.macro.schedules != tuple(own[name] for name in names):
            out.append(best)
    return sorted(out, key=lambda match: match[:2], reverse=True)


def _apart(matches: Iterable[_Match]) -> _Chosen:
    """Return the first matches that have no layer in common."""
    chosen: _Chosen = {}
    taken: set[str] = set()
    for match in matches:
        if taken.isdisjoint(match.names):
            chosen[match.names] = match.macro
            taken.update(match.names)
    return chosen


def _certain(matches: Iterable[_Match]) -> _Chosen:
    """Return the macro-instructions that were measured between the same neighbours."""
    return _apart(match for match in matches if match.neighbours == _BOTH)


def _likely(
    network: CompiledNetwork,
    certain: _Chosen,
    matches: Iterable[_Match],
    predict: Callable[[Schedule], float],
) -> _Chosen:
    """Return the macro-instructions in `certain`, and those of other layers that each reduce the predicted cycles.

    The prediction does not see the changes of a template, which therefore must only not raise it.
    """
    chosen = dict(certain)
    taken = {name for names in chosen for name in names}
    cycles = None
    for match in matches:
        if not taken.isdisjoint(match.names):
            continue
        try:
            cycles = predict(_schedule(network, chosen)) if cycles is None else cycles
            new = predict(_schedule(network, chosen | {match.names: match.macro}))
        except InputError:
            continue
        if new < cycles or (new == cycles and match.macro.template is not None):
            chosen, cycles = chosen | {match.names: match.macro}, new
            taken.update(match.names)
    return chosen


def _schedule(network: CompiledNetwork, chosen: _Chosen) -> Schedule:
    """Return the network's own schedule with the schedules of some layers replaced."""
    layers = network.schedule.layers | {
        name: each
        for names, macro in chosen.items()
        for name, each in zip(names, macro.schedules, strict=True)
    }
    return replace(network.schedule, layers=layers)


def _combined(network: CompiledNetwork, chosen: _Chosen) -> list[KnownSchedule]:
    """Return the network's own schedule with macro-instructions: with their templates, if any, and without."""
    plain = {names: replace(macro, template=None) for names, macro in chosen.items()}
    out = []
    for each in (chosen, plain) if plain != chosen else (plain,):
        by_name = {name: macro for names, macro in each.items() for name in names}
        own = network.schedule.layers
        sources = []
        for info in network.infos:
            macro = by_name.get(info.name)
            same = macro is not None and macro.template is None and macro.schedules == (own[info.name],)
            sources.append(_source(info, None if same else macro))
        templates = {names: macro.template for names, macro in each.items() if macro.template is not None}
        out.append(KnownSchedule(_schedule(network, each), tuple(sources), templates))
    return out


def _of_network(
    network: CompiledNetwork, best: Entry, schedule: Schedule, macros: Iterable[MacroInstruction]
) -> KnownSchedule:
    """Return the best schedule of a network, with the sources of its layers."""
    own: dict[str, LayerSchedule] = network.schedule.layers
    stored: dict[str, MacroInstruction] = {}
    for each in sorted(macros, key=lambda macro: macro.template is not None):
        if each.network == best.key.subgraph:
            stored |= dict.fromkeys(each.layers, each)
    sources = []
    for info in network.infos:
        layer, macro = schedule.layers.get(info.name), stored.get(info.name)
        new = layer is not None and (
            layer != own.get(info.name) or (macro is not None and macro.template is not None)
        )
        sources.append(_source(info, macro if new else None))
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


@lru_cache(maxsize=4)
def _opened(url: str, file: Path | None, _process: int) -> KnownSchedules:
    """Return the cache of a database, opened once in each process."""
    where = url if file is None else file
    return KnownSchedules(TuningDatabase(where, secret=ContentStore().secret, read_only=True), file)
