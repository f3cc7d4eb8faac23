"""Execution profiles of layers, from the counters of a machine that serves."""

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from compiler.cost.energy import energy_uj
from compiler.cost.roofline import bus_rate
from compiler.options import DramTiming
from compiler.profile.counters import COUNTED, bound
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.stages import LayerInfo
from cosim.driver import Driver
from hw.config import MlaConfig
from hw.isa.counters import CAUSES, SP_BANKS_MAX

_CONFLICTS = ("acc_conflicts", *(f"sp_conflicts_bank{b}" for b in range(SP_BANKS_MAX)))
_NAMES = (*(f"cause_{cause}" for cause in CAUSES), *COUNTED, *_CONFLICTS, "matrix_stall_bank")
#: Requests between two looks at a layer, at least: where in a request a look falls hardly matters then.
_APART = 8
_HISTORY = 64
#: Share of its cycles in which memory banks refuse the array at which these are what binds a layer.
_BANK = 0.25
#: Causes that make up evidence, and the least share of one that is named.
_NAMED, _LEAST = 3, 0.05


@dataclass(frozen=True)
class ProfileSample:
    """A layer during some requests, by request.

    Parameters
    ----------
    request, requests : int
        The last one, and how many.
    version : int
        What carried them out.
    latency, bytes_per_cycle : float
        What the memory was taken to be like.
    cycles : float
        While the layer was what the array was at.
    where : dict
        The same by cause.
    utilization : float
        Multiply-accumulates of the model for each of the array's.
    load_bytes, dram_bytes, bandwidth : float
        Read, read and written, and that for each of the cycles.
    reuse : float or None
        Multiply-accumulates for each of these bytes; None if there are none.
    conflicts : float
        Accesses that memory banks refused.
    energy_uj : float
        By the table of compiler.cost.energy.
    floor : int
        Cycles that nothing beats which does this layer by itself.
    bound : str
        What holds it up most: "compute", "bus", "bank", "weight_shift", "fuse" or "dispatch".
    """

    request: int
    requests: int
    version: int
    latency: float
    bytes_per_cycle: float
    cycles: float
    where: dict[str, float]
    utilization: float
    load_bytes: float
    dram_bytes: float
    bandwidth: float
    reuse: float | None
    conflicts: float
    energy_uj: float
    floor: int
    bound: str

    @property
    def evidence(self) -> str:
        """Why that is what binds it."""
        total = sum(self.where.values()) or 1.0
        most = sorted(self.where.items(), key=lambda each: -each[1])[:_NAMED]
        shares = [f"{value / total:.0%} {cause}" for cause, value in most if value >= _LEAST * total]
        return (
            f"{', '.join(shares)}; {self.bandwidth:.1f} of {self.bytes_per_cycle:g} bytes a cycle, "
            f"{self.conflicts:.0f} refused accesses, array {self.utilization:.0%} used"
        )


class SamplingProfiler:
    """Reads counters now and then while requests are on their way, one layer at a time.

    Reading takes the sequencer and the units no cycle: registers are beside them.

    Parameters
    ----------
    driver : Driver
        The machine's driver.
    """

    def __init__(self, driver: Driver):
        self.driver = driver
        self.layers: dict[tuple[str, ...], deque[ProfileSample]] = {}
        self.infos: dict[tuple[str, ...], list[LayerInfo]] = {}
        self._last: dict[int, tuple[int, int, dict[str, int]]] = {}
        self._turn = 0

    def look(self, network: CompiledNetwork, version: int, completed: int, dram: DramTiming) -> None:
        """Look at the next layer, if enough requests have come out since the last time.

        Parameters
        ----------
        network, version : Network, int
            What carries out the requests now.
        completed : int
            Requests that have come out.
        dram : Dram
            What the memory is taken to be like.
        """
        by_tag = _by_tag(network)
        tag = list(by_tag)[self._turn % len(by_tag)]
        known = self._last.get(tag)
        if known is not None and known[0] == version and completed - known[1] < _APART:
            return
        self._turn += 1
        counts = self.driver.counters.read_all(_NAMES, tag)
        self._last[tag] = version, completed, counts
        if known is None or known[0] != version:
            return
        grown = {name: value - known[2][name] for name, value in counts.items()}
        infos = by_tag[tag]
        names = tuple(info.name for info in infos)
        self.infos[names] = infos
        seen = _look(network.config, infos, grown, (completed, completed - known[1], version), dram)
        self.layers.setdefault(names, deque(maxlen=_HISTORY)).append(seen)

    def bottlenecks(self, count: int = 3) -> list[tuple[str, ...]]:
        """Layers with most cycles above their floors, most first."""
        above = {names: looks[-1].cycles - looks[-1].floor for names, looks in self.layers.items()}
        return sorted(above, key=lambda names: -above[names])[:count]

    def document(self) -> dict[str, Any]:
        """Everything seen."""
        return {
            "bottlenecks": [
                {
                    "names": list(names),
                    "bound": (last := self.layers[names][-1]).bound,
                    "cycles_above_floor": last.cycles - last.floor,
                    "evidence": last.evidence,
                }
                for names in self.bottlenecks()
            ],
            "layers": [
                {
                    "names": [node for info in self.infos[names] for node in info.nodes],
                    "ops": [op for info in self.infos[names] for op in info.ops],
                    **asdict(looks[-1]),
                    "evidence": looks[-1].evidence,
                    "history": [asdict(each) for each in looks],
                }
                for names, looks in self.layers.items()
            ],
        }


def _by_tag(network: CompiledNetwork) -> dict[int, list[LayerInfo]]:
    out: dict[int, list[LayerInfo]] = {}
    for info in network.infos:
        out.setdefault(info.tag, []).append(info)
    return out


def _look(
    config: MlaConfig,
    infos: list[LayerInfo],
    grown: Mapping[str, int],
    when: tuple[int, int, int],
    dram: DramTiming,
) -> ProfileSample:
    request, requests, version = when
    each = {name: value / requests for name, value in grown.items()}
    where = {cause: each[f"cause_{cause}"] for cause in CAUSES}
    cycles = sum(where.values())
    macs = sum(info.floor.macs for info in infos)
    moved, conflicts = each["load_bytes"] + each["store_bytes"], sum(each[name] for name in _CONFLICTS)
    rate = float(dram.bytes_per_cycle or config.n)
    banked = each["matrix_stall_bank"] > _BANK * cycles > 0
    return ProfileSample(
        request,
        requests,
        version,
        dram.latency,
        rate,
        cycles,
        where,
        utilization=macs / (cycles * config.n**2) if cycles else 0.0,
        load_bytes=each["load_bytes"],
        dram_bytes=moved,
        bandwidth=moved / cycles if cycles else 0.0,
        reuse=macs / moved if moved else None,
        conflicts=conflicts,
        energy_uj=energy_uj(config, grown) / requests,
        floor=sum(info.floor.cycles(config, bus_rate(config, rate)) for info in infos),
        bound="bank" if banked else bound({cause: round(value) for cause, value in where.items()}),
    )
