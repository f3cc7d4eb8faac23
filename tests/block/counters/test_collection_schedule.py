"""The collection schedule never exceeds the intervals from which the widths of the sums are computed."""

import random

import pytest

from hw.counters.collection_schedule import (
    APART,
    APART_LATE,
    FLUSHED,
    TAKEN,
    CollectionSchedule,
    flush_cycles,
    group_counters,
    round_cycles,
)
from hw.isa.counters import COUNTERS
from tests.support.testbench import simulate

CYCLES = 9000


class _ScheduleModel:
    """Model of groups whose units change tags, which records the longest observed intervals."""

    def __init__(self, again: float, rng: random.Random, apart: int = APART):
        self.again, self.rng = again, rng
        self.busy: dict[str, int] = {}  # start cycle of each flush
        self.ends: dict[int, str] = {}  # cycle in which the last sum of a group is taken
        self.turn = [0] * len(COUNTERS)  # cycle of a counter's last choice, except host reads
        self.recent: list[int | None] = [None] * (apart + 1)
        self.longest_flush = self.longest_round = self.answers = 0

    def leave(self, cycle: int) -> int:
        """Start flushes of groups that are not busy, at random; return the mask of busy groups."""
        if cycle in self.ends:
            group = self.ends.pop(cycle)
            self.longest_flush = max(self.longest_flush, cycle - self.busy.pop(group))
        for name in FLUSHED:
            if name not in self.busy and self.rng.random() < self.again:
                self.busy[name] = cycle
        return sum(1 << i for i, name in enumerate(FLUSHED) if name in self.busy)

    def step(self, cycle: int, valid: int, counter: int, flags: tuple[int, int, int]) -> None:
        """Record the choice that the schedule made in the previous cycle."""
        old, last, host = flags
        self.recent = [*self.recent[1:], counter if valid else None]
        assert not valid or counter not in self.recent[:-1], "two steps of one counter are too close"
        assert valid or not any(flags)
        if old:
            group = COUNTERS[counter].group
            assert group in self.busy and last == (counter == group_counters(group)[-1])
            if last:
                self.ends[cycle + TAKEN] = group
        elif valid and not host:
            self.longest_round = max(self.longest_round, cycle - self.turn[counter])
        self.answers += host
        if valid and not host:
            self.turn[counter] = cycle


@pytest.mark.parametrize("apart", [APART, APART_LATE])
@pytest.mark.parametrize(("again", "reads"), [(1.0, 1.0), (0.02, 0.5), (0.0, 1.0), (1.0, 0.0)])
def test_rounds_and_flushes_within_limits(again: float, reads: float, apart: int) -> None:
    """Rounds and flushes stay within limits, even if groups change tags simultaneously and the host always reads."""
    seed = 5
    dut, rng = CollectionSchedule(2, apart), random.Random(seed)
    watch = _ScheduleModel(again, rng, apart)

    async def bench(ctx) -> None:
        ctx.set(dut.all_tags, 1)
        ctx.set(dut.go, 1)
        for cycle in range(CYCLES):
            ctx.set(dut.read, rng.random() < reads)
            ctx.set(dut.select_counter, rng.randrange(len(COUNTERS)))
            ctx.set(dut.busy, watch.leave(cycle))
            await ctx.tick()
            flags = (ctx.get(dut.old), ctx.get(dut.last), ctx.get(dut.host))
            watch.step(cycle + 1, ctx.get(dut.valid), ctx.get(dut.counter), flags)

    simulate(dut, bench)
    assert min(watch.turn) > 0, f"seed {seed}: a counter had no turn"
    assert watch.longest_round <= round_cycles(), f"seed {seed}"
    assert watch.longest_flush <= flush_cycles(apart), f"seed {seed}"
    assert watch.answers >= reads * CYCLES / 20, f"seed {seed}"
    if again == 1:  # the limits are tight
        assert watch.longest_flush > flush_cycles(apart) * 0.9
    elif reads == 1:
        assert watch.longest_round == round_cycles()


@pytest.mark.parametrize("apart", [APART, APART_LATE])
@pytest.mark.parametrize("group", FLUSHED)
def test_reads_are_served_while_group_flushes_continuously(group: str, apart: int) -> None:
    """Each counter is read within 16 cycles, even while its group is flushed again as soon as possible."""
    for counter in group_counters(group):
        dut, watch, waited = CollectionSchedule(2, apart), _ScheduleModel(0.0, random.Random(0), apart), []

        async def bench(
            ctx, dut: CollectionSchedule = dut, watch: _ScheduleModel = watch, counter=counter, waited=waited
        ) -> None:
            ctx.set(dut.go, 1)
            ctx.set(dut.read, 1)
            ctx.set(dut.select_counter, counter)
            since = 0
            for cycle in range(400):
                watch.leave(cycle)
                watch.busy.setdefault(group, cycle)
                ctx.set(dut.busy, 1 << FLUSHED.index(group))
                await ctx.tick()
                flags = (ctx.get(dut.old), ctx.get(dut.last), ctx.get(dut.host))
                watch.step(cycle + 1, ctx.get(dut.valid), ctx.get(dut.counter), flags)
                if flags[-1]:
                    waited.append(cycle - since)
                    since = cycle

        simulate(dut, bench)
        assert len(waited) > 20 and max(waited) <= 16, f"{COUNTERS[counter].name}: {waited}"


def test_host_reads_do_not_delay_flushes() -> None:
    """A flush takes the same number of cycles whether or not the host reads."""
    runs = []
    for reads in (0, 1):
        dut, steps = CollectionSchedule(2), []

        async def bench(ctx, dut: CollectionSchedule = dut, steps: list = steps, reads: int = reads) -> None:
            ctx.set(dut.go, 1)
            ctx.set(dut.read, reads)
            await ctx.tick().repeat(7)
            ctx.set(dut.busy, 0b101)
            for _ in range(200):
                await ctx.tick()
                steps.append(ctx.get(dut.old) and ctx.get(dut.counter) + 1)

        simulate(dut, bench)
        runs.append(steps)
    assert runs[0] == runs[1] and any(runs[0])


@pytest.mark.parametrize("all_tags", [0, 1])
def test_rounds_cycle_through_tags(all_tags: int) -> None:
    dut, seen = CollectionSchedule(2), []

    async def bench(ctx) -> None:
        ctx.set(dut.go, 1)
        ctx.set(dut.all_tags, all_tags)
        while len(seen) < 5:
            await ctx.tick()
            if ctx.get(dut.valid) and ctx.get(dut.counter) == len(COUNTERS) // 2:
                seen.append(ctx.get(dut.tag))

    simulate(dut, bench)
    assert seen == ([0, 1, 2, 3, 0] if all_tags else [0] * 5)
