"""One network on one machine, measured."""

from compiler.cost.energy import energy_uj
from compiler.profile.counters import COUNTED, ByTag, growth, read_counts, split
from compiler.profile.measurement import LayerCycles, Measurement, Rejected, Result
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import Session
from compiler.tuning.measure.golden_io import GoldenIO
from compiler.validate.errors import ValidationError
from cosim.device import Device
from cosim.status import TrapError


class _TooSlowError(Exception):
    """A program has taken more cycles than it may."""


def measure_network(
    device: Device, network: CompiledNetwork, question: GoldenIO, rate: float, limit: int | None = None
) -> Result:
    """Load a network, ask it one question and count its cycles.

    Parameters
    ----------
    device : Device
        The RTL, with room for the network; it is reset first.
    network : Network
        What to measure.
    question : Question
        Inputs, and the outputs there must be.
    rate : float
        Bytes that the memory moves in a cycle.
    limit : int or None
        A network that has not ended after so many cycles is given up.
    """
    device.restart()
    try:
        session = Session(device, network)
    except ValidationError as error:
        return Rejected("validate", str(error))
    if limit is not None:
        session.progress = lambda taken: _check(taken, limit)
    tags = sorted({tag for code in network.codes for tag in code.tags})
    before = read_counts(session.driver, max(tags) + 1)
    try:
        outputs, cycles = session.measure(question.inputs)
    except TrapError as error:
        return Rejected("trap", str(error))
    except _TooSlowError:
        return Rejected("time", f"not done after {limit:,} cycles")
    counts = growth(before, read_counts(session.driver, max(tags) + 1))
    parts = split(cycles, counts, max(tags))
    totals = {name: sum(row[name] for row in counts.values()) for name in COUNTED}
    return Measurement(
        cycles,
        layers_of(network, parts.by_tag),
        energy_uj(network.config, totals),
        totals["load_bytes"] + totals["store_bytes"],
        question.answered_by(outputs),
        network.work(session.runs).cycles(network.config, rate),
    )


def _check(taken: int, limit: int) -> None:
    if taken > limit:
        raise _TooSlowError


def layers_of(network: CompiledNetwork, by_tag: ByTag) -> tuple[LayerCycles, ...]:
    """Cycles by cause of each tag as those of its layers."""
    names: dict[int, list[str]] = {}
    for info in network.infos:
        names.setdefault(info.tag, []).append(info.name)
    return tuple(
        LayerCycles(tuple(each), sum(by_tag[tag].values()), by_tag[tag])
        for tag, each in sorted(names.items())
    )
