"""Each state of the machine has exactly one stall cause."""

import random

from hw.counters.stall_cause import STATE_LAYOUT, StallCause
from hw.isa.counters import CAUSES
from tests.support.testbench import simulate


def test_random_states_have_one_cause() -> None:
    dut, rng = StallCause(), random.Random(1)
    seen: set[str] = set()

    async def bench(ctx) -> None:
        for _ in range(3000):
            ctx.set(
                dut.state.as_value(),
                rng.getrandbits(STATE_LAYOUT.size)
                & rng.getrandbits(STATE_LAYOUT.size)
                & rng.getrandbits(STATE_LAYOUT.size),
            )
            causes = [name for name in CAUSES if ctx.get(dut.cause[name])]
            assert len(causes) == 1
            seen.add(causes[0])

    simulate(dut, bench, clocked=False)
    assert seen == set(CAUSES) - {"wait_activations", "wait_accumulator"}  # the machine never waits for these
