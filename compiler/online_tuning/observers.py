"""Serving events as JSON documents, observers that record them, and statistics of each served version."""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from compiler.online_tuning.sampling_profiler import ProfileSample, SamplingProfiler
from compiler.options import DramTiming
from compiler.pipeline import ModelCompiler
from compiler.profile.counters import ByTag, bound, growth, with_stalled
from compiler.profile.measurement import HardwareProfile
from compiler.runtime.compiled import CompiledNetwork
from compiler.schedule.schedule import Schedule
from compiler.serving.request import RequestResult, RequestTime
from compiler.serving.server import Server
from compiler.serving.versions import Version
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.entries import EntryKey, Execution, measured_key_of
from compiler.tuning_db.session import DatabaseSession, SampleMaker, executed, layer_key_of
from compiler.util.progress import ProgressTask, log
from compiler.util.tables import counted
from hw.errors import WorkError
from hw.isa.counters import CAUSES

Document = dict[str, Any]


class ServingEvents:
    """Records serving decisions.

    Parameters
    ----------
    sink : callable
        Called with each decision.

    Attributes
    ----------
    seen : list of dict
        All decisions in order.
    """

    def __init__(self, sink: Callable[[Document], None] = lambda _document: None):
        self.sink, self.seen = sink, list[Document]()

    def note(self, event: str, **fields: Any) -> None:
        """Record a decision."""
        self.seen.append({"event": event, **fields})
        self.sink(self.seen[-1])

    def events_named(self, event: str) -> list[Document]:
        """Return all decisions with the given event name, in order."""
        return [each for each in self.seen if each["event"] == event]


class LlmUsage:
    """Logs language-model usage and cost when the budget is exhausted and at shutdown.

    Parameters
    ----------
    events : ServingEvents
        Receives `endpoint` events with the usage.
    """

    def __init__(self, events: ServingEvents):
        self.events = events
        self._last: Document | None = None

    def update(self, document: Document | None, request: int) -> None:
        """Store the usage reported by a finding; `document` is None if there is no language model."""
        before, self._last = self._last, document or self._last
        if document and document["ended"] and not (before and before["ended"]):
            self.events.note("endpoint", request=request, reason=f"no more queries: {document['ended']}")

    def end(self, request: int) -> None:
        """Report the final usage."""
        if self._last:
            asked = self._last
            counts = counted(asked["requests"], "request"), counted(asked["candidates"], "candidate")
            reason = f"{', '.join(counts)}, {asked['better']} improved"
            self.events.note("endpoint", request=request, reason=reason, asked=asked)


#: Name of the decision that ends the search because the served version meets the targets.
TARGET_MET = "target met"
_WHY = {"first": "heuristic schedule", "known": "best known for this DRAM timing"}


def in_words(event: Document) -> str:
    """Return a decision as one line of text."""
    kind, at = event["event"], f"at {event.get('request')}"
    if kind == "reload":
        why = _WHY.get(event["why"]) or f"trial {event['trial']} of {event['proposer']}"
        return f"reload {at}: {why}, measured {event['measured_cycles']:,} cycles"
    if kind == "rollback":
        return f"rolled back {at}: {event['reason']}"
    if kind == "kept":
        return f"kept {at}: {event['cycles']:,.0f} cycles"
    if kind == TARGET_MET:
        return f"target met {at}: {event['cycles']:,.0f} cycles, {event['energy_uj']:.1f} uJ"
    if kind == "drift":
        return f"drift {at}: from {event['usual_cycles']:,.0f} to {event['cycles']:,.0f} cycles"
    if kind == "conditions":
        throttle = f", throttle {event['throttle']:g}" if event.get("throttle") else ""
        rate = f"{event['bytes_per_cycle']:g} bytes per cycle"
        return f"DRAM timing {at}: latency {event['latency']}, {rate}{throttle}"
    if kind == "retrained":
        errors = f"error of held-out layers {event['error_before']:.1%} -> {event['error']:.1%}"
        return f"cost model retrained {at} on {event['measurements']:,} measurements of layers: {errors}"
    if kind == "policy":
        costs = f"expected cost of held-out layers {event['cost_before']:.4f} -> {event['cost']:.4f}"
        decision = "replaced" if event["accepted"] else "kept, the challenger was refused"
        return f"policy of the language model {decision} {at}: {costs}"
    if kind == "left out":
        return f"generator {event['generator']} left out {at}: {event['reason']}"
    if kind == "rejected":
        return f"{event['kind']} {event['trial']}: {event['reason']}"
    return f"{kind} {at}: {event['reason']}" if "request" in event else f"{kind}: {event['reason']}"


SCHEMA_VERSION = 1


def _sha256(array: NDArray) -> str:
    """Return the SHA-256 of an array's bytes in C order, little endian."""
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return hashlib.sha256(little.tobytes()).hexdigest()


#: Number of final requests whose median cycles the summary reports.
_LAST_REQUESTS = 20
#: Decisions counted in the summary, with their labels.
_COUNTED = {"reload": "reload", "rollback": "rollback", "rejected": "rejected candidate"}


#: Decisions that are logged on a separate line.
_LOGGED = (
    "reload",
    "rollback",
    "kept",
    TARGET_MET,
    "drift",
    "conditions",
    "left out",
    "search lost",
    "retrained",
    "policy",
    "no cascade",
    "batch size",
    "reuse",
)

_NAMES = tuple(f"cause_{cause}" for cause in CAUSES)
#: Minimum number of requests between two samples of the counters.
_MIN_INTERVAL_REQUESTS = 8


@dataclass(frozen=True)
class VersionWindow:
    """Measurement over consecutive requests of one version that were not disturbed by program loads.

    Parameters
    ----------
    version : int
        Number of the version.
    requests : int
        Number of requests in the window.
    where : dict
        Total cycles by cause, including those between requests.
    layers : dict
        Total cycles of each layer, or group of layers that share a tag, by node names.
    """

    version: int
    requests: int
    where: dict[str, int]
    layers: dict[tuple[str, ...], int]

    @property
    def cycles(self) -> float:
        """Mean cycles per request."""
        return sum(self.where.values()) / self.requests

    def document(self) -> dict[str, object]:
        """Return the window as a JSON document."""
        layers = [
            {"names": list(names), "cycles": round(cycles / self.requests, 1)}
            for names, cycles in self.layers.items()
        ]
        return {
            "version": self.version,
            "requests": self.requests,
            "cycles": round(self.cycles, 1),
            "where": {cause: round(cycles / self.requests, 1) for cause, cycles in self.where.items()},
            "layers": layers,
        }


class ServingObserver:
    """Interface for observers of a serving run; the methods do nothing by default."""

    def result(self, result: RequestResult) -> None:
        """Process a completed request."""

    def event(self, document: Document) -> None:
        """Process a decision."""

    def window(self, window: VersionWindow) -> None:
        """Process a completed measurement window."""


class JsonLines(ServingObserver):
    """Writes one JSON line per request and decision.

    Parameters
    ----------
    stream : file
        Text stream to which the lines are written.
    clocked : bool
        True if the machine counts cycles.
    """

    def __init__(self, stream: IO[str], *, clocked: bool):
        self.stream, self.clocked = stream, clocked

    def result(self, result: RequestResult) -> None:
        """Write one line for a request."""
        self.event(
            {
                "index": result.index,
                **({"stream": result.stream} if result.version.network.states else {}),
                "cycles": result.cycles if self.clocked else None,
                "delay_cycles": result.delay if self.clocked else None,
                "together": result.batch_size,
                **({"variant": result.variant, "why": result.why} if result.variant else {}),
                **({"time": asdict(result.time)} if result.time else {}),
                **({"power": asdict(result.power)} if result.power else {}),
                "version": result.version.number,
                "programs": list(result.version.digests),
                "outputs": {name: _sha256(array) for name, array in result.outputs.items()},
            }
        )

    def event(self, document: Document) -> None:
        """Write one line for a decision."""
        print(json.dumps({"schema_version": SCHEMA_VERSION, **document}), file=self.stream, flush=True)


class ServingHistory(ServingObserver):
    """Records cycles, versions and decisions, but neither inputs nor outputs.

    Parameters
    ----------
    clocked : bool
        True if the machine counts cycles.

    Attributes
    ----------
    cycles, versions : list of int
        Cycles and version of each request; cycles are 0 on a machine without a clock.
    events : list of dict
        All decisions in order.
    windows : list of VersionWindow
        Cycle breakdown of each measurement window.
    times : list of RequestTime
        Simulated times of the requests, if they arrive at given times or power is managed.
    """

    def __init__(self, *, clocked: bool):
        self.clocked = clocked
        self.cycles, self.versions = list[int](), list[int]()
        self.events, self.windows = list[Document](), list[VersionWindow]()
        self.times = list[RequestTime]()

    def result(self, result: RequestResult) -> None:
        """Record a request."""
        if result.time:
            self.times.append(result.time)
        self.cycles.append(result.cycles // result.batch_size)
        self.versions.append(result.version.number)

    def event(self, document: Document) -> None:
        """Record a decision."""
        self.events.append(document)

    def window(self, window: VersionWindow) -> None:
        """Record a measurement window."""
        self.windows.append(window)

    def count(self, event: str) -> int:
        """Return the number of decisions with the given event name."""
        return sum(each["event"] == event for each in self.events)

    @property
    def first(self) -> int | None:
        """Cycles of the first request; None if the machine has no clock."""
        return self.cycles[0] if self.cycles and self.clocked else None

    @property
    def last(self) -> float | None:
        """Median cycles of the final requests; None if the machine has no clock."""
        return median(self.cycles[-_LAST_REQUESTS:]) if self.cycles and self.clocked else None

    @property
    def target_met(self) -> bool:
        """True if the served version met the targets under the last known DRAM timing, which ended the search."""
        found = [each["event"] for each in self.events if each["event"] in (TARGET_MET, "conditions")]
        return found[-1:] == [TARGET_MET]

    def summary(self, *, adapted: bool) -> str:
        """Return the summary as one line of text."""
        parts = [counted(len(self.cycles), "request")]
        if self.last is not None:
            # The first request, which also fetches the first programs, is not comparable with later ones.
            early = median(self.cycles[1 : 1 + _LAST_REQUESTS] or self.cycles)
            parts.append(f"{early:,.0f} cycles for the first ones, {self.last:,.0f} for the last ones")
        if latency := self.latency():
            parts.append(f"latency {latency['p50_ms']:.4g} ms, {latency['p99_ms']:.4g} ms for 99%")
            if latency["requests_per_second"]:
                parts.append(f"{latency['requests_per_second']:,.0f} requests per second")
        parts += [each["reason"] for each in self.events if "audit" in each]
        if adapted:
            parts += [counted(self.count(event), noun) for event, noun in _COUNTED.items()]
        return "; ".join(parts)

    def latency(self) -> dict[str, float | None] | None:
        """Return latencies and throughput in simulated time; None if requests have no times.

        The throughput is None if no time passes, since all stages run on the host.
        """
        if not self.times:
            return None
        latencies = [time.latency_ms for time in self.times]
        p50, p99 = np.percentile(latencies, (50, 99), method="inverted_cdf")
        seconds = (self.times[-1].finish_ms - self.times[0].arrival_ms) / 1e3
        return {
            "mean_ms": float(np.mean(latencies)),
            "p50_ms": float(p50),
            "p99_ms": float(p99),
            "max_ms": max(latencies),
            "requests_per_second": len(latencies) / seconds if seconds else None,
        }

    def document(self) -> dict[str, Any]:
        """Return the summary as a JSON document."""
        asked, audits = ([each[name] for each in self.events if name in each] for name in ("asked", "audit"))
        return {
            "requests": len(self.cycles),
            "first_cycles": self.first,
            "last_cycles": self.last,
            "reloads": self.count("reload"),
            "rollbacks": self.count("rollback"),
            "rejected": self.count("rejected"),
            "cycles": self.cycles if self.clocked else None,
            "versions": self.versions,
            "windows": [window.document() for window in self.windows],
            "events": self.events,
            "endpoint": asked[-1] if asked else None,
            "audit": audits[-1] if audits else None,
            "latency": self.latency(),
        }


class ServingProgress(ServingObserver):
    """Shows the progress of serving, and logs important decisions.

    Parameters
    ----------
    task : ProgressTask
        Progress display that counts the served requests.
    clocked : bool
        True if the machine counts cycles.
    note : callable
        Returns additional text for the display; may be empty.
    """

    def __init__(self, task: ProgressTask, *, clocked: bool, note: Callable[[], str] = lambda: ""):
        self.task, self.clocked, self.note = task, clocked, note
        self._reloads = self._rollbacks = 0
        self._candidate = ""

    def result(self, result: RequestResult) -> None:
        """Count one more request."""
        parts = [self.note()]
        if self.clocked:
            parts.append(f"{result.cycles // result.batch_size:,} cycles")
        if self._candidate:
            parts += [counted(self._reloads, "reload"), counted(self._rollbacks, "rollback"), self._candidate]
        self.task.advance(1, ", ".join(part for part in parts if part))

    def event(self, document: Document) -> None:
        """Count reloads and rollbacks, and log the kinds of decision listed in `_LOGGED`."""
        kind = document["event"]
        self._reloads += kind == "reload"
        self._rollbacks += kind == "rollback"
        if kind in ("reload", "rejected"):
            self._candidate = in_words(document)
        if kind in _LOGGED:
            log(in_words(document))


class VersionStats:
    """Samples the cycle counters of each version, without slowing the machine down.

    Parameters
    ----------
    server : Server
        Server on a machine with a clock.
    on_window : callable
        Called with each window when it ends.
    """

    def __init__(self, server: Server, on_window: Callable[[VersionWindow], None]):
        self.server, self.on_window = server, on_window
        self._version: Version | None = None
        #: First and last sample: completed requests, counters, stalled cycles.
        self._samples: list[tuple[int, ByTag, int]] = []

    def sample(self, result: RequestResult) -> None:
        """Sample the counters; `result` is the last completed request."""
        if result.version is not self._version:
            self.close()
        if result.disturbed:
            return
        completed, self._version = self.server.completed, result.version
        if not self._samples or completed - self._samples[-1][0] >= _MIN_INTERVAL_REQUESTS:
            stalled = self.server.device.stalled_cycles
            self._samples[1:] = [(completed, self._read(result.version), stalled)]

    def close(self) -> None:
        """End the current window, if there is one."""
        version, samples = self._version, self._samples
        self._version, self._samples = None, []
        if version is None or len(samples) < 2:
            return
        (first, before, stalled_before), (last, after, stalled_after) = samples
        grown = growth(before, after)
        if stalled := stalled_after - stalled_before:
            grown = with_stalled(grown, stalled)
        where = {
            name.removeprefix("cause_"): sum(row[name] for row in grown.values())
            for name in dict.fromkeys(name for row in grown.values() for name in row)
        }
        layers: dict[tuple[str, ...], int] = {}
        for tag, row in grown.items():
            nodes = tuple(name for info in version.network.infos if info.tag == tag for name in info.nodes)
            layers[nodes] = sum(row.values()) - row["cause_idle"]
        self.on_window(VersionWindow(version.number, last - first, where, layers))

    def _read(self, version: Version) -> ByTag:
        tags = sorted({tag for code in version.network.codes for tag in code.tags})
        return {tag: self.server.driver.counters.read_all(_NAMES, tag) for tag in tags}


#: Minimum number of requests between two entries.
_LOG_INTERVAL_REQUESTS = 64


class ExecutionLog:
    """Periodically stores the cost of a request in the database: of each layer, and the sum over all layers.

    Parameters
    ----------
    url : str or Path
        Location of the tuning database.
    profiler : SamplingProfiler
        Profiler that provides the samples of the layers.
    events : ServingEvents
        Receives an event if the database fails; serving continues.

    Raises
    ------
    InputError, WorkError
        The database cannot be opened.
    """

    def __init__(self, url: str | Path, profiler: SamplingProfiler, events: ServingEvents):
        self.database: TuningDatabase | None = TuningDatabase(url)
        self.profiler, self.events = profiler, events
        self._last = 0
        self._served: list[tuple[DramTiming, Schedule, dict[tuple[str, ...], float]]] = []

    def record(self, network: CompiledNetwork, version: int, completed: int, dram: DramTiming) -> None:
        """Store an execution if all layers have new samples; the arguments are those of `SamplingProfiler.sample`."""
        if self.database is None or completed < self._last + _LOG_INTERVAL_REQUESTS:
            return
        samples = {
            names: each[-1]
            for names, each in self.profiler.layers.items()
            if each[-1].version == version and each[-1].request - each[-1].requests >= self._last
        }
        if len(samples) < len({info.tag for info in network.infos}):
            return
        self._last = completed
        self._served.append((dram, network.schedule, {names: each.cycles for names, each in samples.items()}))
        try:
            self.database.add_execution(*self._executions(network, samples, dram))
        except WorkError as error:
            self.close()
            self.events.note("database lost", reason=str(error))

    def retrain(
        self, prepared: ModelCompiler, goal: str, seed: int, request: int, *, policy: bool = False
    ) -> None:
        """Retrain the cost model on the trials of the search and on the served layers, and report a better version.

        Parameters
        ----------
        prepared : ModelCompiler
            Compiler of the served network, for the last DRAM timing.
        goal, seed : str, int
            Goal and seed of the search.
        request : int
            Number of requests, for the report.
        policy : bool
            True to train the language model's policy, too, and to report whether it was accepted.
        """
        if self.database is None:
            return
        conditions = HardwareProfile(prepared.config, prepared.options.dram)
        maker = SampleMaker(prepared, conditions)
        served = [
            sample
            for dram, schedule, cycles in self._served
            if dram == conditions.dram
            for sample in maker.samples(schedule, cycles)
        ]
        from compiler.llm.generate.policy import retrain_policy

        session = DatabaseSession(self.database, prepared, conditions, goal, seed=seed)
        try:
            version = session.retrain(served)
            trained = retrain_policy(session, seed) if policy else None
        except WorkError as error:
            self.close()
            self.events.note("database lost", reason=str(error))
            return
        if version is not None:
            self.events.note(
                "retrained",
                request=request,
                measurements=len(version.samples),
                served=len(served),
                error_before=round(version.before, 5),
                error=round(version.after, 5),
            )
        if trained is not None:
            self.events.note(
                "policy",
                request=request,
                layers=trained.trained,
                held_out_layers=trained.held_out,
                cost_before=round(trained.before, 5),
                cost=round(trained.after, 5),
                accepted=trained.accepted,
            )

    def _executions(
        self, network: CompiledNetwork, samples: dict[tuple[str, ...], ProfileSample], dram: DramTiming
    ) -> list[Execution]:
        """Return the executions of the network, and of layers as `executions_of` does."""
        assert network.graph is not None
        conditions = HardwareProfile(network.config, dram)
        key = measured_key_of(network.graph, network.rounding, conditions)
        found = [_execution(network, key, list(samples.values()))]
        for names, sample in samples.items():
            for subgraph, macro in executed(network.sources, self.profiler.infos[names]):
                own = layer_key_of(subgraph, network.rounding, conditions)
                found.append(replace(_execution(network, own, [sample]), macro=macro))
        return found

    def close(self) -> None:
        """Close the database; further calls have no effect."""
        if self.database is not None:
            self.database.close()
            self.database = None


def _execution(network: CompiledNetwork, key: EntryKey, samples: list[ProfileSample]) -> Execution:
    """Return the execution of some layers in a request as the sum of the layers' samples."""
    config = network.config
    cycles = sum(sample.cycles for sample in samples)
    where = {cause: round(sum(sample.where[cause] for sample in samples)) for cause in samples[0].where}
    macs = sum(sample.utilization * sample.cycles for sample in samples) * config.n**2
    moved = sum(sample.dram_bytes for sample in samples)
    return Execution(
        key=key,
        when=time.time(),
        cycles=round(cycles),
        utilization=macs / (cycles * config.n**2) if cycles else 0.0,
        where=where,
        load_bytes=round(sum(sample.load_bytes for sample in samples)),
        store_bytes=round(sum(sample.dram_bytes - sample.load_bytes for sample in samples)),
        conflicts=round(sum(sample.conflicts for sample in samples)),
        reuse=macs / moved if moved else 0.0,
        energy_uj=sum(sample.energy_uj for sample in samples),
        bound=bound(where),
        network=network.name,
    )
