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
from compiler.profile.measurement import HardwareProfile, Measurement
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.stages import ProgramSource
from compiler.schedule.program_override import ProgramTemplate
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning_db.connection import SHORT_TIMEOUT_S, file_of
from compiler.tuning_db.database import MAX_CYCLES, TuningDatabase
from compiler.tuning_db.entries import BestKeys, EntryKey, best_keys_of, best_of, measured_key_of
from compiler.tuning_db.macro_instructions import MacroInstruction, Surroundings, trial_of
from hw.errors import InputError

#: Goals whose best program may run by default, in the order of preference.
_GOALS = ("latency", "throughput")
#: Maximum number of networks whose entries are kept in memory.
MAX_CACHED_NETWORKS = 256
#: Number of equal neighbours of layers whose macro-instruction is used without a prediction.
_BOTH = 2
#: Number of times that the predicted error is subtracted from a predicted gain.
_SPREADS = 2
#: Predicted cycles of each layer by name, with their expected errors.
LayerPredictions = Mapping[str, tuple[float, float]]
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

    @property
    def without_texts(self) -> "KnownSchedule":
        """The schedule without templates and program texts."""
        return KnownSchedule(replace(self.schedule, programs={}), self.sources_with(()))

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

        Layers are added by halves, so that a single schedule that does not fit is found with few compilations. The
        layers of one macro-instruction stay together.

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
        together = {each.layer: each.group or (each.layer,) for each in self.sources}
        units = list(dict.fromkeys(together.get(name, (name,)) for name in changed))
        layers, groups, attempts = dict(static.layers), [units], 0
        while groups and attempts < _MAX_COMPILATIONS:
            group = groups.pop()
            more = layers | {name: self.schedule.layers[name] for unit in group for name in unit}
            attempts += 1
            if group != units and compiles(replace(self.schedule, layers=more)):
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


class _Best(NamedTuple):
    """Best measured schedule of a network, and proposers of its layers; "" stands for all layers not named."""

    schedule: Schedule
    result: Measurement
    proposers: Mapping[str, str]

    @staticmethod
    def of(
        database: TuningDatabase, keys: Sequence[BestKeys], measured: Sequence[EntryKey]
    ) -> "_Best | None":
        """Return the best program for the first goal or, if it has fewer cycles, the best measured schedule.

        A schedule may be measured without a stored program, since programs are not copied from other databases.

        Parameters
        ----------
        database : TuningDatabase
            Database that contains the entries.
        keys : sequence of BestKeys
            Keys of the network's best programs for each goal, in the order of preference.
        measured : sequence of EntryKey
            Keys of the network's measurements for the first goal.
        """
        programs = (best_of(database.best, each) for each in keys)
        first = next(programs)
        below = MAX_CYCLES if first is None else first.result.cycles
        trials = filter(None, (database.best_trial(key, below) for key in measured))
        trial = min(trials, key=lambda each: each.result.cycles, default=None)
        if trial is not None:
            return _Best(trial.schedule, trial.result, {"": trial.method})
        entry = next((each for each in (first, *programs) if each is not None), None)
        if entry is None or not isinstance(entry.schedule, Schedule):
            return None
        return _Best(entry.schedule, entry.result, entry.proposers)


class _Found(NamedTuple):
    """Entries of the database for a network: its best measured schedule, and the macro-instructions for its layers."""

    best: "_Best | None"
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

    def entries(
        self, keys: Sequence[BestKeys], measured: Sequence[EntryKey], shapes: tuple[str, ...]
    ) -> _Found:
        """Return the best schedule for the first of several goals that has one, and macro-instructions for some shapes.

        Parameters
        ----------
        keys : sequence of BestKeys
            Keys of the network's best programs for each goal, in the order of preference.
        measured : sequence of EntryKey
            Keys of the network's measurements for the first goal.
        shapes : tuple of str
            Digests of the network's layers.
        """
        state = _file_state(self.file)
        with self._lock:
            held = self._kept.get((keys[0], shapes))
            if held is not None and state is not None and held[0] == state:
                self._kept.move_to_end((keys[0], shapes))
                return held[1]
        best = _Best.of(self.database, keys, measured)
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
        predict: Callable[[Schedule], LayerPredictions],
    ) -> list[KnownSchedule]:
        """Return schedules for a network that are better than its own according to measurements, the best first.

        The best measured schedule of this network comes first; if it is the network's own, nothing is returned.
        Otherwise, the network's own schedule is combined with the macro-instructions for those layers that it shares
        with other networks, if adjacent layers and context are the same as in the network where they were measured, or
        if the predicted gain exceeds twice its expected error. A combination with templates of programs comes before
        the same one without.

        Parameters
        ----------
        network : CompiledNetwork
            Network with the static compiler's schedule.
        conditions : HardwareProfile
            Machine configuration and DRAM timing for which schedules must have been measured.
        limits : MemoryLimits
            Memory limits of the compilation.
        predict : callable
            Function that returns the predicted cycles of the network's layers under a schedule.
        """
        assert network.graph is not None
        keys = [best_keys_of(network.graph, network.rounding, conditions, limits, goal) for goal in _GOALS]
        infos = network.infos
        plain = measured_key_of(network.graph, network.rounding, conditions, limits)
        measured = [plain, replace(plain, options=keys[0].texts.options)]
        found = self.entries(keys, measured, tuple(info.shape for info in infos))
        out = []
        if found.best is not None:
            if found.best.schedule == network.schedule:
                return []  # measured, and at least as good as the other schedules that were measured
            own = [each for each in found.macros if each.network == keys[0].plain.subgraph]
            out.append(_of_network(network, found.best, own))
        pool = _matches(network, found.macros)
        certain = _certain(network, pool)
        likely = _likely(network, certain, pool, predict) if pool else []
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
                pool = _matches(network, others)
                for neighbours in (0, _BOTH):
                    chosen = _apart(each for each in pool if each.neighbours >= neighbours)
                    if chosen:
                        out += _combined(network, chosen)
        return [each for number, each in enumerate(out) if each not in out[:number]]


class _Match(NamedTuple):
    """Macro-instruction for adjacent layers, the number of equal neighbours (at most two), and the cycles it saved."""

    neighbours: int
    gain: int
    names: tuple[str, ...]
    start: int
    macro: MacroInstruction

    def overlaps(self, other: "_Match") -> bool:
        """Return True if both have a layer in common."""
        return not set(self.names).isdisjoint(other.names)

    def touches(self, other: "_Match") -> bool:
        """Return True if one begins where the other ends."""
        return self.start + len(self.names) == other.start or other.start + len(other.names) == self.start

    def is_from(self, other: "_Match") -> bool:
        """Return True if both were measured in the same trial."""
        return (self.macro.network, self.macro.trial) == (other.macro.network, other.macro.trial)

    @property
    def schedules(self) -> dict[str, LayerSchedule]:
        """Schedules of the layers by name."""
        return {name: part.schedule for name, part in zip(self.names, self.macro.parts, strict=True)}

    @property
    def templates(self) -> dict[str, ProgramTemplate]:
        """Templates of the layers that have one, by name."""
        parts = zip(self.names, self.macro.parts, strict=True)
        return {name: part.template for name, part in parts if part.template is not None}


def _matches(network: CompiledNetwork, macros: Iterable[MacroInstruction]) -> list[_Match]:
    """Return all matches of macro-instructions with layers: those with most equal neighbours and highest gain first.

    A macro-instruction that saved nothing, or that only contains the network's own schedules, is no match.
    """
    own = network.schedule.layers
    names, shapes = [info.name for info in network.infos], ["", *(info.shape for info in network.infos), ""]
    by_first: dict[str, list[MacroInstruction]] = {}
    for macro in macros:
        if macro.saved > 0:
            by_first.setdefault(macro.parts[0].shape, []).append(macro)
    out = []
    for start, name in enumerate(names):
        for macro in by_first.get(shapes[start + 1], []):
            end = start + len(macro.parts)
            here = tuple(names[start:end])
            if shapes[start + 1 : end + 1] != [part.shape for part in macro.parts] or end > len(names):
                continue
            if not own.keys() >= set(here):
                continue
            neighbours = (macro.before == shapes[start]) + (macro.after == shapes[end + 1])
            found = _Match(neighbours, macro.saved, here, start, macro)
            if macro.templates or any(own[name] != schedule for name, schedule in found.schedules.items()):
                out.append(found)
    return sorted(out, key=lambda match: match[:2], reverse=True)


def _apart(matches: Iterable[_Match]) -> list[_Match]:
    """Return the matches without those that have a layer of an earlier one, or of whose neighbors nothing is known.

    Matches for adjacent layers must have been measured in the same trial: the cycles of a layer may depend on the
    schedule of its neighbor.
    """
    out: list[_Match] = []
    for each in matches:
        if not any(
            each.overlaps(other) or (each.touches(other) and not each.is_from(other)) for other in out
        ):
            out.append(each)
    return out


def _certain(network: CompiledNetwork, pool: Iterable[_Match]) -> list[_Match]:
    """Return matches in the context in which they were measured, under the schedule that contains all of them.

    Those of one trial are chosen together, and the trials that save most first.
    """
    surroundings, trials = Surroundings(network), dict[tuple[str, str], list[_Match]]()
    for match in pool:
        if match.neighbours == _BOTH:
            trials.setdefault((match.macro.network, match.macro.trial), []).append(match)
    alone = [_fitting(network, surroundings, [], matches) for matches in trials.values()]
    chosen: list[_Match] = []
    for matches in sorted(alone, key=lambda each: -sum(match.gain for match in each)):
        chosen += _fitting(network, surroundings, chosen, matches)
    return chosen


def _fitting(
    network: CompiledNetwork, surroundings: Surroundings, chosen: list[_Match], matches: list[_Match]
) -> list[_Match]:
    """Return those of the matches of one trial that are in context together with chosen ones, which remain in it."""
    left = matches
    while left:
        more = _apart([*chosen, *left])[len(chosen) :]
        wrong = [
            each
            for each in (*chosen, *more)
            if not _in_context(network, surroundings, [*chosen, *more], each)
        ]
        if not wrong:
            return more
        if any(each in chosen for each in wrong):
            return []
        left = [each for each in left if each not in wrong]
    return []


def _in_context(
    network: CompiledNetwork, surroundings: Surroundings, chosen: Sequence[_Match], match: _Match
) -> bool:
    """Return True if the context of a match, under all chosen ones, is that in which it was measured."""
    found = surroundings.context(match.start, len(match.names), _schedule(network, chosen).layers)
    return found == match.macro.context


def _likely(
    network: CompiledNetwork,
    certain: list[_Match],
    pool: Iterable[_Match],
    predict: Callable[[Schedule], LayerPredictions],
) -> list[_Match]:
    """Return the matches in `certain`, and others whose gain exceeds twice the expected error of its prediction.

    The prediction does not see the changes of a template, so that a template alone is used only in its context.
    """
    chosen, cycles, surroundings = list(certain), None, Surroundings(network)
    for match in pool:
        if len(_apart([*chosen, match])) == len(chosen):
            continue
        more = [*chosen, match]
        if not any(network.schedule.layers[name] != each for name, each in match.schedules.items()):
            continue
        try:
            cycles = predict(_schedule(network, chosen)) if cycles is None else cycles
            new = predict(_schedule(network, more))
        except InputError:
            continue
        if _least_gain(cycles, new) > 0 and all(
            _in_context(network, surroundings, more, each) for each in certain
        ):
            chosen, cycles = more, new
    return chosen


def _least_gain(before: LayerPredictions, after: LayerPredictions) -> float:
    """Return the predicted gain in cycles, less twice its expected error, from the layers whose prediction differs."""
    changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    old, new = ([each[name] for name in changed if name in each] for each in (before, after))
    gain = sum(cycles for cycles, _ in old) - sum(cycles for cycles, _ in new)
    return gain - _SPREADS * sum(error**2 for _, error in (*old, *new)) ** 0.5


def _schedule(network: CompiledNetwork, chosen: Iterable[_Match]) -> Schedule:
    """Return the network's own schedule with the schedules of some layers replaced."""
    layers = dict(network.schedule.layers)
    for match in chosen:
        layers |= match.schedules
    return replace(network.schedule, layers=layers)


def _combined(network: CompiledNetwork, chosen: Sequence[_Match]) -> list[KnownSchedule]:
    """Return the network's own schedule with macro-instructions: with their templates, if any, and without."""
    own = network.schedule.layers
    plain = [
        each._replace(
            macro=replace(each.macro, parts=tuple(replace(part, template=None) for part in each.macro.parts))
        )
        for each in chosen
        if any(own[name] != schedule for name, schedule in each.schedules.items())
    ]
    out = []
    for each in (chosen, plain) if any(match.macro.templates for match in chosen) else (plain,):
        templates = {name: template for match in each for name, template in match.templates.items()}
        sources, without = (_sources(network, matches) for matches in (each, plain))
        out.append(KnownSchedule(_schedule(network, each), sources, templates, without))
    return out


def _sources(network: CompiledNetwork, chosen: Iterable[_Match]) -> tuple[ProgramSource, ...]:
    """Return the sources of a network's layers if some are executed by macro-instructions."""
    found = {name: match for match in chosen for name in match.names}
    out = []
    for info in network.infos:
        if info.name not in found:
            out.append(ProgramSource(info.name, info.shape))
            continue
        names, macro = found[info.name].names, found[info.name].macro
        cycles = macro.cycles if info.name == names[0] else None
        group = names if len(names) > 1 else ()
        out.append(
            ProgramSource(info.name, info.shape, "database", macro.method or None, cycles, macro.name, group)
        )
    return tuple(out)


def _of_network(network: CompiledNetwork, best: _Best, macros: Iterable[MacroInstruction]) -> KnownSchedule:
    """Return the best schedule of a network, with the sources of its layers.

    Parameters
    ----------
    network : CompiledNetwork
        Network with the static compiler's schedule.
    best : _Best
        Best measured schedule.
    macros : iterable of MacroInstruction
        Macro-instructions that were learned in this network.
    """
    own, layers = network.schedule.layers, best.schedule.layers
    stored = {
        name: each
        for each in macros
        if each.trial in ("", trial_of(best.schedule))
        and all(layers.get(part.layer) == part.schedule for part in each.parts)
        for name in each.layers
    }
    infos = {info.name: info for info in network.infos}
    sources = []
    for name in [
        *(name for name in infos if name in layers),
        *(name for name in layers if name not in infos),
    ]:
        info, macro = infos.get(name), stored.get(name)
        shape = "" if info is None else info.shape
        edited = info is not None and info.program in best.schedule.programs
        if macro is None and layers[name] == own.get(name) and not edited:
            sources.append(ProgramSource(name, shape))
            continue
        entry = next((each for each in best.result.layers if name in each.names), None)
        names = () if entry is None else entry.names
        group, cycles = names if macro is None else macro.layers, None if entry is None else entry.cycles
        cycles = cycles if macro is None else macro.cycles
        proposer = best.proposers.get(name) or (macro.method if macro else "") or best.proposers.get("")
        sources.append(
            ProgramSource(
                name,
                shape,
                "database",
                proposer or None,
                cycles if group and name == group[0] else None,
                macro.name if macro else None,
                group if len(group) > 1 else (),
            )
        )
    return KnownSchedule(best.schedule, tuple(sources))


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
