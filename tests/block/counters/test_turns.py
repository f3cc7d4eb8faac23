"""The order in which sums are collected keeps to the times that their widths are made for."""

import random

import pytest

from hw.counters.turns import FLUSHED, STEP_CYCLES, Turns, flush_cycles, group_counters, round_cycles
from hw.isa.counters import COUNTERS
from tests.block.counters.bench import simulate

STEPS = 3000


class _Watch:
    """Groups that leave their tags, and the longest times anything took."""

    def __init__(self, again: float, rng: random.Random):
        self.again, self.rng = again, rng
        self.busy: dict[str, int] = {}  # since which cycle
        self.turn = [0] * len(COUNTERS)
        self.longest_flush = self.longest_round = 0

    def leave(self, cycle: int) -> int:
        """Groups that are not busy may leave their tags; returns who is busy."""
        for name in FLUSHED:
            if name not in self.busy and self.rng.random() < self.again:
                self.busy[name] = cycle
        return sum(1 << i for i, name in enumerate(FLUSHED) if name in self.busy)

    def step(self, cycle: int, counter: int, old: int, host: int) -> None:
        """A step has collected."""
        if old:
            group = COUNTERS[counter].group
            if counter == group_counters(group)[-1]:
                self.longest_flush = max(self.longest_flush, cycle - self.busy.pop(group))
        elif not host:
            self.longest_round = max(self.longest_round, cycle - self.turn[counter])
            self.turn[counter] = cycle


@pytest.mark.parametrize(("again", "reads"), [(1.0, 1.0), (0.02, 0.5), (0.0, 1.0), (1.0, 0.0)])
def test_longest_times(again: float, reads: float) -> None:
    """Whoever leaves its tag as soon as it may, and a host that never stops reading, hold nobody up for longer."""
    seed = 5
    dut, rng = Turns(2), random.Random(seed)
    watch = _Watch(again, rng)

    async def bench(ctx) -> None:
        ctx.set(dut.all_tags, 1)
        for step in range(STEPS):
            ctx.set(dut.read, rng.random() < reads)
            ctx.set(dut.busy, watch.leave(step * STEP_CYCLES))
            ctx.set(dut.go, 1)
            await ctx.tick()
            ctx.set(dut.go, 0)
            await ctx.tick().repeat(STEP_CYCLES - 1)
            watch.step((step + 1) * STEP_CYCLES, ctx.get(dut.counter), ctx.get(dut.old), ctx.get(dut.host))

    simulate(dut, bench)
    assert min(watch.turn) > 0, f"seed {seed}: a counter had no turn"
    assert watch.longest_round <= round_cycles(), f"seed {seed}"
    assert watch.longest_flush <= flush_cycles(), f"seed {seed}"
    if again == reads == 1:  # the times are not far too long either
        assert watch.longest_round == round_cycles()
        assert watch.longest_flush > flush_cycles() * 0.9


def test_host_reads_do_not_move_flushes() -> None:
    """A flush takes the same steps whether the host reads or not."""
    runs = []
    for reads in (0, 1):
        dut, steps = Turns(2), []

        async def bench(ctx, dut: Turns = dut, steps: list = steps, reads: int = reads) -> None:
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
def test_rounds_go_through_the_tags(all_tags: int) -> None:
    dut, seen = Turns(2), []

    async def bench(ctx) -> None:
        ctx.set(dut.go, 1)
        ctx.set(dut.all_tags, all_tags)
        for _ in range(5 * len(COUNTERS)):
            await ctx.tick()
            if ctx.get(dut.counter) == len(COUNTERS) // 2:
                seen.append(ctx.get(dut.tag))

    simulate(dut, bench)
    assert seen == ([0, 1, 2, 3, 0] if all_tags else [0] * 5)
