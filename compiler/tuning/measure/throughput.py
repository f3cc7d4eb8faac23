"""Measurement of one network on one machine, for a single request or for back-to-back requests."""

from collections.abc import Mapping, Sequence
from itertools import cycle

from compiler.cost.energy import energy_uj
from compiler.profile.counters import CONFLICTS, COUNTED, ByTag, growth, read_counts, split
from compiler.profile.measurement import LayerCycles, Measurement, Rejected, Result
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import Session
from compiler.serving.request import RequestResult as Served
from compiler.serving.server import MAX_IN_FLIGHT, Server, serving_bytes
from compiler.tuning.measure.golden_inputs import GoldenIO
from compiler.validate.errors import ValidationError
from cosim.device import Device, DeviceTimeoutError
from cosim.status import TrapError
from hw.errors import InputError
from hw.isa.counters import CAUSES


class _TooSlowError(Exception):
    """A program has exceeded its cycle limit."""


def measure_network(
    device: Device, network: CompiledNetwork, golden: GoldenIO, rate: float, limit: int | None = None
) -> Result:
    """Load a network, run it on one input and return its measurement, or the reason for its rejection.

    Parameters
    ----------
    device : Device
        RTL device with enough DRAM for the network; it is reset first.
    network : CompiledNetwork
        Network to measure.
    golden : GoldenIO
        Inputs and expected outputs.
    rate : float
        DRAM bandwidth in bytes per cycle.
    limit : int or None
        Number of cycles after which the network is rejected; None: no limit.
    """
    device.restart()
    try:
        session = Session(device, network)
    except ValidationError as error:
        return Rejected("validate", str(error))
    if limit is not None:
        session.progress = lambda taken: _check(taken, limit)
    tags = sorted({tag for code in network.codes for tag in code.tags})
    before, stalled = read_counts(session.driver, max(tags) + 1), session.stalled_cycles
    try:
        outputs, cycles = session.measure(golden.inputs)
    except TrapError as error:
        return Rejected("trap", str(error))
    except _TooSlowError:
        return Rejected("time", f"not done after {limit:,} cycles")
    counts = growth(before, read_counts(session.driver, max(tags) + 1))
    parts = split(cycles, counts, max(tags), session.stalled_cycles - stalled)
    totals = {name: sum(row[name] for row in counts.values()) for name in COUNTED}
    return Measurement(
        cycles,
        layers_of(network, parts.by_tag, counts),
        energy_uj(network.config, totals),
        totals["load_bytes"] + totals["store_bytes"],
        golden.matches(outputs),
        network.work(session.runs).cycles(network.config, rate),
    )


def _check(taken: int, limit: int) -> None:
    if taken > limit:
        raise _TooSlowError


def layers_of(
    network: CompiledNetwork, by_tag: ByTag, counts: ByTag, requests: int = 1
) -> tuple[LayerCycles, ...]:
    """Return the costs for each counter tag, with the names of the layers that have the tag.

    Parameters
    ----------
    network : CompiledNetwork
        Network whose layers have the tags.
    by_tag : dict
        Cycles by cause, for each tag.
    counts : dict
        Growth of all counters over all requests, for each tag.
    requests : int
        Number of requests over which the counters grew.
    """
    names: dict[int, list[str]] = {}
    for info in network.infos:
        names.setdefault(info.tag, []).append(info.name)
    return tuple(
        LayerCycles(
            tuple(each),
            sum(by_tag[tag].values()),
            by_tag[tag],
            energy_uj(network.config, counts[tag]) / requests,
            sum(counts[tag][name] for name in CONFLICTS) // requests,
        )
        for tag, each in sorted(names.items())
    )


#: Number of requests that are timed, after the first one, whose caches are cold.
_TIMED = 2
#: Number of different inputs of a stream: no timed request has the inputs of the request before it.
STREAM_INPUTS = 1 + _TIMED


def stream_bytes(network: CompiledNetwork) -> int:
    """Return the number of DRAM bytes that `measure_stream` needs for a network."""
    return serving_bytes(network, MAX_IN_FLIGHT, versions=1)


def measure_stream(
    device: Device,
    network: CompiledNetwork,
    goldens: Sequence[GoldenIO],
    rate: float,
    limit: int | None = None,
) -> Result:
    """Serve requests back to back and return the average measurement of those after the first.

    The parameters are those of `measure_network`, except that `limit` applies to each request, and that `goldens`
    contains the inputs and outputs of successive requests, which are repeated in turn. With several inputs, a program
    that reuses the result of the request before gives wrong outputs.
    """
    device.restart()
    try:
        server = Server(device, network)
    except ValidationError as error:
        return Rejected("validate", str(error))
    except InputError as error:
        return Rejected("compile", str(error))
    if limit is not None:
        server.queue.timeout_cycles = limit
    try:
        return _measure_requests(server, network, goldens, rate, limit)
    except TrapError as error:
        return Rejected("trap", str(error))
    except DeviceTimeoutError:
        return Rejected("time", f"not done after {limit:,} cycles")


def _measure_requests(
    server: Server, network: CompiledNetwork, goldens: Sequence[GoldenIO], rate: float, limit: int | None
) -> Result:
    tags = 1 + max(tag for code in network.codes for tag in code.tags)
    timed: list[Served] = []
    exact, before = True, read_counts(server.driver, 0)
    for result in server.serve(golden.inputs for golden in cycle(goldens)):
        exact = exact and goldens[result.index % len(goldens)].matches(result.outputs)
        if result.index == 0:
            before = read_counts(server.driver, tags)
            continue
        if limit is not None and result.cycles > limit:
            return Rejected("time", f"{result.cycles:,} cycles a request")
        timed.append(result)
        if len(timed) == _TIMED:
            break
    counts = growth(before, read_counts(server.driver, tags))
    totals = {name: sum(row[name] for row in counts.values()) // _TIMED for name in COUNTED}
    cycles = sum(result.cycles for result in timed) // _TIMED
    causes = {tag: {cause: row[f"cause_{cause}"] for cause in CAUSES} for tag, row in counts.items()}
    return Measurement(
        cycles,
        layers_of(network, _apportion(cycles, causes), counts, _TIMED),
        energy_uj(network.config, totals),
        totals["load_bytes"] + totals["store_bytes"],
        exact,
        network.work(timed[-1].runs).cycles(network.config, rate),
    )


def _apportion(cycles: int, causes: Mapping[int, Mapping[str, int]]) -> dict[int, dict[str, int]]:
    """Distribute a number of cycles over tags and causes in proportion to their counts, without rounding loss."""
    total = max(sum(sum(row.values()) for row in causes.values()), 1)
    out: dict[int, dict[str, int]] = {}
    counted = given = 0
    for tag, row in causes.items():
        out[tag] = {}
        for cause, count in row.items():
            counted += count
            out[tag][cause] = cycles * counted // total - given
            given += out[tag][cause]
    return out
