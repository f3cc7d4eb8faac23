"""Measurement of schedules of one model on simulated machines."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, Self

from compiler.cost.learned_model import CycleModel, find_model
from compiler.ir.graph import Graph
from compiler.options import CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile, Measurement, Rejected, Result
from compiler.schedule.schedule import Schedule
from compiler.tuning.measure.runner import MeasureOrder, MeasureSubject
from compiler.tuning.measure.worker_pool import LocalWorker, WorkerGroup, WorkerPool
from hw.errors import InputError, WorkError

#: Time limit of a candidate, as a multiple of the baseline's cycles.
_LIMIT_FACTOR = 3

#: ONNX operators whose results are random.
_RANDOM_OPERATORS = frozenset(
    ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)


class MeasurementCache(Protocol):
    """Cache of measurements of one model under fixed conditions."""

    def lookup(self, schedule: Schedule) -> Result | None:
        """Return the cached result of a schedule; None if it has not been measured."""
        ...

    def put(self, schedule: Schedule, result: Result) -> None:
        """Store a result, which is durable when the method returns."""
        ...

    def refusals(self) -> dict[str, str]:
        """Return the reasons for which programs were refused, by the digest of their form (`Rejected.form`)."""
        ...

    def cost_model(self) -> CycleModel:
        """Return the cost model of the conditions, retrained on earlier measurements if that made it better."""
        ...


class Measurer:
    """Measurer that compiles schedules of a model, proves them safe, runs them on the RTL and checks their outputs.

    Simulators are started when the first schedule has to run.

    Parameters
    ----------
    graph : Graph
        Graph of the model.
    conditions : HardwareProfile
        Machine configuration and DRAM timing.
    options : CompileOptions
        Options as for `compile`; their DRAM timing is replaced by the DRAM timing in `conditions`.
    devices : int or None
        Number of simulators that run concurrently, each in a separate process if there are several; None: one per core.
    seed : int
        Seed of the inputs, which are different for each measurement.
    log : callable
        Function that is called with each progress message.
    workers : callable or None
        Function that creates the worker group for a measurement subject; None: workers on this machine.
    stream : bool
        True to measure back-to-back requests, as in serving, instead of single requests.

    Attributes
    ----------
    prepared : ModelCompiler
        Compiler of the model, which compiles it under any schedule.
    first : CompiledNetwork
        Network under the static compiler's schedule for these conditions.
    measurement_count : int
        Number of measurements requested so far.
    cached_count : int
        Number of measurements that were found in the cache.

    Raises
    ------
    InputError
        The model cannot be compiled for the machine, or none of its operators runs there.
    """

    def __init__(
        self,
        graph: Graph,
        conditions: HardwareProfile,
        options: CompileOptions,
        devices: int | None = 1,
        seed: int = 0,
        log: Callable[[str], None] = lambda _text: None,
        workers: Callable[[MeasureSubject], WorkerGroup] | None = None,
        *,
        stream: bool = False,
    ):
        self.conditions, self.log = conditions, log
        self.prepared = ModelCompiler(graph, conditions.config, replace(options, dram=conditions.dram))
        self.prepared.open_states()
        self.first = self.prepared.network()
        if not self.first.codes:
            raise InputError(f"{graph.name}: no operator runs on the accelerator: nothing to measure")
        self._cache: MeasurementCache | None = None
        self._refused: dict[str, str] = {}
        self.measurement_count = self.cached_count = 0
        self._limit: int | None = None
        subject = MeasureSubject(self.prepared, self.first, conditions, seed, stream)
        self._workers = _local(subject, devices) if workers is None else workers(subject)
        self._opened = False

    @property
    def cache(self) -> MeasurementCache | None:
        """Cache that is consulted before, and updated after, each measurement; initially None."""
        return self._cache

    @cache.setter
    def cache(self, cache: MeasurementCache | None) -> None:
        self._cache = cache
        if cache is not None:
            self._refused |= cache.refusals()

    @property
    def cost_model(self) -> CycleModel:
        """Cost model of the conditions: that of the cache or, without a cache, the one of the compiler or the user."""
        return find_model(self.conditions) if self._cache is None else self._cache.cost_model()

    @property
    def devices(self) -> int:
        """Number of simulators that run concurrently."""
        return self._workers.count

    def measure(self, schedules: Sequence[Schedule]) -> list[Result]:
        """Measure schedules, up to `devices` of them concurrently, and return the results in the same order.

        Raises
        ------
        WorkError
            A simulator crashes repeatedly, or a disk is full.
        """
        orders = [
            MeasureOrder(number, schedule, self._limit, dict(self._refused) if schedule.programs else {})
            for number, schedule in enumerate(schedules, self.measurement_count)
        ]
        self.measurement_count += len(schedules)
        found = [None if self.cache is None else self.cache.lookup(schedule) for schedule in schedules]
        missing = [index for index, result in enumerate(found) if result is None]
        self.cached_count += len(schedules) - len(missing)
        if missing and not self._opened:
            self.log("opening the simulated chip")
            self._workers.prepare()
            self._opened = True
        for number, result in self._workers.results([orders[index] for index in missing]):
            found[missing[number]] = result
            if isinstance(result, Rejected) and result.form:
                self._refused.setdefault(result.form, result.reason)
            if self.cache is not None:
                self.cache.put(schedules[missing[number]], result)
        return [result for result in found if result is not None]

    def baseline(self) -> Measurement:
        """Measure the static compiler's schedule, which counts as one measurement.

        Raises
        ------
        WorkError
            The measurement fails, or the outputs are wrong.
        """
        (result,) = self.measure([self.first.schedule])
        if not isinstance(result, Measurement) or not result.valid:
            why = (
                f"{result.stage}: {result.reason}" if isinstance(result, Rejected) else self._wrong_outputs()
            )
            raise WorkError(f"{self.first.name}: the static compiler's schedule cannot be measured: {why}")
        self._limit = _LIMIT_FACTOR * result.cycles
        return result

    def _wrong_outputs(self) -> str:
        """Return the reason why outputs differ from those of the golden model."""
        nodes = [node for _, node in self.prepared.graph.walk()]
        random = [f"{node.name!r} ({node.operator})" for node in nodes if node.operator in _RANDOM_OPERATORS]
        if random:
            return f"its outputs are random, because of {', '.join(random)}; remove these nodes or fix their values"
        return "its outputs are wrong"

    def close(self) -> None:
        """Close the simulators; this method may be called repeatedly."""
        self._workers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _local(subject: MeasureSubject, devices: int | None) -> WorkerGroup:
    """Return a worker group on this machine: the calling process, or a pool of processes."""
    number = len(os.sched_getaffinity(0)) if devices is None else devices
    if number < 1:
        raise InputError(f"devices must be at least 1, not {number!r}")
    return LocalWorker(subject) if number == 1 else WorkerPool(subject, number)
