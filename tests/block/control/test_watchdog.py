"""Deadlocks and expired watchdogs are detected exactly at their limits."""

import pytest

from hw.control.watchdog import Watchdog
from tests.support.testbench import simulate

LIMIT = 10


@pytest.mark.parametrize("cycles", range(LIMIT - 3, LIMIT + 5))
def test_no_timeout_for_completion_in_last_cycle(cycles: int) -> None:
    """The watchdog expires for work in flight beyond the limit, but not for work that completes by the limit."""
    dut, expired = Watchdog(settle=4), []

    async def bench(ctx) -> None:
        ctx.set(dut.limit, LIMIT)
        ctx.set(dut.counting, 1)
        for cycle in range(3 * LIMIT):
            ctx.set(dut.flight_empty, cycle >= cycles)
            if ctx.get(dut.expired):
                expired.append(cycle)
            await ctx.tick()

    simulate(dut, bench)
    assert expired == ([LIMIT + 1] if cycles > LIMIT + 1 else [])
