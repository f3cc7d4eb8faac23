"""The counters of STORE are correct for aborted beats and while the last beats of a command are not yet sent."""

import random

import pytest

from hw.memory.ports import SP_READ_LATENCY
from tests.block.units.dma_models import WriteSlave, store_command
from tests.block.units.test_store import StoreTestbench, small


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("n", [4, 8])
def test_blanked_beats_carry_no_bytes(n: int, pipelined: bool) -> None:
    """Beats sent with deasserted write strobes after an abort are counted as beats, but add no bytes."""
    config, rng = small(n, pipelined), random.Random(n)
    # The bus accepts requests at once and beats with a delay, so many beats are outstanding at the abort.
    slave = WriteSlave(n, bytearray(1 << 15), rng, latency=3)
    bench = StoreTestbench(config, slave, rng)

    async def run(ctx) -> None:
        await bench.send(ctx, [store_command(dram=0, src=0, len=64 * n)])
        while not slave.bursts:
            await bench.cycle_once(ctx)
        ctx.set(bench.dut.abort, 1)
        await bench.cycle_once(ctx)
        await bench.cycle_once(ctx)  # the counter reports the previous cycle
        before = dict(bench.events)
        beats = slave.beats
        await bench.finish(ctx)
        assert slave.beats - beats > 4, "nothing was owed: the test does not test what it is for"
        assert bench.events["store_bytes"] == before["store_bytes"]
        assert bench.events["store_beats"] == slave.beats

    bench.simulate(run)


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("n", [4, 8])
def test_bus_wait_starts_after_last_beat(n: int, pipelined: bool) -> None:
    """On a bus that is always ready, cycles are counted as waits for the bus only after all beats are sent."""
    config, rng, latency = small(n, pipelined), random.Random(n), 30
    slave = WriteSlave(n, bytearray(1 << 15), rng, latency=latency)
    bench = StoreTestbench(config, slave, rng)

    async def run(ctx) -> None:
        await bench.send(ctx, [store_command(dram=3, src=5, len=5 * n)])
        unsent = 0
        while ctx.get(bench.dut.busy):
            owed, before = bool(slave.open), bench.events["store_stall_bus"]
            await bench.cycle_once(ctx)
            # The event reports the previous cycle, in which beats were still outstanding.
            assert not (owed and bench.events["store_stall_bus"] > before), bench.cycle
            unsent += owed
        assert unsent > SP_READ_LATENCY + 1
        assert abs(bench.events["store_stall_bus"] - latency) <= 2

    bench.simulate(run)
