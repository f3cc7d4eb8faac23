"""The counter collector gives the same sums as a dictionary that sums the same events."""

import random
from collections import Counter as Sum

import pytest

from hw.config import MlaConfig
from hw.counters.collector import Collector
from hw.isa.counters import COUNTERS, GROUPS
from tests.block.counters.testbench import config_of, read
from tests.support.testbench import simulate


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("seed", range(3))
def test_sums_by_tag(seed: int, late: int) -> None:
    rng = random.Random(seed)
    config = config_of(late)
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
        for _ in range(20):  # a read while counting returns a sum between the values before and after
            tag, index = rng.randrange(4), rng.randrange(len(COUNTERS))
            before = expected[tag, index]
            value = await read(ctx, dut, tag, index, step)
            assert before <= value <= expected[tag, index], f"seed {seed} {tag} {COUNTERS[index].name}"
        for group in GROUPS:
            ctx.set(getattr(dut, f"{group}_events"), {c.name: 0 for c in COUNTERS if c.group == group})
        for tag in range(4):
            for index, counter in enumerate(COUNTERS):
                assert await read(ctx, dut, tag, index, ctx.tick) == expected[tag, index], (
                    f"seed {seed} {counter.name}"
                )

    simulate(dut, bench)


def test_reads_end_while_tags_change_continuously() -> None:
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
        for number in range(30):
            before = expected[number % 3]
            value = await read(ctx, dut, number % 3, index, step)
            assert before <= value <= expected[number % 3], f"read {number}"

    simulate(dut, bench)
