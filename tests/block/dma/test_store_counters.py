"""STORE's counters where beats are aborted, and where a command ends while its beats are still to be sent."""

import random

import pytest

from hw.memory.ports import SP_READ_LATENCY
from tests.block.dma.models import WriteSlave, store_command
from tests.block.dma.test_store import StoreTestbench, small


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("n", [4, 8])
def test_blanked_beats_carry_no_bytes(n: int, pipelined: bool) -> None:
    """After an abort the beats still owed are sent with their strobes off; they count as beats, not as bytes."""
    config, rng = small(n, pipelined), random.Random(n)
    # A bus that takes requests at once and beats late: many beats are owed when the abort comes.
    slave = WriteSlave(n, bytearray(1 << 15), rng, latency=3)
    bench = StoreTestbench(config, slave, rng)

    async def run(ctx) -> None:
        await bench.send(ctx, [store_command(dram=0, src=0, len=64 * n)])
        while not slave.bursts:
            await bench.cycle_once(ctx)
        ctx.set(bench.dut.abort, 1)
        await bench.cycle_once(ctx)
        await bench.cycle_once(ctx)  # the counter tells of the cycle before
        before = dict(bench.events)
        beats = slave.beats
        await bench.finish(ctx)
        assert slave.beats - beats > 4, "nothing was owed: the test does not test what it is for"
        assert bench.events["store_bytes"] == before["store_bytes"]
        assert bench.events["store_beats"] == slave.beats

    bench.simulate(run)


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("n", [4, 8])
def test_waiting_for_the_bus_begins_when_the_last_beat_is_sent(n: int, pipelined: bool) -> None:
    """A bus that is always ready is waited for only once all beats are sent and their answers are missing."""
    config, rng, latency = small(n, pipelined), random.Random(n), 30
    slave = WriteSlave(n, bytearray(1 << 15), rng, latency=latency)
    bench = StoreTestbench(config, slave, rng)

    async def run(ctx) -> None:
        await bench.send(ctx, [store_command(dram=3, src=5, len=5 * n)])
        unsent = 0
        while ctx.get(bench.dut.busy):
            owed, before = bool(slave.open), bench.events["store_stall_bus"]
            await bench.cycle_once(ctx)
            # The event tells of the cycle before, at whose end beats were owed.
            assert not (owed and bench.events["store_stall_bus"] > before), bench.cycle
            unsent += owed
        assert unsent > SP_READ_LATENCY + 1
        assert abs(bench.events["store_stall_bus"] - latency) <= 2

    bench.simulate(run)
