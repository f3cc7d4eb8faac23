"""Identification of the DRAM timing of a live machine from the counters of LOAD.

The same network runs on a second simulator, whose DRAM timing is fitted until its counters match. The compared values
do not depend on the number of requests: LOAD cycles per beat, in total and for each layer, and mean latency.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import log

import numpy as np
from numpy.typing import NDArray

from compiler.options import DramTiming
from compiler.profile.counters import ByTag, growth
from compiler.runtime.compiled import CompiledNetwork
from compiler.serving.server import Server, serving_bytes
from cosim.device import Device
from cosim.driver import Driver
from hw.config import MlaConfig

Arrays = Mapping[str, NDArray]
_NAMES = ("load_busy", "load_beats", "load_requests", "load_latency")
#: Number of requests that are simulated for each evaluated timing.
_REQUESTS = 4
_MAX_ITERATIONS = 5
#: Relative steps of the finite differences (negative for the rate, which cannot exceed that of the bus), and step sizes
#: of the line search.
_STEPS, _LINE_SEARCH = np.diag([0.1, -0.1]), (1.0, 0.4, 0.15)
#: Residual at which the fit stops; maximum residual at which an earlier timing is accepted.
_CONVERGED, _MAX_KNOWN_RESIDUAL = 0.004, 0.03
#: Weight of the residuals of single layers.
_LAYER_WEIGHT = 0.3
_MAX_LATENCY_CYCLES = 20_000


def read_loads(driver: Driver, network: CompiledNetwork) -> ByTag:
    """Read the counters of LOAD for all layers of a network, by tag."""
    tags = sorted({tag for code in network.codes for tag in code.tags})
    return {tag: driver.counters.read_all(_NAMES, tag) for tag in tags}


def first_guess(config: MlaConfig, loads: ByTag, throttle: float = 0.0) -> DramTiming:
    """Return an initial estimate of the DRAM timing: the highest rate and the lowest mean latency of any layer.

    `throttle` is the share of the cycles in which the clock of the chip, which the counters count, was stalled.
    """
    rows = [row for row in loads.values() if row["load_requests"] and row["load_beats"]]
    if not rows:
        return DramTiming(throttle=throttle)
    rate = max(config.beat_bytes * row["load_beats"] / row["load_busy"] for row in rows)
    latency = min(row["load_latency"] / row["load_requests"] for row in rows)
    latency, rate = latency / (1 - throttle), rate * (1 - throttle)
    return DramTiming(max(1, round(latency)), min(rate, config.beat_bytes), throttle)


def estimate(
    network: CompiledNetwork,
    loads: ByTag,
    sample: Arrays,
    known: Sequence[DramTiming],
    open_device: Callable[[int], Device],
    throttle: float = 0.0,
) -> DramTiming:
    """Fit the DRAM timing to the growth of a network's LOAD counters.

    Parameters
    ----------
    network : CompiledNetwork
        Network that was running while the counters grew.
    loads : dict
        Growth of the counters that `read_loads` returns, over any number of requests.
    sample : dict
        Inputs by name for the simulated requests.
    known : sequence of DramTiming
        Earlier timings, most recent first. One of them is returned, with the new throttle, if its counts match closely;
        the first one only if the throttle has changed.
    open_device : callable
        Opens a simulator with a given DRAM size in bytes.
    throttle : float
        Share of the cycles in which the clock of the chip was stalled while the counters grew.
    """
    config, guess = network.config, first_guess(network.config, loads, throttle)
    if not any(row["load_requests"] for row in loads.values()):
        return guess
    rates = [each.bytes_per_cycle or config.beat_bytes for each in (known[0], guess)]
    with open_device(serving_bytes(network)) as device:
        server = Server(device, network)
        device.set_throttle(throttle)

        def residual(point: NDArray) -> NDArray:
            latency, rate = np.exp(point)
            device.set_dram_timing(max(1, round(latency)), round(float(rate), 3))
            return _difference(loads, _run(server, network, sample))

        earlier = known if throttle != known[0].throttle else known[1:]
        for dram in earlier:
            if (
                np.linalg.norm(residual(np.log([dram.latency, dram.bytes_per_cycle or config.beat_bytes])))
                < _MAX_KNOWN_RESIDUAL
            ):
                return replace(dram, throttle=throttle)
        # A change of only one of the two parameters is more likely than a change of both.
        starts = [((guess.latency, rates[0]), _STEPS[:1]), ((known[0].latency, rates[1]), _STEPS[1:])]
        found = [_descend(residual, np.log(start), steps, config) for start, steps in starts]
        best, least = min(found, key=lambda each: np.linalg.norm(each[1]))
        if np.linalg.norm(least) > _CONVERGED:
            best, least = _descend(residual, best, _STEPS, config)
    latency, rate = np.exp(best)
    return DramTiming(max(1, round(latency)), min(round(float(rate), 2), config.beat_bytes), throttle)


def _descend(
    residual: Callable[[NDArray], NDArray], start: NDArray, steps: NDArray, config: MlaConfig
) -> tuple[NDArray, NDArray]:
    """Minimize the residual by Gauss-Newton steps in given directions; return the best point and its residual."""
    width = config.beat_bytes
    low, high = np.log([1, width / 1000]), np.log([_MAX_LATENCY_CYCLES, 2 * width])
    best, least = start, residual(start)
    for _ in range(_MAX_ITERATIONS):
        if np.linalg.norm(least) < _CONVERGED:
            break
        slopes = np.stack([residual(best + step) - least for step in steps], axis=1)
        change = np.clip(-np.linalg.lstsq(slopes, least, rcond=1e-3)[0] @ steps, -1, 1)
        for scale in _LINE_SEARCH:
            point = np.clip(best + scale * change, low, high)
            here = residual(point)
            if np.linalg.norm(here) < np.linalg.norm(least):
                best, least = point, here
                break
        else:
            break
    return best, least


def _run(server: Server, network: CompiledNetwork, sample: Arrays) -> ByTag:
    """Simulate a stream and return the growth of the counters over requests in its middle, as in observed counts."""
    _send(server, sample, server.max_in_flight + 1)
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
    """Return log ratios of simulated to observed LOAD counts: in total, and for each layer weighted by its loads.

    Latencies are compared in total only, because memory requests that are still in flight when the next layer begins
    are attributed to that layer.
    """
    here, there = (
        {name: sum(row[name] for row in each.values()) for name in _NAMES} for each in (made, seen)
    )
    out = [
        _log_ratio(here, there, "load_busy", "load_beats"),
        _log_ratio(here, there, "load_latency", "load_requests"),
    ]
    for tag, row in seen.items():
        weight = _LAYER_WEIGHT * row["load_beats"] / max(there["load_beats"], 1)
        out.append(weight * _log_ratio(made[tag], row, "load_busy", "load_beats"))
    return np.array(out)


def _log_ratio(made: Mapping[str, int], seen: Mapping[str, int], above: str, below: str) -> float:
    ratios = [each[above] / max(each[below], 1) for each in (made, seen)]
    return log(ratios[0] / ratios[1]) if min(ratios) > 0 else 0.0
