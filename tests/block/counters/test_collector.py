"""The collector against a dictionary that adds up the same events."""

import random
from collections import Counter as Sum

import pytest
from amaranth.sim import Simulator

from hw.config import MlaConfig
from hw.counters.collector import Collector
from hw.isa.counters import COUNTERS, GROUPS


async def _read(ctx, dut: Collector, tag: int, index: int, step) -> int:
    ctx.set(dut.select_counter, index)
    ctx.set(dut.select_tag, tag)
    ctx.set(dut.read, 1)
    for _ in range(3000):
        await step()
        if ctx.get(dut.read_done):
            ctx.set(dut.read, 0)
            value = ctx.get(dut.value)
            await step()
            return value
    raise AssertionError("no answer")


@pytest.mark.parametrize("seed", range(3))
def test_sums_by_tag(seed: int) -> None:
    rng = random.Random(seed)
    config = MlaConfig(tags=4)
    dut = Collector(config)
    expected: Sum[tuple[int, int]] = Sum()

    async def bench(ctx) -> None:
        tags = dict.fromkeys(GROUPS, 0)

        async def step() -> None:
            for group in GROUPS:
                busy = getattr(dut, f"{group}_busy", None)
                if rng.random() < (0.5 if busy is None else 0.001) and not (
                    busy is not None and ctx.get(busy)
                ):
                    tags[group] = rng.randrange(4)
                    ctx.set(getattr(dut, f"{group}_tag"), tags[group])
                events = getattr(dut, f"{group}_events")
                values = {
                    c.name: rng.getrandbits(c.width) * (rng.random() < 0.5)
                    for c in COUNTERS
                    if c.group == group
                }
                ctx.set(events, values)
                for i, c in enumerate(COUNTERS):
                    if c.group == group:
                        expected[tags[group], i] += values[c.name]
            await ctx.tick()

        while not ctx.get(dut.ready):
            await ctx.tick()
        for _ in range(1200):
            await step()
        for _ in range(20):  # reads while counting: between the values before and after
            tag, index = rng.randrange(4), rng.randrange(len(COUNTERS))
            before = expected[tag, index]
            value = await _read(ctx, dut, tag, index, step)
            assert before <= value <= expected[tag, index], f"seed {seed} {tag} {COUNTERS[index].name}"
        for group in GROUPS:
            ctx.set(getattr(dut, f"{group}_events"), {c.name: 0 for c in COUNTERS if c.group == group})
        for tag in range(4):
            for index, counter in enumerate(COUNTERS):
                assert await _read(ctx, dut, tag, index, ctx.tick) == expected[tag, index], (
                    f"seed {seed} {counter.name}"
                )

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


@pytest.mark.parametrize("delay", range(12))
def test_read_while_the_group_leaves_its_tag(delay: int) -> None:
    """The value holds every event before the read, whichever cycle of the read the tag changes in."""
    dut = Collector(MlaConfig(tags=4))
    index = next(i for i, c in enumerate(COUNTERS) if c.name == "macs_issued")

    async def bench(ctx) -> None:
        while not ctx.get(dut.ready):
            await ctx.tick()
        ctx.set(dut.matrix_events.macs_issued, 256)
        await ctx.tick().repeat(5)
        ctx.set(dut.matrix_events.macs_issued, 0)
        cycle = 0

        async def step() -> None:
            nonlocal cycle
            if cycle == delay:
                ctx.set(dut.matrix_tag, 1)
            cycle += 1
            await ctx.tick()

        assert await _read(ctx, dut, 0, index, step) == 5 * 256

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


def test_reads_end_while_tags_change_as_soon_as_they_may() -> None:
    rng = random.Random(5)
    dut = Collector(MlaConfig(tags=4))
    index = next(i for i, c in enumerate(COUNTERS) if c.name == "macs_issued")
    expected: Sum[int] = Sum()

    async def bench(ctx) -> None:
        tag = 0

        async def step() -> None:
            nonlocal tag
            if not ctx.get(dut.matrix_busy):
                tag = 1 - tag
                ctx.set(dut.matrix_tag, tag)
            count = rng.randrange(256)
            ctx.set(dut.matrix_events.macs_issued, count)
            expected[tag] += count
            await ctx.tick()

        while not ctx.get(dut.ready):
            await ctx.tick()
        for read in range(30):
            before = expected[read % 3]
            value = await _read(ctx, dut, read % 3, index, step)
            assert before <= value <= expected[read % 3], f"read {read}"

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
