"""Sampling profiler for the layers of a network that is being served."""

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from compiler.cost.energy import energy_uj
from compiler.cost.roofline import bus_rate
from compiler.options import DramTiming
from compiler.profile.counters import CONFLICTS, COUNTED, THROTTLED, bound
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.stages import LayerInfo
from cosim.driver import Driver
from hw.config import MlaConfig
from hw.isa.counters import CAUSES

_NAMES = (*(f"cause_{cause}" for cause in CAUSES), *COUNTED, *CONFLICTS, "matrix_stall_bank")
#: Minimum number of requests between two samples of a layer, so that their position within a request has little effect.
_MIN_INTERVAL_REQUESTS = 8
_MAX_SAMPLES = 64
#: Share of cycles stalled on memory banks above which a layer is bank-bound.
_MIN_BANK_STALLS = 0.25
#: Maximum number of causes in the evidence, and minimum share of each.
_MAX_CAUSES, _MIN_SHARE = 3, 0.05


@dataclass(frozen=True)
class ProfileSample:
    """Measurements of a layer: mean values per request over a window of requests.

    Parameters
    ----------
    request, requests : int
        Index of the last request, and number of requests in the window.
    version : int
        Number of the version that ran the requests.
    latency, bytes_per_cycle : float
        Assumed DRAM latency in cycles, and bandwidth in bytes per cycle.
    throttle : float
        Measured share of the cycles in which the clock of the chip was stalled.
    cycles : float
        Cycles attributed to the layer.
    where : dict
        Cycles by cause.
    utilization : float
        Multiply-accumulates of the model as a share of the array's capacity in these cycles.
    load_bytes, dram_bytes, bandwidth : float
        DRAM bytes read, DRAM bytes read and written, and DRAM bytes read and written per cycle.
    reuse : float or None
        Multiply-accumulates per DRAM byte; None if there is no DRAM traffic.
    conflicts : float
        Number of accesses refused because of bank conflicts.
    energy_uj : float
        Energy in microjoules, from the table of `compiler.cost.energy`.
    floor : int
        Lower bound on the cycles of the layer alone.
    bound : str
        Main bottleneck: "compute", "bus", "bank", "weight_shift", "fuse" or "dispatch".
    """

    request: int
    requests: int
    version: int
    latency: float
    bytes_per_cycle: float
    throttle: float
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
        """Text with the measurements from which `bound` was derived."""
        total = sum(self.where.values()) or 1.0
        most = sorted(self.where.items(), key=lambda each: -each[1])[:_MAX_CAUSES]
        shares = [f"{value / total:.0%} {cause}" for cause, value in most if value >= _MIN_SHARE * total]
        return (
            f"{', '.join(shares)}; {self.bandwidth:.1f} of {self.bytes_per_cycle:g} bytes per cycle, "
            f"{self.conflicts:.0f} refused accesses, array {self.utilization:.0%} used"
        )


class SamplingProfiler:
    """Samples the counters of one layer at a time while requests are in flight.

    Reading registers costs the sequencer and the units no cycles.

    Parameters
    ----------
    driver : Driver
        Driver of the serving machine.
    """

    def __init__(self, driver: Driver):
        self.driver = driver
        self.layers: dict[tuple[str, ...], deque[ProfileSample]] = {}
        self.infos: dict[tuple[str, ...], list[LayerInfo]] = {}
        self._last: dict[int, tuple[int, int, dict[str, int], tuple[int, int]]] = {}
        self._next = 0

    def sample(self, network: CompiledNetwork, version: int, completed: int, dram: DramTiming) -> None:
        """Sample the next layer, if the accelerator computes any, and if enough requests have completed since its last
        sample.

        Parameters
        ----------
        network, version : CompiledNetwork, int
            Served network and its version number.
        completed : int
            Number of completed requests.
        dram : DramTiming
            Assumed timing of the DRAM.
        """
        by_tag = _by_tag(network)
        if not by_tag:
            return
        tag = list(by_tag)[self._next % len(by_tag)]
        known = self._last.get(tag)
        if known is not None and known[0] == version and completed - known[1] < _MIN_INTERVAL_REQUESTS:
            return
        self._next += 1
        counts = self.driver.counters.read_all(_NAMES, tag)
        clock = self.driver.device.cycle, self.driver.device.stalled_cycles
        self._last[tag] = version, completed, counts, clock
        if known is None or known[0] != version:
            return
        grown = {name: value - known[2][name] for name, value in counts.items()}
        infos = by_tag[tag]
        names = tuple(info.name for info in infos)
        self.infos[names] = infos
        passed, stalled = (now - then for now, then in zip(clock, known[3], strict=True))
        dram = replace(dram, throttle=stalled / max(passed, 1))
        sample = _sample(network.config, infos, grown, (completed, completed - known[1], version), dram)
        self.layers.setdefault(names, deque(maxlen=_MAX_SAMPLES)).append(sample)

    def bottlenecks(self, count: int = 3) -> list[tuple[str, ...]]:
        """Return the layers with the most cycles above their lower bounds, in descending order."""
        above = {names: samples[-1].cycles - samples[-1].floor for names, samples in self.layers.items()}
        return sorted(above, key=lambda names: -above[names])[:count]

    def document(self) -> dict[str, Any]:
        """Return the profile as a JSON document."""
        return {
            "bottlenecks": [
                {
                    "layers": list(names),
                    "names": list(names),
                    "bound": (last := self.layers[names][-1]).bound,
                    "cycles_above_floor": last.cycles - last.floor,
                    "evidence": last.evidence,
                }
                for names in self.bottlenecks()
            ],
            "layers": [
                {
                    "layers": list(names),
                    "names": [node for info in self.infos[names] for node in info.nodes],
                    "ops": [op for info in self.infos[names] for op in info.ops],
                    **asdict(samples[-1]),
                    "evidence": samples[-1].evidence,
                    "history": [asdict(each) for each in samples],
                }
                for names, samples in self.layers.items()
            ],
        }


def _by_tag(network: CompiledNetwork) -> dict[int, list[LayerInfo]]:
    out: dict[int, list[LayerInfo]] = {}
    for info in network.infos:
        out.setdefault(info.tag, []).append(info)
    return out


def _sample(
    config: MlaConfig,
    infos: list[LayerInfo],
    grown: Mapping[str, int],
    when: tuple[int, int, int],
    dram: DramTiming,
) -> ProfileSample:
    request, requests, version = when
    each = {name: value / requests for name, value in grown.items()}
    where = {cause: each[f"cause_{cause}"] for cause in CAUSES}
    if dram.throttle:
        where[THROTTLED] = sum(where.values()) * (dram.stretch - 1)
    cycles = sum(where.values())
    macs = sum(info.floor.macs for info in infos)
    moved, conflicts = each["load_bytes"] + each["store_bytes"], sum(each[name] for name in CONFLICTS)
    rate = float(dram.bytes_per_cycle or config.beat_bytes)
    banked = each["matrix_stall_bank"] > _MIN_BANK_STALLS * cycles > 0
    return ProfileSample(
        request,
        requests,
        version,
        dram.latency,
        rate,
        round(dram.throttle, 4),
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
