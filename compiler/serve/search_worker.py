"""The search for better versions beside the machine that serves: it measures on simulators of its own."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.ir.graph import Graph
from compiler.llm.endpoint.settings import Endpoint
from compiler.options import CompileOptions, DramTiming
from compiler.pipeline import ModelCompiler
from compiler.profile.counters import ByTag
from compiler.profile.hardware_profile import HardwareProfile
from compiler.profile.measurement import Result
from compiler.quantize.samples import random_samples
from compiler.schedule.schedule import Schedule
from compiler.serve.dram_identification import estimate
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.search.method import SearchMethod
from compiler.tuning.search.methods import LLM
from compiler.tuning.search.tuner import keep_best, method_of, starts_of
from compiler.tuning.space.objectives import Objective
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.program_cache import ProgramCache
from compiler.tuning_db.session import DatabaseSession
from cosim.device import Device
from hw.config import MlaConfig

if TYPE_CHECKING:
    from compiler.llm.generate.author import LanguageModelGenerator

#: Latencies, and rates, that differ by no more of the greater are taken for the same.
_ALIKE = 0.1


@dataclass(frozen=True)
class SearchJob:
    """What is searched for: a better schedule of a model on a machine.

    `method` is a name, or `module:Class`; `generators` are those that it asks, () for all. `db`: where measurements are
    kept; `endpoint`: where the language model is that the method `llm` asks.
    """

    graph: Graph
    config: MlaConfig
    options: CompileOptions
    method: str
    goal: Objective = Objective.THROUGHPUT
    seed: int = 0
    db: str | Path | None = None
    endpoint: Endpoint | None = None
    generators: tuple[str, ...] = ()


@dataclass(frozen=True)
class SearchFinding:
    """What came of a trial.

    Parameters
    ----------
    kind : str
        "served": what was being served; "first": what the static compiler makes for the conditions; "known": the best
        in the database for them; "trial".
    dram : Dram
        The memory that it was measured with.
    schedule : Schedule
        What was tried.
    result : Measurement or Rejected
        What came of it.
    number : int
        Trials so far under these conditions.
    asked : dict or None
        What a language model was asked so far, and what that cost; None: there is none.
    """

    kind: str
    dram: DramTiming
    schedule: Schedule
    result: Result
    number: int
    asked: dict[str, Any] | None = None


@dataclass(frozen=True)
class Begin:
    """Serving begins with a schedule, on a memory."""

    dram: DramTiming
    schedule: Schedule


@dataclass(frozen=True)
class Changed:
    """Something other than before: what was being served, what LOAD counted meanwhile, and what the memory was like."""

    schedule: Schedule
    loads: ByTag
    known: DramTiming


class SearchWorker:
    """Measures candidates one after the other.

    Parameters
    ----------
    job : Job
        What is searched for.
    """

    def __init__(self, job: SearchJob):
        self.job = job
        self.measurer: Measurer | None = None
        self._method: SearchMethod | None = None
        self._number, self._known = 0, list[DramTiming]()
        self._database: TuningDatabase | None = None
        self._programs: ProgramCache | None = None
        self._recall: DatabaseSession | None = None
        self._starts: list[Schedule] = []
        self._author = self._language_model()

    def begin(self, dram: DramTiming, served: Schedule) -> list[SearchFinding]:
        """Search under these conditions from now on; measures what is served and the static compiler's schedule."""
        self._end()
        job = self.job
        self.measurer = measurer = Measurer(
            job.graph,
            HardwareProfile(job.config, dram),
            job.options,
            1,
            job.seed,
            stream=job.goal is Objective.THROUGHPUT,
        )
        first = measurer.first.schedule
        self._recall = measurer.memory = self._remembers(measurer)
        self._number = 0
        if dram not in self._known:
            self._known.append(dram)
        baseline = measurer.baseline()
        self._method = method_of(
            job.method,
            measurer,
            job.goal,
            baseline,
            job.seed,
            author=self._author,
            generator=job.generators or None,
        )
        keep_best(self._recall, self._method)
        out = [SearchFinding("first", dram, first, baseline, 0)]
        if served != first:
            out.insert(0, SearchFinding("served", dram, served, self._try(served), 0))
        else:
            out.insert(0, replace(out[0], kind="served"))
        best = None if self._recall is None else self._recall.best()
        if best is not None and isinstance(best.schedule, Schedule) and best.schedule not in (first, served):
            out.append(SearchFinding("known", dram, best.schedule, self._try(best.schedule), 0))
        self._starts = starts_of(self._recall, self._method)
        return out

    def _try(self, schedule: Schedule) -> Result:
        """Measure a schedule; the method hears of it, and if it is the best, so does the database."""
        assert self.measurer is not None and self._method is not None
        (result,) = self.measurer.measure([schedule])
        if self._method.tell(schedule, result) is self._method.best:
            keep_best(self._recall, self._method)
        return result

    def adapt(self, changed: Changed) -> list[SearchFinding]:
        """Find out what the memory is like now, and search for that."""
        job = self.job
        network = ModelCompiler(job.graph, job.config, replace(job.options, dram=changed.known)).network(
            changed.schedule
        )
        assert network.graph is not None
        sample = random_samples(network.graph, job.seed, 1)[0]
        known = [changed.known, *(each for each in self._known if each != changed.known)]
        found = estimate(network, changed.loads, sample, known, self._opener())
        return self.begin(self._same(found), changed.schedule)

    def _same(self, dram: DramTiming) -> DramTiming:
        """Conditions that were there before, if these are hardly different."""
        kept = [] if self._database is None else self._database.profiles()
        own = [each.conditions for each in kept if each.trusted and each.conditions.config == self.job.config]
        for known in (*self._known, *(each.dram for each in own)):
            pairs = [(known.latency, dram.latency), (self._rate(known), self._rate(dram))]
            if all(abs(one - other) <= _ALIKE * max(one, other) for one, other in pairs):
                return known
        return dram

    def _rate(self, dram: DramTiming) -> float:
        return dram.bytes_per_cycle or self.job.config.n

    def trial(self) -> SearchFinding:
        """The next candidate."""
        assert self.measurer is not None and self._method is not None
        schedule = self._starts.pop(0) if self._starts else self._method.propose()
        result = self._try(schedule)
        self._number += 1
        asked = self._author.document() if self._author else None
        return SearchFinding("trial", self.measurer.conditions.dram, schedule, result, self._number, asked)

    def close(self) -> None:
        """Close the simulators, leave the database; may be called twice."""
        self._end()
        if self._database is not None:
            self._database.close()
            self._database = self._programs = None

    def _language_model(self) -> "LanguageModelGenerator | None":
        """Who the method `llm` asks, within one budget whatever conditions become."""
        if self.job.method != LLM:
            return None
        from compiler.llm.generate.choice import language_model

        return language_model(self.job.endpoint)

    def _remembers(self, measurer: Measurer) -> DatabaseSession | None:
        """What the database knows for the conditions of a measurer."""
        job = self.job
        if job.db is None:
            return None
        database = self._database = self._database or TuningDatabase(job.db)
        programs = self._programs = self._programs or ProgramCache(database)
        return DatabaseSession(
            database, measurer.prepared, measurer.conditions, job.goal, job.method, job.seed, programs
        )

    def _end(self) -> None:
        """End the search under the present conditions."""
        if self.measurer is not None:
            self.measurer.close()
            self.measurer = None

    def _opener(self) -> Callable[[int], Device]:
        from cosim.rtl.rtl_device import RtlDevice

        return lambda size: RtlDevice(self.job.config, size)
