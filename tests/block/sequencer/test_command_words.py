"""Commands sent as words arrive unchanged: the queues deliver the fields that Python stored."""

import random
from collections import deque

import pytest
from amaranth.hdl import Elaboratable, Module

from hw.checker.values import INCREMENT_OF, INCREMENTS_LAYOUT
from hw.isa.commands import FIELD_INDEX_BITS, UNIT_FIELDS
from hw.isa.enums import Unit
from hw.layouts import DERIVED, META_LAYOUT, command_layout
from hw.sequencer.command_words import CommandWords
from hw.units.command_queue import WordQueue
from tests.support.testbench import simulate

DEPTH = 3


class WordQueueHarness(Elaboratable):
    """The sender, and a queue for each unit."""

    def __init__(self):
        self.sender = CommandWords()
        self.queues = [WordQueue(unit, DEPTH) for unit in Unit]

    def elaborate(self, platform):
        m = Module()
        m.submodules.sender = sender = self.sender
        for unit, queue in zip(Unit, self.queues, strict=True):
            m.submodules[f"queue_{unit.name.lower()}"] = queue
            m.d.comb += [queue.valid.eq(sender.valid[unit]), queue.word.eq(sender.word)]
        return m


class Program:
    """Driver that writes and clears fields, issues commands, and checks the commands that each unit receives."""

    def __init__(self, bench: WordQueueHarness, rng: random.Random):
        self.bench, self.rng = bench, rng
        self.fields = [[0] * len(fields) for fields in UNIT_FIELDS]
        self.queued = [deque() for _ in Unit]
        self.started = self.writes = 0

    def clear(self, mask: int) -> None:
        for unit in Unit:
            if mask >> unit & 1:
                self.fields[unit] = [f.default & ((1 << f.width) - 1) for f in UNIT_FIELDS[unit]]

    async def cycle(self, ctx) -> None:
        """Advance by one cycle, during which units start queued commands at random."""
        takes = []
        for unit, queue in enumerate(self.bench.queues):
            take = bool(self.queued[unit]) and ctx.get(queue.loaded) and self.rng.random() < 0.2
            takes.append(take)
            ctx.set(queue.take, take)
            if take:
                assert ctx.get(queue.body) == self.queued[unit].popleft(), Unit(unit).name
                self.started += 1
        await ctx.tick()

    async def write(self, ctx) -> None:
        sender, unit = self.bench.sender, self.rng.randrange(4)
        index = self.rng.randrange(len(UNIT_FIELDS[unit]))
        value = self.rng.getrandbits(32)
        self.fields[unit][index] = value & ((1 << UNIT_FIELDS[unit][index].width) - 1)
        ctx.set(sender.w_field, unit << FIELD_INDEX_BITS | index)
        ctx.set(sender.w_data, value)
        ctx.set(sender.w_en, 1)
        await self.cycle(ctx)
        ctx.set(sender.w_en, 0)
        self.writes += 1

    async def command(self, ctx, unit: Unit, pause: int) -> None:
        """Issue a command whose check takes `pause` cycles."""
        sender = self.bench.sender
        increments = {name: self.rng.getrandbits(20) for name in INCREMENTS_LAYOUT.members}
        derived = {name: increments[INCREMENT_OF[name]] for name in DERIVED[unit]}
        ctx.set(sender.unit, unit)
        ctx.set(sender.start, 1)
        await self.cycle(ctx)
        ctx.set(sender.start, 0)
        for _ in range(pause):
            assert not ctx.get(sender.sent)
            await self.cycle(ctx)
        ctx.set(sender.passed, 1)
        ctx.set(sender.increments, increments)
        while not ctx.get(sender.sent):
            await self.cycle(ctx)
        while len(self.queued[unit]) == DEPTH:
            await self.cycle(ctx)
        body, offset = 0, 0
        widths = [*(f.width for f in UNIT_FIELDS[unit]), *DERIVED[unit].values()]
        for width, value in zip(widths, [*self.fields[unit], *derived.values()], strict=True):
            body, offset = body | value << offset, offset + width
        assert offset == command_layout(unit).size - META_LAYOUT.size
        self.queued[unit].append(body)
        await self.cycle(ctx)
        ctx.set(sender.passed, 0)

    async def abandon(self, ctx, unit: Unit) -> None:
        """Reject a command while its words are being sent."""
        sender = self.bench.sender
        ctx.set(sender.unit, unit)
        ctx.set(sender.start, 1)
        await self.cycle(ctx)
        ctx.set(sender.start, 0)
        for _ in range(self.rng.randrange(12)):
            await self.cycle(ctx)
        ctx.set(sender.stop, 1)
        for queue in self.bench.queues:
            ctx.set(queue.flush, 1)
            ctx.set(queue.take, 0)
        await ctx.tick()
        ctx.set(sender.stop, 0)
        for unit_queue, queue in zip(self.queued, self.bench.queues, strict=True):
            ctx.set(queue.flush, 0)
            unit_queue.clear()
        await self.restart(ctx, 15)

    async def restart(self, ctx, mask: int) -> None:
        ctx.set(self.bench.sender.clear, mask)
        self.clear(mask)
        await self.cycle(ctx)
        ctx.set(self.bench.sender.clear, 0)


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", range(3))
def test_commands_arrive(seed: int):
    print(f"seed {seed}")
    bench, rng = WordQueueHarness(), random.Random(seed)
    work = Program(bench, rng)

    async def testbench(ctx):
        await work.restart(ctx, 15)
        for _ in range(120):
            for _ in range(rng.choice((0, 1, 5, 60))):
                await work.write(ctx)
            if rng.random() < 0.2:
                await work.restart(ctx, rng.randrange(16))
            if rng.random() < 0.1:
                await work.abandon(ctx, Unit(rng.randrange(4)))
            await work.command(ctx, Unit(rng.randrange(4)), rng.choice((2, 10, 30)))
        for _ in range(2000):
            await work.cycle(ctx)
        assert not any(work.queued)

    simulate(bench, testbench)
    print(f"{work.writes} writes, {work.started} commands started")
    assert work.started > 60
