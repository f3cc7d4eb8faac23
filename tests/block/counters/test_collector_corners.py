"""The collector counts correctly at full rate, before the memory is cleared, and after a second reset."""

import random
from collections import Counter as Sum

import pytest
from amaranth.hdl import ResetInserter, Signal

from hw.counters.collection_schedule import FLUSHED, longest_gap
from hw.counters.collector import Collector
from hw.isa.counters import COUNTERS, GROUPS, index_of
from tests.block.counters.testbench import config_of, read
from tests.support.testbench import shared_block, simulate

TAGS = 4


class _EventDriver:
    """Driver of constant events that tracks their sums by tag and reads counters."""

    def __init__(self, ctx, dut: Collector):
        self.ctx, self.dut = ctx, dut
        self.tags: dict[str, int] = dict.fromkeys(GROUPS, 0)
        self.events = dict.fromkeys(range(len(COUNTERS)), 0)
        self.active: Sum[tuple[str, int]] = Sum()  # cycles by group and tag since the events were set
        self.expected: Sum[tuple[int, int]] = Sum()

    def set_events(self, events: dict[int, int]) -> None:
        for index, counter in enumerate(COUNTERS):
            for tag in range(TAGS):
                self.expected[tag, index] = self.sum(tag, index)
            self.events[index] = events.get(index, 0)
            self.ctx.set(getattr(self.dut, f"{counter.group}_events")[counter.name], self.events[index])
        self.active.clear()

    def set_tag(self, group: str, tag: int) -> None:
        self.tags[group] = tag
        self.ctx.set(getattr(self.dut, f"{group}_tag"), tag)

    def sum(self, tag: int, index: int) -> int:
        return self.expected[tag, index] + self.events[index] * self.active[COUNTERS[index].group, tag]

    async def tick(self) -> None:
        for group, tag in self.tags.items():
            self.active[group, tag] += 1
        await self.ctx.tick()

    async def until_ready(self) -> None:
        for _ in range(10000):
            if self.ctx.get(self.dut.ready):
                return
            await self.tick()
        raise AssertionError("never ready")

    async def read(self, tag: int, index: int, step) -> int:
        return await read(self.ctx, self.dut, tag, index, step)

    async def check_all(self, note: str) -> None:
        self.set_events({})
        for tag in range(TAGS):
            for index, counter in enumerate(COUNTERS):
                value = await self.read(tag, index, self.tick)
                assert value == self.expected[tag, index], f"{note}: {counter.name}, tag {tag}"


FULL = {i: (1 << c.width) - 1 for i, c in enumerate(COUNTERS)}


@pytest.mark.parametrize("late", [0, 1])
def test_full_rate_with_changing_tags(late: int) -> None:
    """Counters are correct at maximum increments, with tags that change as soon as possible and continuous reads.

    Only the group that the host reads keeps its tag, since a read waits until the group is not busy.
    """
    seed = 3
    rng, dut = random.Random(seed), shared_block(Collector, config_of(late))

    async def bench(ctx) -> None:
        run = _EventDriver(ctx, dut)
        await run.until_ready()
        run.set_events(FULL)
        looked_at = ""

        async def step() -> None:
            for group in GROUPS:
                if group in FLUSHED and (group == looked_at or ctx.get(getattr(dut, f"{group}_busy"))):
                    continue
                run.set_tag(group, rng.choice([t for t in range(TAGS) if t != run.tags[group]]))
            await run.tick()

        for _ in range(60):
            tag, index = rng.randrange(TAGS), rng.randrange(len(COUNTERS))
            looked_at, before = COUNTERS[index].group, run.sum(tag, index)
            value = await run.read(tag, index, step)
            assert before <= value <= run.sum(tag, index), f"seed {seed}: {COUNTERS[index].name}, tag {tag}"
        await run.check_all(f"seed {seed}")

    simulate(dut, bench)


@pytest.mark.parametrize("late", [0, 1])
def test_full_rate_of_one_tag_beyond_collection_interval(late: int) -> None:
    dut = shared_block(Collector, config_of(late))

    async def bench(ctx) -> None:
        run = _EventDriver(ctx, dut)
        run.set_events(FULL)
        for _ in range(3 * longest_gap()):
            await run.tick()
        await run.check_all("one tag")

    simulate(dut, bench)


@pytest.mark.parametrize("late", [0, 1])
def test_full_rate_with_longest_collection_interval(late: int) -> None:
    """Flushes and a continuous read take three of four steps of the round, which gives the longest collection
    interval.
    """
    dut, resting = shared_block(Collector, config_of(late)), "load"

    async def bench(ctx) -> None:
        run = _EventDriver(ctx, dut)
        await run.until_ready()
        run.set_events({i: FULL[i] for i, c in enumerate(COUNTERS) if c.group == resting})
        ctx.set(dut.select_counter, index_of("macs_issued"))
        ctx.set(dut.read, 1)
        for _ in range(2 * longest_gap()):
            for group in FLUSHED:
                if group != resting and not ctx.get(getattr(dut, f"{group}_busy")):
                    run.set_tag(group, 1 - run.tags[group])
            await run.tick()
        ctx.set(dut.read, 0)
        await run.tick()
        await run.check_all("held up")

    simulate(dut, bench)


@pytest.mark.parametrize("first", [0, 1, 5])
@pytest.mark.parametrize("late", [0, 1])
def test_second_reset_clears_counters_and_counts_later_events(first: int, late: int) -> None:
    """Memories retain their contents across a reset; events from cycle `first` on are counted, even before `ready`."""
    reset, dut = Signal(), Collector(config_of(late))

    async def bench(ctx) -> None:
        run = _EventDriver(ctx, dut)
        await run.until_ready()
        run.set_events(FULL)
        for cycle in range(2500):
            if cycle % 600 == 0:
                for group in GROUPS:
                    run.set_tag(group, cycle // 600 % TAGS)
            await run.tick()
        run.set_events({})
        for group in GROUPS:
            run.set_tag(group, 0)
        ctx.set(reset, 1)
        await ctx.tick()
        ctx.set(reset, 0)
        run.expected.clear()
        run.active.clear()
        for _ in range(first):
            await run.tick()
        run.set_events({i: value for i, value in FULL.items() if COUNTERS[i].group in FLUSHED})
        for name in ("traps", "fuse_saturations"):  # single counters, some in the first cycles
            run.set_events(run.events | {index_of(name): FULL[index_of(name)]})
        for _ in range(3):
            await run.tick()
        run.set_events({i: value for i, value in FULL.items() if COUNTERS[i].group in FLUSHED})
        await run.until_ready()
        await run.tick()
        await run.check_all(f"events from cycle {first} on")

    simulate(ResetInserter(reset)(dut), bench)


@pytest.mark.parametrize("tag", [0, 1])
@pytest.mark.parametrize("late", [0, 1])
def test_read_across_tag_change_is_consistent(tag: int, late: int) -> None:
    """With an event in every cycle, a read returns the sum in one of its cycles, regardless of when the tag changes."""
    dut = shared_block(Collector, config_of(late))
    index = index_of("macs_issued")

    async def bench(ctx) -> None:
        run = _EventDriver(ctx, dut)
        await run.until_ready()
        for delay in range(12):
            run.set_tag("matrix", 0)
            run.set_events({index: 2047})
            for _ in range(50):
                await run.tick()
            while ctx.get(dut.matrix_busy):  # the tag must not change yet
                await run.tick()
            sums, cycle = [run.sum(tag, index)], 0

            async def step() -> None:
                nonlocal cycle
                if cycle == delay:  # noqa: B023  # called in this iteration only
                    run.set_tag("matrix", 1)
                cycle += 1
                await run.tick()
                sums.append(run.sum(tag, index))  # noqa: B023

            found = await run.read(tag, index, step)
            assert found in sums, f"change after {delay} cycles"
            run.set_events({})
            for each in (0, 1):
                value = await run.read(each, index, run.tick)
                assert value == run.sum(each, index), f"tag {each}, change after {delay} cycles"
            while ctx.get(dut.matrix_busy):
                await run.tick()
        await run.check_all(f"tag {tag}")

    simulate(dut, bench)
