"""What tells that the machine stands still, at its limits."""

import pytest

from hw.control.watchdog import Watchdog
from tests.support.testbench import simulate

LIMIT = 10


@pytest.mark.parametrize("cycles", range(LIMIT - 3, LIMIT + 5))
def test_the_watchdog_lets_go_of_what_completes_in_its_last_cycle(cycles: int) -> None:
    """Something is in flight for so many cycles: it expires while it is, not in the cycle in which it no longer is."""
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
