"""Cycles of a piece of work on a live machine, and where they went."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cosim.driver import Driver
from cosim.golden.device import GoldenDevice
from hw.errors import WorkError
from hw.isa.counters import CAUSES

_TIMEOUT = 1 << 30


@dataclass(frozen=True)
class Measurement:
    """From the doorbell to the interrupt; cycles and causes are None on a machine without a clock."""

    cycles: int | None
    where: dict[str, int] | None
    seconds: float


def measure(driver: Driver, enqueue: Callable[[], object]) -> Measurement:
    """Run what `enqueue` puts into the ring; the last macro-instruction must ask for an interrupt.

    Its tag is 0. The machine is at rest before and after: the cycles of all causes but idle fall between
    doorbell and interrupt; idle is the rest.

    Raises
    ------
    WorkError
        The counters contradict each other or the clock.
    """
    clocked = not isinstance(driver.device, GoldenDevice)
    before = _counts(driver) if clocked else {}
    enqueue()
    driver.set("IRQ_STATUS", driver.get("IRQ_STATUS"))  # loading a program may have left one
    first, start = driver.device.cycle or 0, time.perf_counter()
    driver.doorbell()
    driver.device.wait_irq(_TIMEOUT)
    cycles, seconds = (driver.device.cycle or 0) - first, time.perf_counter() - start
    driver.run()  # takes the interrupt, raises what went wrong
    if not clocked:
        return Measurement(None, None, seconds)
    after = _counts(driver)
    return Measurement(cycles, where(cycles, {name: after[name] - before[name] for name in after}), seconds)


def where(cycles: int, counts: Mapping[str, int]) -> dict[str, int]:
    """Cycles by cause, idle being the rest of `cycles`.

    Parameters
    ----------
    cycles : int
        By the clock, from the doorbell to the interrupt.
    counts : mapping
        What the counters grew by: each of CAUSES, idle included, and `cycles`, which they must sum to.

    Raises
    ------
    WorkError
        They do not, or the causes that are not idle took more than `cycles`.
    """
    caused = sum(counts[cause] for cause in CAUSES)
    if caused != counts["cycles"]:
        raise WorkError(f"the causes sum to {caused} cycles, not to the {counts['cycles']} that were counted")
    split = {cause: counts[cause] for cause in CAUSES}
    split["idle"] = cycles - (caused - counts["idle"])
    if split["idle"] < 0:
        raise WorkError(f"causes other than idle sum to {caused - counts['idle']} cycles of {cycles}")
    return split


def _counts(driver: Driver) -> dict[str, int]:
    return driver.counters.causes(0) | {"cycles": driver.counters.read("cycles", 0)}
