"""What the memory behind a live machine is like, from the counters of LOAD.

The same network runs on another simulator, whose memory is set so that its counters come to the same. What is compared
does not depend on how many requests there were: cycles of LOAD for each beat, and mean latency, layer by layer.
"""

from collections.abc import Callable, Mapping, Sequence
from math import log

import numpy as np
from numpy.typing import NDArray

from compiler.options import DramTiming
from compiler.profile.counters import ByTag, growth
from compiler.runtime.compiled import CompiledNetwork
from compiler.server.server import Server, serving_bytes
from cosim.device import Device
from cosim.driver import Driver
from hw.config import MlaConfig

Arrays = Mapping[str, NDArray]
_NAMES = ("load_busy", "load_beats", "load_requests", "load_latency")
#: Requests that a guess is compared with.
_REQUESTS = 4
_ROUNDS = 5
#: Relative steps of the differences (no memory is faster than the bus: its rate is made less), parts of a change.
_STEPS, _PARTS = np.diag([0.1, -0.1]), (1.0, 0.4, 0.15)
#: How far counts may be apart: of a guess, of conditions that were there before.
_GOOD, _ALIKE = 0.004, 0.03
#: Weight of a layer by itself.
_LAYER = 0.3
_MOST_LATENCY = 20_000


def read_loads(driver: Driver, network: CompiledNetwork) -> ByTag:
    """Counters of LOAD of a network's layers."""
    tags = sorted({tag for code in network.codes for tag in code.tags})
    return {tag: driver.counters.read_all(_NAMES, tag) for tag in tags}


def first_guess(config: MlaConfig, loads: ByTag) -> DramTiming:
    """What no memory behind these counts falls below much: the best rate and the least latency of any layer."""
    rows = [row for row in loads.values() if row["load_requests"] and row["load_beats"]]
    if not rows:
        return DramTiming()
    rate = max(config.n * row["load_beats"] / row["load_busy"] for row in rows)
    latency = min(row["load_latency"] / row["load_requests"] for row in rows)
    return DramTiming(max(1, round(latency)), min(rate, config.n))


def estimate(
    network: CompiledNetwork,
    loads: ByTag,
    sample: Arrays,
    known: Sequence[DramTiming],
    open_device: Callable[[int], Device],
) -> DramTiming:
    """The memory under which a network's counters of LOAD grow as these did.

    Parameters
    ----------
    network : Network
        What ran.
    loads : dict
        Growth of `read_loads`, over any number of requests.
    sample : dict
        Inputs, for the simulator.
    known : sequence of Dram
        What it was like before, at last and earlier: if counts are hardly apart from those of one of these, it is that.
    open_device : callable
        Opens a simulator with so many bytes of DRAM.
    """
    config, guess = network.config, first_guess(network.config, loads)
    if not any(row["load_requests"] for row in loads.values()):
        return guess
    rates = [each.bytes_per_cycle or config.n for each in (known[0], guess)]
    with open_device(serving_bytes(network)) as device:
        server = Server(device, network)

        def away(point: NDArray) -> NDArray:
            latency, rate = np.exp(point)
            device.set_dram_timing(max(1, round(latency)), round(float(rate), 3))
            return _difference(loads, _run(server, network, sample))

        for dram in known[1:]:
            if np.linalg.norm(away(np.log([dram.latency, dram.bytes_per_cycle or config.n]))) < _ALIKE:
                return dram
        # That one of both has changed is likelier than that both have.
        starts = [((guess.latency, rates[0]), _STEPS[:1]), ((known[0].latency, rates[1]), _STEPS[1:])]
        found = [_descend(away, np.log(start), steps, config) for start, steps in starts]
        best, least = min(found, key=lambda each: np.linalg.norm(each[1]))
        if np.linalg.norm(least) > _GOOD:
            best, least = _descend(away, best, _STEPS, config)
    latency, rate = np.exp(best)
    return DramTiming(max(1, round(latency)), min(round(float(rate), 2), config.n))


def _descend(
    away: Callable[[NDArray], NDArray], start: NDArray, steps: NDArray, config: MlaConfig
) -> tuple[NDArray, NDArray]:
    """Gauss-Newton, along the directions of some steps: the point where the least is away, and how much."""
    low, high = np.log([1, config.n / 1000]), np.log([_MOST_LATENCY, 2 * config.n])
    best, least = start, away(start)
    for _ in range(_ROUNDS):
        if np.linalg.norm(least) < _GOOD:
            break
        slopes = np.stack([away(best + step) - least for step in steps], axis=1)
        change = np.clip(-np.linalg.lstsq(slopes, least, rcond=1e-3)[0] @ steps, -1, 1)
        for part in _PARTS:
            point = np.clip(best + part * change, low, high)
            here = away(point)
            if np.linalg.norm(here) < np.linalg.norm(least):
                best, least = point, here
                break
        else:
            break
    return best, least


def _run(server: Server, network: CompiledNetwork, sample: Arrays) -> ByTag:
    """Growth over some requests in the middle of a stream, as where the counts come from."""
    _send(server, sample, server.flights + 1)
    before = read_loads(server.driver, network)
    _send(server, sample, _REQUESTS)
    after = read_loads(server.driver, network)
    server.results(wait=True)
    return growth(before, after)


def _send(server: Server, sample: Arrays, count: int) -> None:
    for _ in range(count):
        server.submit(sample)
        server.results()


def _difference(seen: ByTag, made: ByTag) -> NDArray:
    """How far the counts of LOAD are apart, as logarithms: of all layers, and a little of each that loads much.

    Latencies are those of all layers: requests in flight while the next layer begins count for that.
    """
    here, there = (
        {name: sum(row[name] for row in each.values()) for name in _NAMES} for each in (made, seen)
    )
    out = [
        _apart(here, there, "load_busy", "load_beats"),
        _apart(here, there, "load_latency", "load_requests"),
    ]
    for tag, row in seen.items():
        weight = _LAYER * row["load_beats"] / max(there["load_beats"], 1)
        out.append(weight * _apart(made[tag], row, "load_busy", "load_beats"))
    return np.array(out)


def _apart(made: Mapping[str, int], seen: Mapping[str, int], above: str, below: str) -> float:
    ratios = [each[above] / max(each[below], 1) for each in (made, seen)]
    return log(ratios[0] / ratios[1]) if min(ratios) > 0 else 0.0
