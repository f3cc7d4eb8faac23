"""View of the database for a schedule search of one model under fixed conditions."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from compiler.cache import digest
from compiler.cost.energy import energy_uj
from compiler.cost.features import RowMaker, row_maker
from compiler.cost.learned_model import CycleModel
from compiler.cost.online_model import LayerSample, samples_of
from compiler.pipeline import ModelCompiler
from compiler.profile.counters import CONFLICTS, bound
from compiler.profile.measurement import HardwareProfile, LayerCycles, Measurement, Rejected, Result
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.run_report import Run, layers
from compiler.runtime.stages import LayerInfo, ProgramSource
from compiler.schedule.program_override import ProgramTemplate
from compiler.schedule.schedule import Schedule
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.entries import (
    ACCEPTANCE,
    Entry,
    EntryKey,
    Execution,
    Profile,
    TrialEntry,
    best_keys_of,
    best_of,
    has_texts,
    measured_key_of,
    options_of,
)
from compiler.tuning_db.known_schedules import KnownSchedule, KnownSchedules
from compiler.tuning_db.macro_instructions import (
    MAX_PARTS,
    MacroInstruction,
    MacroPart,
    Surroundings,
    group_of,
    operands_of,
    trial_of,
    use_of,
)
from compiler.tuning_db.model_versions import ModelVersion
from compiler.tuning_db.program_cache import ProgramCache
from hw.errors import InputError

#: Maximum number of schedules of other conditions that are checked for compatibility.
_CANDIDATES = 64
#: Number of machines whose macro-instructions are candidates.
_MACHINES = 4


def layer_key_of(shape: str, rounding: str, conditions: HardwareProfile) -> EntryKey:
    """Return the key of a layer's executions, given its digest (`compiler.cache.digest.shape_of`)."""
    return EntryKey(shape, conditions.key, options_of(rounding=rounding))


def executions_of(network: CompiledNetwork, run: Run, conditions: HardwareProfile) -> list[Execution]:
    """Return the executions of a network's layers in a run, as mean values per batch.

    Layers that did not run are left out, and those that share a counter tag with others, except for executions of
    macro-instructions.

    Parameters
    ----------
    network : CompiledNetwork
        Network that was run.
    run : Run
        Results of the run on a device with a clock.
    conditions : HardwareProfile
        Machine configuration and DRAM timing of the run.
    """
    if run.split is None:
        return []
    config, when = network.config, time.time()
    by_tag: dict[int, list[tuple[LayerInfo, int]]] = {}
    for info, times in layers(network, run.runs, run.taken, run.lengths):
        by_tag.setdefault(info.tag, []).append((info, times))
    out = []
    for tag, counted in by_tag.items():
        infos, times = [info for info, _ in counted], counted[0][1]
        cycles = sum(run.split.by_tag[tag].values())
        if not times or not cycles or any(each != times for _, each in counted):
            continue
        counts = run.counts[tag]
        moved = (counts["load_bytes"] + counts["store_bytes"]) / times
        macs = sum(info.floor.macs for info in infos)
        for subgraph, macro in executed(network.sources, infos):
            out.append(
                Execution(
                    key=layer_key_of(subgraph, network.rounding, conditions),
                    when=when,
                    cycles=round(cycles / times),
                    utilization=macs * times / (cycles * config.n**2),
                    where={cause: round(value / times) for cause, value in run.split.by_tag[tag].items()},
                    load_bytes=round(counts["load_bytes"] / times),
                    store_bytes=round(counts["store_bytes"] / times),
                    conflicts=round(sum(counts[name] for name in CONFLICTS) / times),
                    reuse=macs / moved if moved else 0.0,
                    energy_uj=energy_uj(config, counts) / times,
                    bound=bound(run.split.by_tag[tag]),
                    network=network.name,
                    macro=macro,
                )
            )
    return out


def executed(sources: Iterable[ProgramSource], infos: Sequence[LayerInfo]) -> list[tuple[str, str]]:
    """Return the digests under which an execution of layers with one counter tag is stored, each with its macro.

    These are the digest of a single layer or of exactly the layers of a macro-instruction, and, for each one that was
    counted with other layers or in parts, the digest of its uses (`use_of`).

    Parameters
    ----------
    sources : iterable of ProgramSource
        Sources of the schedules of the network's layers.
    infos : sequence of LayerInfo
        Layers that share the tag.
    """
    names = tuple(info.name for info in infos)
    own = [each for each in sources if each.layer in names and each.macro]
    whole = {each.macro or "" for each in own if (each.group or (each.layer,)) == names}
    uses = [
        (use_of(macro), macro)
        for macro in dict.fromkeys(each.macro or "" for each in own)
        if macro not in whole
    ]
    shapes = [info.shape for info in infos]
    if (len(infos) > 1 and not whole) or not all(shapes):
        return uses
    return [(group_of(shapes), own[0].macro or "" if own else ""), *uses]


#: Maximum number of trials of a network on which the cost model is retrained.
_RETRAINING_TRIALS = 1000


class SampleMaker:
    """Maker of samples of the cost model from measurements of a network.

    Parameters
    ----------
    prepared : ModelCompiler
        Compiler of the network.
    conditions : HardwareProfile
        Machine configuration and DRAM timing of the measurements.
    """

    def __init__(self, prepared: ModelCompiler, conditions: HardwareProfile):
        self.prepared, self.conditions = prepared, conditions
        self._makers: dict[tuple[tuple[str, ...], ...], list[RowMaker]] = {}

    def samples(self, schedule: Schedule, cycles: Mapping[tuple[str, ...], float]) -> list[LayerSample]:
        """Return the samples of a measured schedule, given the cycles of layers that share a counter.

        Layers that share a counter with others are left out, and so are schedules with program texts or other layers.
        """
        fusions = schedule.fusions
        if schedule.programs:
            return []
        try:
            if fusions not in self._makers:
                stages = self.prepared.lowered(fusions)
                self._makers[fusions] = [row_maker(stage, self.conditions) for stage in stages]
        except InputError:  # the schedule is of an earlier version of the compiler
            return []
        own = {names[0]: each for names, each in cycles.items() if len(names) == 1}
        out: list[LayerSample] = []
        for maker in self._makers[fusions]:
            if all(layer.name in schedule.layers for layer in maker.layers):
                out += samples_of(maker.layers, maker.rows(schedule.layers), own)
        return out


class DatabaseSession:
    """Store for the measurements and the best program of a search, and source of schedules to start from.

    Measurements are shared by all methods, seeds and goals, except the goal throughput, for which schedules are
    measured differently. There is one best program per goal.

    Parameters
    ----------
    database : TuningDatabase
        Database that contains the entries.
    prepared : ModelCompiler
        Compiler of the model.
    conditions : HardwareProfile
        Machine configuration and DRAM timing.
    goal : str
        Metric by which the best program is chosen.
    method : str
        Name of the search method, for information only; `proposer_of` gives the proposer of a single schedule.
    seed : int
        Seed of the search, for information only.
    programs : ProgramCache or None
        Program cache that successive searches share; None: a separate cache.

    Attributes
    ----------
    proposer_of : callable
        Function that returns the name of the method that proposed a schedule; by default, `method` for any schedule.
    proposers_of : callable
        Function that returns, for the best schedule of the search, the names of the methods that proposed the current
        schedules of the changed layers, by name, and the texts of programs, by name of the program; by default, none.
    """

    def __init__(
        self,
        database: TuningDatabase,
        prepared: ModelCompiler,
        conditions: HardwareProfile,
        goal: str,
        method: str = "",
        seed: int = 0,
        programs: ProgramCache | None = None,
    ):
        self.programs = programs or ProgramCache(database)
        self.database, self.conditions, self.method, self.seed = database, conditions, method, seed
        self.proposer_of: Callable[[Schedule], str] = lambda _schedule: self.method
        self.proposers_of: Callable[[], tuple[Mapping[str, str], Mapping[str, str]]] = lambda: ({}, {})
        self.prepared = prepared
        rounding = prepared.options.rounding
        #: Keys of measurements, and of the best program.
        limits = prepared.options.limits
        self.key = measured_key_of(
            prepared.graph, rounding, conditions, limits, stream=str(goal) == "throughput"
        )
        self.best_keys = best_keys_of(prepared.graph, rounding, conditions, limits, str(goal))
        #: Key of refused programs, which does not depend on the timing of the DRAM or on the goal.
        self.refusal_key = replace(
            self.key,
            profile=digest.name(conditions.config),
            options=options_of(rounding=rounding, refused=True),
        )
        #: Macro-instructions learned by this session: the one that saves most for each place.
        self._learned: dict[_Place, MacroInstruction] = {}
        self._changed = False
        #: Measurement of the static compiler's schedule with which the learned ones were compared.
        self._static: Measurement | None = None
        self._compiled: CompiledNetwork | None = None
        if not any(each.trusted and each.conditions.key == conditions.key for each in database.profiles()):
            database.put_profile(Profile(conditions=conditions))

    def lookup(self, schedule: Schedule) -> Result | None:
        """Return the stored result of a schedule; None if it must be measured."""
        result = self.database.measured(self._measured_key(schedule), schedule)
        if isinstance(result, Measurement):
            named = {name for entry in result.layers for name in entry.names}
            if not schedule.layers.keys() <= named:
                return None
        return result

    def put(self, schedule: Schedule, result: Result) -> None:
        """Store a measurement, which is durable when the method returns."""
        key = self._measured_key(schedule)
        proposer = self.proposer_of(schedule)
        trial = TrialEntry(key=key, schedule=schedule, result=result, seed=self.seed, method=proposer)
        refused = isinstance(result, Rejected) and result.form and result.form not in self.refusals()
        self.database.add_measurement(trial, *((replace(trial, key=self.refusal_key),) if refused else ()))

    def cost_model(self) -> CycleModel:
        """Return the current version of the cost model of this machine and memory."""
        return self.database.cost_model(self.conditions)

    def retrain(self, served: Sequence[LayerSample] = ()) -> ModelVersion | None:
        """Retrain the cost model on this user's last trials of the network and on served layers.

        Returns the new version of the model, or None if it is not better than the current one.
        """
        maker = SampleMaker(self.prepared, self.conditions)
        trials = [trial for trial, trusted in self.database.trials(self.key) if trusted][-_RETRAINING_TRIALS:]
        samples = [
            sample
            for trial in trials
            if isinstance(trial.schedule, Schedule) and isinstance(trial.result, Measurement)
            for sample in maker.samples(
                trial.schedule, {each.names: float(each.cycles) for each in trial.result.layers}
            )
        ]
        return self.database.retrain(self.conditions, [*samples, *served], self.seed)

    def _measured_key(self, schedule: Schedule) -> EntryKey:
        """Return the key of the measurement of a schedule."""
        return replace(self.key, options=self.best_keys.texts.options) if schedule.programs else self.key

    def refusals(self) -> dict[str, str]:
        """Return the reasons for which this user's searches have refused programs, by the digest of their form."""
        results = [trial.result for trial, trusted in self.database.trials(self.refusal_key) if trusted]
        return {each.form: each.reason for each in results if isinstance(each, Rejected) and each.form}

    def transfer_candidates(self, first: Schedule, limit: int) -> list[Schedule]:
        """Return schedules that were best under other conditions, nearest conditions first.

        They must be measured before use. Schedules that this user measured for the same conditions are excluded, since
        a repeated search finds their measurements in the database.

        Parameters
        ----------
        first : Schedule
            Static compiler's schedule, which is not returned.
        limit : int
            Maximum number of schedules.
        """
        nodes = {*first.layers, *(name for names in first.fusions for name in names)}
        found = self.database.candidates(
            self.key, _CANDIDATES, conditions=self.conditions, nodes=nodes, elsewhere=True
        )
        schedules = [each.trial.schedule for each in found]
        fitting = [
            each
            for each in schedules
            if isinstance(each, Schedule)
            and each != first
            and (each.fusions != first.fusions or each.layers.keys() == first.layers.keys())
        ]
        return fitting[:limit]

    def learned(self, network: CompiledNetwork) -> list[KnownSchedule]:
        """Return combinations with macro-instructions of other networks and of others, to be measured.

        Those that were measured under the conditions of this session come first, then those of the nearest machines.

        Parameters
        ----------
        network : CompiledNetwork
            Network with the static compiler's schedule.
        """
        machines = (machine for _, machine in self.database.nearest(self.conditions, _MACHINES))
        profiles = dict.fromkeys((self.conditions.key, *(machine.conditions.key for machine in machines)))
        return KnownSchedules(self.database).elsewhere(network, self.best_keys, profiles)

    def best(self) -> Entry | None:
        """Return the best program for the goal of this session; None if there is none."""
        return best_of(self.programs.best, self.best_keys)

    def withdraw(self, schedule: Schedule) -> None:
        """Delete the best program for the goal if it has a given schedule, which failed in use.

        The schedule's measurement no longer counts, so that compilations and other searches do not use it either.
        """
        reason = Rejected("search", "the schedule was slower in use than measured, or failed")
        self.database.add_measurement(
            TrialEntry(key=self._measured_key(schedule), schedule=schedule, result=reason, method=self.method)
        )
        for key in self.best_keys:
            held = self.programs.best(key)
            if held is not None and held.schedule == schedule:
                self.programs.drop_best(key)
        trial, network = trial_of(schedule), self.best_keys.plain.subgraph
        self._learned = {place: macro for place, macro in self._learned.items() if macro.trial != trial}
        self.database.drop_macros(lambda macro: macro.trial == trial and macro.network == network)

    def put_best(
        self,
        schedule: Schedule,
        result: Measurement,
        cost: float,
        compile_: Callable[[Schedule | None], CompiledNetwork],
        baseline: Measurement,
        templates_of: Callable[[Schedule], Mapping[str, ProgramTemplate]] = lambda _schedule: {},
    ) -> bool:
        """Store a schedule's programs unless stored programs are at least as good; return True if they were stored.

        What was learned about single layers is stored as macro-instructions, for other networks with such layers.

        Parameters
        ----------
        schedule : Schedule
            Schedule of the network.
        result, baseline : Measurement
            Measurements of this schedule and of the static compiler's schedule.
        cost : float
            Value of the metric that is minimized.
        compile_ : callable
            Function that compiles the network with a schedule, or with the static compiler's schedule if it is None.
        templates_of : callable
            Function that returns the templates of the layers whose commands the texts of a schedule change, by name.
        """
        known = self.best()
        if known is not None and known.cost <= cost:
            if known.cost == cost and known.schedule == schedule:  # macro-instructions may have been removed
                self.learn(schedule, result, baseline, compile_, templates_of, known.proposers)
                self.store_learned()
            return False
        network, first = compile_(schedule), self._first(compile_)
        proposers = self._proposers(network, first)
        key = self.best_keys.texts if schedule.programs else self.best_keys.plain
        held = self.programs.best(self.best_keys.plain)
        if held is not None and has_texts(held):
            self.programs.drop_best(held.key)  # its texts were accepted by an earlier version
        stored = self.programs.put_best(
            Entry(
                key=key,
                schedule=schedule,
                cost=cost,
                result=result,
                codes=tuple(network.codes),
                proposers=proposers,
            )
        )
        if stored:
            self.learn(schedule, result, baseline, compile_, templates_of, proposers)
            self.store_learned()
        return stored

    def _proposers(self, network: CompiledNetwork, first: CompiledNetwork) -> dict[str, str]:
        """Return the name of the method that proposed the schedule or program of each changed layer, by name."""
        layers, programs = self.proposers_of()
        whole, own = self.proposer_of(network.schedule), first.schedule.layers
        out = {}
        for info in network.infos:
            if info.program in network.schedule.programs:
                out[info.name] = programs.get(info.program) or layers.get(info.name) or whole
            elif network.schedule.layers.get(info.name) != own.get(info.name):
                out[info.name] = layers.get(info.name) or whole
        return out

    def learn(
        self,
        schedule: Schedule,
        result: Measurement,
        baseline: Measurement,
        compile_: Callable[[Schedule | None], CompiledNetwork],
        templates_of: Callable[[Schedule], Mapping[str, ProgramTemplate]],
        proposers: Mapping[str, str] | None = None,
    ) -> None:
        """Keep what a trial has improved in single layers as macro-instructions, for `store_learned`.

        The whole network need not be faster, since the cycles of the same layers in the same network are compared. In
        trials other than the best one, the layers before and after must be unchanged. Of the macro-instructions for the
        same layers with the same neighbors and context, the one that saves most is kept.

        Parameters
        ----------
        schedule, result, baseline, compile_, templates_of
            As for `put_best`.
        proposers : mapping of str to str, optional
            Proposers of the changed layers of the best trial, as in `Entry.proposers`; None for other trials.
        """
        if self._static is None or self._static.layers != baseline.layers:
            self._static = baseline
            self._learned.clear()
        for macro in self._macros(schedule, result, baseline, compile_, templates_of, proposers):
            held = self._learned.get(_place(macro))
            least = macro.saved + (proposers is not None)  # of equal ones, that of the best trial is kept
            if held is None or held.saved < least:
                self._learned[_place(macro)], self._changed = macro, True

    def store_learned(self) -> None:
        """Store the macro-instructions if any were learned since the last call.

        Macro-instructions of earlier searches for the network are kept if they save more, and if the static compiler's
        programs for their layers take as many cycles as when they were measured.
        """
        if not self._changed or self._static is None or self._compiled is None:
            return
        static = {name: entry for entry in self._static.layers for name in entry.names}

        def valid(macro: MacroInstruction) -> bool:
            """Return True if the static cycles of a macro-instruction are still those of its layers."""
            entries = {id(static[name]): static[name] for name in macro.layers if name in static}
            return macro.static_cycles == sum(each.cycles for each in entries.values())

        shapes = {info.shape for info in self._compiled.infos if info.shape}
        keys = {replace(self.best_keys.plain, subgraph=shape) for shape in shapes}
        stored = [
            macro
            for macro in self.database.macros(keys)
            if macro.network == self.best_keys.plain.subgraph and valid(macro)
        ]
        kept = dict(self._learned)
        for macro in stored:
            place = _place(macro)
            if place not in kept or kept[place].saved < macro.saved:
                kept[place] = macro
        self.database.put_macros(list(kept.values()))
        self._changed = False

    def _first(self, compile_: Callable[[Schedule | None], CompiledNetwork]) -> CompiledNetwork:
        """Return the network with the static compiler's schedule, compiled once."""
        if self._compiled is None:
            self._compiled = compile_(None)
        return self._compiled

    def _macros(
        self,
        schedule: Schedule,
        result: Measurement,
        baseline: Measurement,
        compile_: Callable[[Schedule | None], CompiledNetwork],
        templates_of: Callable[[Schedule], Mapping[str, ProgramTemplate]],
        proposers: Mapping[str, str] | None,
    ) -> Iterator[MacroInstruction]:
        """Yield a macro-instruction for each layer, or layers that belong together, that take fewer cycles in a trial.

        At least one of the layers has a template or another schedule than the static compiler's. Layers that are fused
        differently are left out, since their static cycles are not known. Without `proposers`, layers with changed
        neighbors are left out, too: their gain may depend on these.
        """
        network, first = compile_(schedule), self._first(compile_).schedule
        infos, schedules = network.infos, schedule.layers
        segments = list(_segments(infos, result, baseline))
        if not any(now.cycles < static.cycles for _, now, static in segments):
            return
        templates = templates_of(schedule) if schedule.programs else {}
        changed = {
            info.name
            for info in infos
            if info.name in templates or schedules.get(info.name) != first.layers.get(info.name)
        }
        words = {program.name: len(program.words) for code in network.codes for program in code.programs}
        layers = {layer.name: layer for layer in network.layers}
        surroundings, trial = Surroundings(network), trial_of(schedule)
        shapes = ["", *(each.shape for each in infos), ""]
        for start, cycles, static in _joined(segments):
            here = infos[start : start + len(cycles.names)]
            if not all(each.shape and each.name in schedules for each in here) or len(here) > MAX_PARTS:
                continue
            if changed.isdisjoint(cycles.names) or cycles.cycles >= static.cycles:
                continue
            around = infos[max(start - 1, 0) : start] + infos[start + len(here) : start + len(here) + 1]
            if proposers is None and not changed.isdisjoint(each.name for each in around):
                continue
            parts = tuple(
                MacroPart(
                    shape=each.shape,
                    schedule=schedules[each.name],
                    template=templates.get(each.name),
                    layer=each.name,
                    ops=each.ops,
                    operands=operands_of(layers[each.name]),
                )
                for each in here
            )
            tested = any(part.template is not None for part in parts)
            methods = dict.fromkeys(
                (proposers or {}).get(each.name, "") for each in here if each.name in changed
            )
            yield MacroInstruction(
                key=replace(self.best_keys.plain, subgraph=group_of([each.shape for each in here])),
                parts=parts,
                machine=digest.name(self.conditions.config),
                before=shapes[start],
                after=shapes[start + len(here) + 1],
                context=surroundings.context(start, len(here), schedules),
                network=self.best_keys.plain.subgraph,
                trial=trial,
                cycles=cycles.cycles,
                static_cycles=static.cycles,
                words=sum(words.get(name, 0) for name in dict.fromkeys(each.program for each in here)),
                model=network.name,
                test_inputs=result.test_inputs if tested else 0,
                rules=ACCEPTANCE if tested else 0,
                method=", ".join(filter(None, methods)) or self.proposer_of(schedule),
            )


#: Layers, neighbors and context of a macro-instruction.
_Place = tuple[str, str, str, str]


def _place(macro: MacroInstruction) -> _Place:
    return macro.key.subgraph, macro.before, macro.after, macro.context


#: Layers with their cycles: index of the first one, and cycles in the best and in the first measurement.
_Segment = tuple[int, LayerCycles, LayerCycles]
#: Least ratio of a layer's loss to an adjacent layer's gain at which the gain counts as moved cycles.
_MOVED_SHARE = 0.1


def _joined(segments: list[_Segment]) -> list[_Segment]:
    """Join each segment that takes more cycles with the adjacent one that gained most, unless the loss is small.

    A change may move cycles from a layer to the next one without saving them, for example by an earlier change of the
    counter tag or by loads that a later layer waits for. Only the sum of both is then a gain.
    """

    def gain(number: int) -> int:
        _, now, before = out[number]
        return before.cycles - now.cycles

    def partners(number: int) -> list[int]:
        found = []
        for other in (number - 1, number + 1):
            if 0 <= other < len(out) and gain(other) > 0 and -gain(number) >= _MOVED_SHARE * gain(other):
                first = min(number, other)
                if out[first][0] + len(out[first][1].names) == out[first + 1][0]:
                    found.append(other)
        return found

    out = list(segments)
    while losing := [number for number in range(len(out)) if gain(number) < 0 and partners(number)]:
        number = min(losing, key=gain)
        first = min(number, max(partners(number), key=gain))
        (start, *one), (_, *other) = out[first], out[first + 1]
        now, before = (
            LayerCycles(a.names + b.names, a.cycles + b.cycles, {}) for a, b in zip(one, other, strict=True)
        )
        out[first : first + 2] = [(start, now, before)]
    return out


def _segments(infos: Sequence[LayerInfo], result: Measurement, baseline: Measurement) -> Iterator[_Segment]:
    """Yield the smallest runs of adjacent layers whose cycles are known in both measurements.

    Each is given by the index of its first layer and its cycles in both measurements. Layers that one of the
    measurements does not contain are left out.
    """
    entries = [
        {name: each for each in measured.layers for name in each.names} for measured in (result, baseline)
    ]
    start = 0
    while start < len(infos):
        names = {infos[start].name}
        while any(
            name in found and not names >= set(found[name].names) for name in names for found in entries
        ):
            names |= {
                more for name in names for found in entries if name in found for more in found[name].names
            }
        here = tuple(info.name for info in infos[start : start + len(names)])
        if set(here) == names and all(name in found for name in names for found in entries):
            whole = (
                LayerCycles(
                    here,
                    sum(each.cycles for each in {id(found[name]): found[name] for name in here}.values()),
                    {},
                )
                for found in entries
            )
            now, before = whole
            yield start, now, before
            start += len(here)
        else:
            start += 1
