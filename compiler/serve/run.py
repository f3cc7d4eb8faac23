"""A stream served from its first request to its last, written down line by line."""

import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from compiler.cache.store import Store
from compiler.network import Network
from compiler.pipeline import Prepared
from compiler.profile.agent import Agent
from compiler.schedule.dram import Dram
from compiler.serve.adapt import Adapter
from compiler.serve.diary import Diary
from compiler.serve.events import Document, Events
from compiler.serve.flight import Arrays, Result
from compiler.serve.interrupt import INTERRUPTED, Stop, interruptible
from compiler.serve.proposer import Beside, InStep
from compiler.serve.requests import Requests
from compiler.serve.room import VERSIONS, serving_bytes
from compiler.serve.searcher import Job
from compiler.serve.stream import Server
from cosim.device import Device
from cosim.golden import GoldenDevice
from hw.errors import InputError

SCHEMA_VERSION = 1
#: Requests at the end whose cycles the summary tells.
_LAST = 20


@dataclass(frozen=True)
class Change:
    """The simulated DRAM is changed at request `at`: its latency, and its bytes a cycle (None: as wide as the bus)."""

    at: int
    latency: int
    rate: float | None


@dataclass(frozen=True)
class Serving:
    """What is served, and how.

    Parameters
    ----------
    network : Network
        The first version.
    dram : Dram
        The simulated memory.
    job : Job or None
        What is to be improved meanwhile.
    flights : int
        Requests on their way at most.
    pace : int or None
        Candidates for each request; None: as they come.
    changes : tuple of Change
        Of the memory.
    device : str
        "rtl" or "golden".
    out, profile : Path or None
        Where lines go instead of standard output, and where profiles of layers do.
    proofs : Store or None
        Remembers what has been proved.
    """

    network: Network
    dram: Dram
    job: Job | None = None
    flights: int = 4
    pace: int | None = None
    changes: tuple[Change, ...] = ()
    device: str = "rtl"
    out: Path | None = None
    profile: Path | None = None
    proofs: Store | None = None


def serve(serving: Serving, requests: Requests) -> int:
    """Serve requests; returns the exit status.

    Raises
    ------
    InputError
        An input does not fit; what came before it has come out.
    """
    with ExitStack() as stack:
        stop = stack.enter_context(interruptible())
        stream = stack.enter_context(_lines(serving.out))
        device = stack.enter_context(_open(serving))
        return _Run(serving, device, stream, stack).go(requests, stop)


class _Run:
    """One stream; `serve` is its only use."""

    def __init__(self, serving: Serving, device: Device, stream: IO[str], stack: ExitStack):
        self.serving, self.device, self.stream = serving, device, stream
        self.server = Server(device, serving.network, serving.flights, serving.proofs)
        self.events = Events(self._write)
        db = serving.job.db if serving.job else None
        self.agent = Agent(self.server.driver) if (serving.profile or db) and self.server.clocked else None
        self.diary = Diary(db, self.agent, self.events) if db and self.agent else None
        if self.diary:
            stack.callback(self.diary.close)
        self.adapter = self._adapter(serving.job, stack) if serving.job else None
        self.cycles: list[int] = []

    def go(self, requests: Requests, stop: Stop) -> int:
        """All of it."""
        refused: InputError | None = None
        while not stop.asked:
            try:
                if not requests.ready():
                    self._results(wait=True)
                with stop.waiting():
                    inputs = next(requests.each, None)
                if inputs is None:
                    break
                self._one(inputs)
            except InputError as error:
                refused = error
                break
            except KeyboardInterrupt:
                break
        self._results(wait=True)
        self._end()
        if refused is not None:
            raise refused
        return INTERRUPTED if stop.asked else 0

    def _one(self, inputs: Arrays) -> None:
        server, number = self.server, self.server.submitted
        for change in self.serving.changes:
            if change.at == number:
                self.device.set_dram_timing(change.latency, change.rate)
        server.submit(inputs)
        dram = self.serving.dram
        if self.adapter:
            self.adapter.tick()
            dram = self.adapter.dram
        now = server.current.network, server.current.number, server.completed, dram
        if self.agent:
            self.agent.look(*now)
        if self.diary:
            self.diary.look(*now)
        self._results(wait=False)

    def _results(self, *, wait: bool) -> None:
        for result in self.server.results(wait=wait):
            self.cycles.append(result.cycles)
            self._write(_document(result, clocked=self.server.clocked))

    def _write(self, document: Document) -> None:
        print(json.dumps({"schema_version": SCHEMA_VERSION, **document}), file=self.stream, flush=True)

    def _adapter(self, job: Job, stack: ExitStack) -> Adapter:
        @cache
        def prepared(dram: Dram) -> Prepared:
            return Prepared(job.graph, job.config, replace(job.options, dram=dram))

        serving = self.serving
        proposer = stack.enter_context(Beside(job) if serving.pace is None else InStep(job))
        return Adapter(
            self.server, prepared, serving.network, proposer, self.events, serving.dram, serving.pace
        )

    def _end(self) -> None:
        """The profile, and a line for people."""
        if self.serving.profile:
            document = self.agent.document() if self.agent else {"bottlenecks": [], "layers": []}
            text = json.dumps({"schema_version": SCHEMA_VERSION, **document}, indent=2)
            self.serving.profile.write_text(text + "\n")
        parts = [f"{len(self.cycles)} requests"]
        if self.cycles and self.server.clocked:
            first, last = self.cycles[0], median(self.cycles[-_LAST:])
            parts.append(f"{first:,} cycles for the first, {last:,.0f} for the last ones")
        if self.adapter:
            kinds = (("reload", "reloads"), ("rollback", "rolled back"), ("rejected", "candidates rejected"))
            parts += [f"{len(self.events.of(event))} {what}" for event, what in kinds]
        print(f"mla serve: {'; '.join(parts)}", file=sys.stderr)


def _document(result: Result, *, clocked: bool) -> dict[str, Any]:
    """A line about a request."""
    return {
        "index": result.index,
        "cycles": result.cycles if clocked else None,
        "delay_cycles": result.delay if clocked else None,
        "version": result.version.number,
        "programs": list(result.version.digests),
        "outputs": {name: _sha256(array) for name, array in result.outputs.items()},
    }


def _sha256(array: NDArray) -> str:
    """Of the bytes in C order, little endian."""
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return hashlib.sha256(little.tobytes()).hexdigest()


def _open(serving: Serving) -> Device:
    network = serving.network
    versions = 2 * VERSIONS if serving.job else 1
    size = serving_bytes(network, serving.flights, versions)
    if serving.device == "golden":
        return GoldenDevice(network.config, size)
    from cosim.rtl.rtl_device import RtlDevice

    print("mla serve: opening the machine (the first time its simulator is built: minutes)", file=sys.stderr)
    rate = serving.dram.bytes_per_cycle or network.config.n
    return RtlDevice(network.config, size, latency=serving.dram.latency, bytes_per_cycle=rate)


@contextmanager
def _lines(path: Path | None) -> Iterator[IO[str]]:
    """Where lines go."""
    if path is None:
        yield sys.stdout
        return
    with path.open("w") as file:
        yield file
