"""What a database knows of one model under some conditions: the memory of a search."""

from collections.abc import Callable
from dataclasses import replace

from compiler.ir.graph import Graph
from compiler.options import UNLIMITED, MemoryLimits
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile, Measurement, Result
from compiler.runtime.compiled import CompiledNetwork
from compiler.schedule.schedule import Schedule
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.entries import Entry, EntryKey, Profile, TrialEntry, options_of, subgraph_of
from compiler.tuning_db.program_cache import ProgramCache

#: Candidates of other conditions that are looked through for some that fit.
_CANDIDATES = 64


def key_of(
    graph: Graph,
    rounding: str,
    conditions: HardwareProfile,
    limits: MemoryLimits = UNLIMITED,
    *,
    stream: bool = False,
) -> EntryKey:
    """Of measurements and executions of a model after all passes, whose batch is in its shapes.

    Limits of memories are part of it: the same schedule makes other programs within them. `stream`: measurements of
    requests back to back, which are others than those of one by itself.
    """
    options: dict[str, object] = {"rounding": rounding}
    if stream:
        options["stream"] = True
    return EntryKey(subgraph_of(graph), conditions.key, _options(limits, **options))


def _options(limits: MemoryLimits, **options: object) -> str:
    return options_of(**options) if limits == UNLIMITED else options_of(**options, limits=limits)


class DatabaseSession:
    """Remembers the measurements of a search and the best program, and has schedules to start from.

    Measurements are shared by all methods, seeds and goals but throughput, which has its own; there is a best program
    for each goal.

    Parameters
    ----------
    database : Database
        Where entries are.
    prepared : Prepared
        The model.
    conditions : Conditions
        The machine and its memory.
    goal : str
        What the best program is to be best at.
    method : str
        Who searches; for people.
    seed : int
        Of the search; for people.
    programs : MemoryCache or None
        Programs of the database that searches one after the other share; None: some of its own.
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
        #: Of measurements, and of the best program.
        limits = prepared.options.limits
        self.key = key_of(prepared.graph, rounding, conditions, limits, stream=str(goal) == "throughput")
        self.best_key = replace(self.key, options=_options(limits, rounding=rounding, goal=str(goal)))
        if not any(each.trusted and each.conditions.key == conditions.key for each in database.profiles()):
            database.put_profile(Profile(conditions=conditions))

    def lookup(self, schedule: Schedule) -> Result | None:
        """What measuring a schedule gave before; None: it must be measured."""
        result = self.database.measured(self.key, schedule)
        if isinstance(result, Measurement):
            named = {name for entry in result.layers for name in entry.names}
            if not schedule.layers.keys() <= named:
                return None
        return result

    def put(self, schedule: Schedule, result: Result) -> None:
        """Remember a measurement; it is on the disk when this returns."""
        self.database.add_measurement(
            TrialEntry(key=self.key, schedule=schedule, result=result, seed=self.seed, method=self.method)
        )

    def transfer_candidates(self, first: Schedule, limit: int) -> list[Schedule]:
        """Schedules that were good under other conditions, the nearest first, to be measured before use.

        Those of these conditions are not among them: the same search makes the same trials again, from memory.

        Parameters
        ----------
        first : Schedule
            The static compiler's: others must be of the same layers.
        limit : int
            How many at most.
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
            and each.fusions == first.fusions
            and each.layers.keys() == first.layers.keys()
            and each != first
        ]
        return fitting[:limit]

    def best(self) -> Entry | None:
        """The best program; None if there is none."""
        return self.programs.best(self.best_key)

    def put_best(
        self,
        schedule: Schedule,
        result: Measurement,
        cost: float,
        compile_: Callable[[Schedule], CompiledNetwork],
    ) -> bool:
        """Keep a schedule's program if there is no better one; returns whether it is kept."""
        known = self.best()
        if known is not None and known.cost <= cost:
            return False
        codes = tuple(compile_(schedule).codes)
        return self.programs.put_best(
            Entry(key=self.best_key, schedule=schedule, cost=cost, result=result, codes=codes)
        )
