"""View of the database for a schedule search of one model under fixed conditions."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from compiler.cache import digest
from compiler.cost.energy import energy_uj
from compiler.ir.graph import Graph
from compiler.options import UNLIMITED, MemoryLimits
from compiler.pipeline import ModelCompiler
from compiler.profile.counters import CONFLICTS, bound
from compiler.profile.measurement import HardwareProfile, Measurement, Rejected, Result
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.run_report import Run, layers
from compiler.runtime.stages import LayerInfo
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
    options_of,
    options_within,
    subgraph_of,
)
from compiler.tuning_db.known_schedules import KnownSchedule, KnownSchedules
from compiler.tuning_db.macro_instructions import MacroInstruction, operands_of
from compiler.tuning_db.program_cache import ProgramCache

#: Maximum number of schedules of other conditions that are checked for compatibility.
_CANDIDATES = 64


def key_of(
    graph: Graph,
    rounding: str,
    conditions: HardwareProfile,
    limits: MemoryLimits = UNLIMITED,
    *,
    stream: bool = False,
) -> EntryKey:
    """Return the key of a model's measurements and executions.

    Parameters
    ----------
    graph : Graph
        Graph of the model after all passes, with the batch size in its shapes.
    rounding : str
        Rounding mode from the compiler options.
    conditions : HardwareProfile
        Machine configuration and DRAM timing.
    limits : MemoryLimits
        Memory limits of the compilation, since the same schedule may compile to other programs under other limits.
    stream : bool
        True for measurements of back-to-back requests, which differ from measurements of single requests.
    """
    options: dict[str, object] = {"rounding": rounding}
    if stream:
        options["stream"] = True
    return EntryKey(subgraph_of(graph), conditions.key, options_within(limits, **options))


def layer_key_of(shape: str, rounding: str, conditions: HardwareProfile) -> EntryKey:
    """Return the key of a layer's executions, given its digest (`compiler.cache.digest.shape_of`)."""
    return EntryKey(shape, conditions.key, options_of(rounding=rounding))


def executions_of(network: CompiledNetwork, run: Run, conditions: HardwareProfile) -> list[Execution]:
    """Return the executions of a network's layers in a run, as mean values per batch.

    Layers that share a counter tag with others, or that did not run, are left out.

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
    macros = {each.layer: each.macro or "" for each in network.sources}
    by_tag: dict[int, list[tuple[LayerInfo, int]]] = {}
    for info, times in layers(network, run.runs, run.taken):
        by_tag.setdefault(info.tag, []).append((info, times))
    out = []
    for tag, ((info, times), *others) in by_tag.items():
        cycles = sum(run.split.by_tag[tag].values())
        if others or not times or not cycles or not info.shape:
            continue
        counts = run.counts[tag]
        moved = (counts["load_bytes"] + counts["store_bytes"]) / times
        out.append(
            Execution(
                key=layer_key_of(info.shape, network.rounding, conditions),
                when=when,
                cycles=round(cycles / times),
                utilization=info.floor.macs * times / (cycles * config.n**2),
                where={cause: round(value / times) for cause, value in run.split.by_tag[tag].items()},
                load_bytes=round(counts["load_bytes"] / times),
                store_bytes=round(counts["store_bytes"] / times),
                conflicts=round(sum(counts[name] for name in CONFLICTS) / times),
                reuse=info.floor.macs / moved if moved else 0.0,
                energy_uj=energy_uj(config, counts) / times,
                bound=bound(run.split.by_tag[tag]),
                network=network.name,
                macro=macros.get(info.name, ""),
            )
        )
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
        Name of the search method, for information only.
    seed : int
        Seed of the search, for information only.
    programs : ProgramCache or None
        Program cache that successive searches share; None: a separate cache.
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
        rounding = prepared.options.rounding
        #: Keys of measurements, and of the best program.
        limits = prepared.options.limits
        self.key = key_of(prepared.graph, rounding, conditions, limits, stream=str(goal) == "throughput")
        self.best_keys = best_keys_of(prepared.graph, rounding, conditions, limits, str(goal))
        #: Key of refused programs, which does not depend on the timing of the DRAM or on the goal.
        self.refusal_key = replace(
            self.key,
            profile=digest.name(conditions.config),
            options=options_of(rounding=rounding, refused=True),
        )
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
        trial = TrialEntry(key=key, schedule=schedule, result=result, seed=self.seed, method=self.method)
        refused = isinstance(result, Rejected) and result.form and result.form not in self.refusals()
        self.database.add_measurement(trial, *((replace(trial, key=self.refusal_key),) if refused else ()))

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
        """Return combinations with macro-instructions of other networks and of others, to be measured first.

        Parameters
        ----------
        network : CompiledNetwork
            Network with the static compiler's schedule.
        """
        return KnownSchedules(self.database).elsewhere(network, self.best_keys)

    def best(self) -> Entry | None:
        """Return the best program for the goal of this session; None if there is none."""
        return best_of(self.programs.best, self.best_keys)

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
                self._put_macros(compile_(schedule), result, baseline, compile_, templates_of)
            return False
        network = compile_(schedule)
        key = self.best_keys.texts if schedule.programs else self.best_keys.plain
        held = self.programs.best(self.best_keys.plain)
        if held is not None and has_texts(held):
            self.programs.drop_best(held.key)  # its texts were accepted by an earlier version
        stored = self.programs.put_best(
            Entry(key=key, schedule=schedule, cost=cost, result=result, codes=tuple(network.codes))
        )
        if stored:
            self._put_macros(network, result, baseline, compile_, templates_of)
        return stored

    def _put_macros(
        self,
        network: CompiledNetwork,
        result: Measurement,
        baseline: Measurement,
        compile_: Callable[[Schedule | None], CompiledNetwork],
        templates_of: Callable[[Schedule], Mapping[str, ProgramTemplate]],
    ) -> None:
        """Store the macro-instructions of a network; the parameters are those of `put_best`."""
        templates = templates_of(network.schedule) if network.schedule.programs else {}
        first = compile_(None).schedule
        self.database.put_macros(list(self._macros(network, first, result, baseline, templates)))

    def _macros(
        self,
        network: CompiledNetwork,
        first: Schedule,
        result: Measurement,
        baseline: Measurement,
        templates: Mapping[str, ProgramTemplate],
    ) -> Iterator[MacroInstruction]:
        """Yield a macro-instruction for each layer with a template or another schedule than the static compiler's.

        Layers that are fused differently are left out, since their static cycles are not known.
        """
        infos, schedules = network.infos, network.schedule.layers
        static, cycles = (
            {name: each.cycles for each in measured.layers for name in each.names}
            for measured in (baseline, result)
        )
        shapes = ["", *(each.shape for each in infos), ""]
        words = {program.name: len(program.words) for code in network.codes for program in code.programs}
        layers = {layer.name: layer for layer in network.layers}
        for number, each in enumerate(infos):
            template, schedule = templates.get(each.name), schedules.get(each.name)
            if not each.shape or schedule is None or each.name not in static.keys() & cycles.keys():
                continue
            if template is None and schedule == first.layers.get(each.name):
                continue
            yield MacroInstruction(
                key=replace(self.best_keys.plain, subgraph=each.shape),
                schedule=schedule,
                template=template,
                machine=digest.name(self.conditions.config),
                before=shapes[number],
                after=shapes[number + 2],
                network=self.best_keys.plain.subgraph,
                cycles=cycles[each.name],
                static_cycles=static[each.name],
                words=words.get(each.program, 0),
                model=network.name,
                layer=each.name,
                ops=each.ops,
                operands=operands_of(layers[each.name]),
                test_inputs=0 if template is None else result.test_inputs,
                rules=0 if template is None else ACCEPTANCE,
                method=self.method,
            )
