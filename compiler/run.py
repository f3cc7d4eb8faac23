"""Samples through a compiled network, and the report of it."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.api import Network
from compiler.lower.layer import Layer
from compiler.profile.counts import COUNTED, ByTag, Split, bound, growth, read_counts, split
from compiler.profile.energy import energy_uj
from compiler.profile.floors import layer_floor, network_floor
from compiler.runtime import Session
from cosim.device import Device
from cosim.golden import GoldenDevice

Arrays = Mapping[str, NDArray]
#: Most samples that are sent back to back for the steady rate.
STEADY = 4


@dataclass(frozen=True)
class Run:
    """What came of some samples.

    Parameters
    ----------
    samples : int
        How many.
    outputs : dict
        By name, samples along the first axis.
    cycles : list of int or None
        Of each sample by itself, everything cold; None on a machine without a clock.
    steady : float or None
        Cycles a sample takes when they come one right behind the other.
    load_cycles : int or None
        What loading the programs took.
    split : Split or None
        Where the cycles went.
    counts : dict
        What the counters grew by, by tag.
    """

    samples: int
    outputs: dict[str, NDArray]
    cycles: list[int] | None
    steady: float | None
    load_cycles: int | None
    split: Split | None
    counts: ByTag


def run_samples(
    device: Device, network: Network, samples: Sequence[Arrays], say: Callable[[str], None]
) -> Run:
    """Run every sample by itself, then some back to back; `say` hears of progress."""
    clocked = not isinstance(device, GoldenDevice)
    together = min(len(samples), STEADY) if clocked else 1
    session = Session(device, network, together)
    tags = [tag for code in network.codes for tag in code.tags]
    before = read_counts(session.driver, len(set(tags)))
    cycles, results = [], []
    for number, sample in enumerate(samples, 1):
        result, taken = session.measure(sample)
        cycles.append(taken)
        results.append(result)
        say(f"sample {number} of {len(samples)}" + (f": {taken:,} cycles" if clocked else ""))
    counts = growth(before, read_counts(session.driver, len(set(tags))))
    outputs = {name: _together([result[name] for result in results]) for name in network.graph.outputs}
    if not clocked:
        return Run(len(samples), outputs, None, None, None, None, counts)
    parts = split(sum(cycles), counts, tags[-1]) if tags else None
    return Run(
        len(samples), outputs, cycles, session.steady(samples[:together]), session.load_cycles, parts, counts
    )


def _together(arrays: list[NDArray]) -> NDArray:
    """Samples along the first axis; a leading 1 of the model's own shape is that axis."""
    first = arrays[0]
    return np.concatenate(arrays) if first.ndim and len(first) == 1 else np.stack(arrays)


def document(network: Network, run: Run) -> dict[str, Any]:
    """The parts of `mla run`'s report that do not depend on how it was called."""
    config, graph = network.config, network.graph
    count = run.samples
    floor = network_floor(graph, network.layers)
    floors = [layer_floor(graph, layer) for layer in network.layers]
    totals = {name: sum(row[name] for row in run.counts.values()) for name in COUNTED}
    cycles = None if run.cycles is None else sum(run.cycles)
    return {
        "samples": count,
        "cycles": cycles,
        "cycles_per_sample": None if run.cycles is None else median(run.cycles),
        "steady_cycles_per_sample": run.steady,
        "load_cycles": run.load_cycles,
        "macs": floor.macs * count,
        "utilization": None if cycles is None else floor.macs * count / (cycles * config.n**2),
        "floor_cycles": floor.cycles(config) * count,
        "floor_layerwise_cycles": sum(f.cycles(config) for f in floors) * count,
        "dram_bytes_read": totals["load_bytes"],
        "dram_bytes_written": totals["store_bytes"],
        "energy_uj": None if cycles is None else energy_uj(config, totals),
        "where": None if run.split is None else run.split.where,
        "host_ops": [
            {"node": name, "op": graph.nodes[name].op, "reason": why} for name, why in network.host.items()
        ],
        "layers": _layers(network, run, count),
        "outputs": {
            name: {"shape": list(array.shape), "dtype": array.dtype.name, "sha256": digest(array)}
            for name, array in run.outputs.items()
        },
    }


def digest(array: NDArray) -> str:
    """SHA-256 of the bytes in C order, little endian."""
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return hashlib.sha256(little.tobytes()).hexdigest()


def _layers(network: Network, run: Run, count: int) -> list[dict[str, Any]]:
    """One entry for each tag: a layer, or several in a network with more layers than the machine has tags."""
    by_tag: dict[int, list[tuple[Layer, str]]] = {}
    for stage in network.stages:
        if stage.code and stage.lowered:
            for layer, tag, program in zip(
                stage.lowered.layers, stage.code.tags, stage.code.program_names, strict=True
            ):
                by_tag.setdefault(tag, []).append((layer, program))
    return [_entry(network, run, count, tag, its) for tag, its in by_tag.items()]


def _entry(network: Network, run: Run, count: int, tag: int, its: list[tuple[Layer, str]]) -> dict[str, Any]:
    config = network.config
    macs = sum(layer.macs for layer, _ in its) * count
    causes = None if run.split is None else run.split.by_tag[tag]
    cycles = None if causes is None else sum(causes.values())
    return {
        "names": [name for layer, _ in its for name in layer.nodes],
        "ops": [op for layer, _ in its for op in layer.ops],
        "tag": tag,
        "cycles": cycles,
        "macs": macs,
        "utilization": macs / (cycles * config.n**2) if cycles else None,
        "floor_cycles": sum(layer_floor(network.graph, layer).cycles(config) for layer, _ in its) * count,
        "bound": None if causes is None else bound(causes),
        "program": its[0][1],
        "where": causes,
    }
