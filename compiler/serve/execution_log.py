"""How a network ran while it was served, in the database."""

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

#: Requests from one entry to the next, at least.
_APART = 64


class ExecutionLog:
    """Writes down, now and then, what a request takes: the sum of its layers as they were last looked at.

    Parameters
    ----------
    url : str or Path
        The database.
    agent : Agent
        Looks at the layers.
    events : Events
        Told if the database is lost: serving goes on.

    Raises
    ------
    InputError, WorkError
        It cannot be opened.
    """

    def __init__(self, url: str | Path, agent: SamplingProfiler, events: ServingEvents):
        self.database: TuningDatabase | None = TuningDatabase(url)
        self.agent, self.events = agent, events
        self._last = 0

    def look(self, network: CompiledNetwork, version: int, completed: int, dram: DramTiming) -> None:
        """Write, if there is something new; arguments as those of `Agent.look`."""
        if self.database is None or completed < self._last + _APART:
            return
        looks = [
            each[-1]
            for each in self.agent.layers.values()
            if each[-1].version == version and each[-1].request - each[-1].requests >= self._last
        ]
        if len(looks) < len({info.tag for info in network.infos}):
            return
        self._last = completed
        try:
            self.database.add_execution(_execution(network, looks, dram))
        except WorkError as error:
            self.close()
            self.events.note("database lost", reason=str(error))

    def close(self) -> None:
        """Leave the database; may be called twice."""
        if self.database is not None:
            self.database.close()
            self.database = None


def _execution(network: CompiledNetwork, looks: list[ProfileSample], dram: DramTiming) -> Execution:
    """A request as the sum of its layers."""
    assert network.graph is not None
    config = network.config
    cycles = sum(look.cycles for look in looks)
    where = {cause: round(sum(look.where[cause] for look in looks)) for cause in looks[0].where}
    macs = sum(look.utilization * look.cycles for look in looks) * config.n**2
    moved = sum(look.dram_bytes for look in looks)
    return Execution(
        key=key_of(network.graph, network.rounding, HardwareProfile(config, dram)),
        when=time.time(),
        cycles=round(cycles),
        utilization=macs / (cycles * config.n**2) if cycles else 0.0,
        where=where,
        load_bytes=round(sum(look.load_bytes for look in looks)),
        store_bytes=round(sum(look.dram_bytes - look.load_bytes for look in looks)),
        conflicts=round(sum(look.conflicts for look in looks)),
        reuse=macs / moved if moved else 0.0,
        energy_uj=sum(look.energy_uj for look in looks),
        bound=bound(where),
    )
