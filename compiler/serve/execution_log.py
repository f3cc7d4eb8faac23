"""Records served executions in the tuning database."""

import time
from pathlib import Path

from compiler.options import DramTiming
from compiler.profile.counters import bound
from compiler.profile.hardware_profile import HardwareProfile
from compiler.runtime.compiled import CompiledNetwork
from compiler.serve.events import ServingEvents
from compiler.serve.sampling_profiler import ProfileSample, SamplingProfiler
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.entries import Execution
from compiler.tuning_db.session import key_of
from hw.errors import WorkError

#: Minimum requests between two entries.
_MIN_INTERVAL_REQUESTS = 64


class ExecutionLog:
    """Periodically stores the cost of a request: the sum of the latest samples of its layers.

    Parameters
    ----------
    url : str or Path
        Location of the tuning database.
    agent : SamplingProfiler
        Samples the counters of the layers.
    events : ServingEvents
        Receives an event if the database fails; serving continues.

    Raises
    ------
    InputError, WorkError
        The database cannot be opened.
    """

    def __init__(self, url: str | Path, agent: SamplingProfiler, events: ServingEvents):
        self.database: TuningDatabase | None = TuningDatabase(url)
        self.agent, self.events = agent, events
        self._last = 0

    def look(self, network: CompiledNetwork, version: int, completed: int, dram: DramTiming) -> None:
        """Store an execution if all layers have new samples; arguments as for `SamplingProfiler.look`."""
        if self.database is None or completed < self._last + _MIN_INTERVAL_REQUESTS:
            return
        samples = [
            each[-1]
            for each in self.agent.layers.values()
            if each[-1].version == version and each[-1].request - each[-1].requests >= self._last
        ]
        if len(samples) < len({info.tag for info in network.infos}):
            return
        self._last = completed
        try:
            self.database.add_execution(_execution(network, samples, dram))
        except WorkError as error:
            self.close()
            self.events.note("database lost", reason=str(error))

    def close(self) -> None:
        """Close the database; may be called twice."""
        if self.database is not None:
            self.database.close()
            self.database = None


def _execution(network: CompiledNetwork, samples: list[ProfileSample], dram: DramTiming) -> Execution:
    """Execution of a request as the sum of its layers' samples."""
    assert network.graph is not None
    config = network.config
    cycles = sum(sample.cycles for sample in samples)
    where = {cause: round(sum(sample.where[cause] for sample in samples)) for cause in samples[0].where}
    macs = sum(sample.utilization * sample.cycles for sample in samples) * config.n**2
    moved = sum(sample.dram_bytes for sample in samples)
    return Execution(
        key=key_of(network.graph, network.rounding, HardwareProfile(config, dram)),
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
    )
