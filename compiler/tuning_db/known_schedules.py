"""Best known schedules of a network, from the user's database, with a cache in memory."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from compiler.cache.content_store import ContentStore
from compiler.options import MemoryLimits
from compiler.profile.measurement import HardwareProfile
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.stages import LayerInfo, ProgramSource
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning_db.connection import file_of
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.entries import Entry, LayerEntry
from compiler.tuning_db.session import BestKeys, best_keys_of, best_of
from compiler.tuning_db.transfer_learning import BOTH_NEIGHBOURS, LayerMatch, layer_matches
from hw.errors import InputError

#: Goals whose best program may run by default, in the order of preference.
_GOALS = ("latency", "throughput")
#: Maximum number of networks whose entries are kept in memory.
MAX_CACHED_NETWORKS = 256


@dataclass(frozen=True)
class KnownSchedule:
    """Schedule from the database for a network.

    Parameters
    ----------
    schedule : Schedule
        Schedule of the whole network, which must be compiled and proved like any other.
    sources : tuple of ProgramSource
        Source of each layer's schedule.
    """

    schedule: Schedule
    sources: tuple[ProgramSource, ...]


class _Found(NamedTuple):
    """Entries of the database for a network: its best program, and the layers that it shares with other networks."""

    best: Entry | None
    layers: tuple[LayerEntry, ...]


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
        """Return the best program for the first of several goals that has one, and all layers with some shapes.

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
        layers = {replace(each.plain, subgraph=shape) for each in keys for shape in shapes if shape}
        found = _Found(best, tuple(self.database.layers(layers)))
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

        The best schedule of this network comes first. Otherwise, the network's own schedule is combined with the best
        schedules of those layers that it shares with other networks. The schedule of a layer is used if both adjacent
        layers are the same as in the network where it was measured, or if it reduces the predicted cycles.

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
            out.append(_of_network(network, found.best, found.best.schedule, found.layers))
        own = network.schedule.layers
        matches = {
            name: match
            for name, match in layer_matches(infos, found.layers)
            if name in own and match.entry.schedule != own[name]
        }
        certain = {
            name: match.entry for name, match in matches.items() if match.neighbours == BOTH_NEIGHBOURS
        }
        likely = _likely(network, certain, matches, predict) if matches else {}
        out += [_combined(network, chosen) for chosen in (likely, certain) if chosen]
        return [
            each
            for number, each in enumerate(out)
            if each not in out[:number] and each.schedule != network.schedule
        ]


def _likely(
    network: CompiledNetwork,
    certain: dict[str, LayerEntry],
    matches: Mapping[str, LayerMatch],
    predict: Callable[[Schedule], float],
) -> dict[str, LayerEntry]:
    """Return the entries in `certain`, and those of other layers that each reduce the predicted cycles."""
    chosen = dict(certain)
    cycles = None
    for name, match in matches.items():
        if match.neighbours == BOTH_NEIGHBOURS:
            continue
        try:
            cycles = predict(_combined(network, chosen).schedule) if cycles is None else cycles
            new = predict(_combined(network, chosen | {name: match.entry}).schedule)
        except InputError:
            continue
        if new < cycles:
            chosen, cycles = chosen | {name: match.entry}, new
    return chosen


def _combined(network: CompiledNetwork, chosen: Mapping[str, LayerEntry]) -> KnownSchedule:
    """Return the network's own schedule with the schedules of some layers replaced."""
    layers = network.schedule.layers | {name: entry.schedule for name, entry in chosen.items()}
    sources = tuple(_source(info, chosen.get(info.name)) for info in network.infos)
    return KnownSchedule(replace(network.schedule, layers=layers), sources)


def _of_network(
    network: CompiledNetwork, best: Entry, schedule: Schedule, layers: Iterable[LayerEntry]
) -> KnownSchedule:
    """Return the best schedule of a network, with the sources of its layers."""
    own: dict[str, LayerSchedule] = network.schedule.layers
    stored = {
        (each.key.subgraph, each.schedule): each for each in layers if each.network == best.key.subgraph
    }
    sources = []
    for info in network.infos:
        layer = schedule.layers.get(info.name)
        entry = None if layer is None or layer == own.get(info.name) else stored.get((info.shape, layer))
        sources.append(_source(info, entry))
    return KnownSchedule(schedule, tuple(sources))


def _source(info: LayerInfo, entry: LayerEntry | None) -> ProgramSource:
    if entry is None:
        return ProgramSource(info.name, info.shape)
    return ProgramSource(info.name, info.shape, "database", entry.method or None, entry.cycles)


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
