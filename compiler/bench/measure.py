"""Cycles of a piece of work on a live machine, and where they went."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from cosim.driver import Driver
from cosim.golden.device import GoldenDevice
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
    """
    clocked = not isinstance(driver.device, GoldenDevice)
    before = driver.counters.causes(0) if clocked else {}
    enqueue()
    driver.set("IRQ_STATUS", driver.get("IRQ_STATUS"))  # loading a program may have left one
    first, start = driver.device.cycle or 0, time.perf_counter()
    driver.doorbell()
    driver.device.wait_irq(_TIMEOUT)
    cycles, seconds = (driver.device.cycle or 0) - first, time.perf_counter() - start
    driver.run()  # takes the interrupt, raises what went wrong
    if not clocked:
        return Measurement(None, None, seconds)
    after = driver.counters.causes(0)
    where = {cause: after[cause] - before[cause] for cause in CAUSES}
    where["idle"] = cycles - sum(count for cause, count in where.items() if cause != "idle")
    return Measurement(cycles, where, seconds)
