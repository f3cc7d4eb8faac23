"""FIFOs behave like a deque in every cycle, with the documented order, latency, capacity and clearing."""

import random
from collections import deque

import pytest
from amaranth.hdl import unsigned
from amaranth.lib import data

from hw.lib.fifo import CreditFifo, StreamFifo
from tests.support.testbench import simulate

CYCLES = 600
RATES = ((0.9, 0.2), (0.5, 0.5), (0.2, 0.9))  # probabilities of pushes and of pops, in successive phases


@pytest.mark.parametrize("depth", [2, 4, 16])
def test_stream_fifo(depth: int) -> None:
    """The FIFO fills up, drains, and drops payloads that are offered while it is cleared."""
    dut, rng = StreamFifo(unsigned(8), depth), random.Random(depth)
    reached = set()

    async def bench(ctx) -> None:
        held: deque[int] = deque()
        for cycle in range(CYCLES):
            push, pop = (rng.random() < rate for rate in RATES[cycle // 100 % 3])
            clear, payload = rng.random() < 0.01, rng.randrange(256)
            ctx.set(dut.w.valid, push)
            ctx.set(dut.w.payload, payload)
            ctx.set(dut.r.ready, pop)
            ctx.set(dut.clear, clear)
            assert ctx.get(dut.level) == len(held)
            assert ctx.get(dut.w.ready) == (len(held) < depth)
            assert ctx.get(dut.r.valid) == bool(held)
            if held:
                assert ctx.get(dut.r.payload) == held[0]
            reached.add(len(held))
            full = len(held) == depth
            if pop and held:
                held.popleft()
            if push and not full:
                held.append(payload)
            if clear:
                held.clear()
            await ctx.tick()

    simulate(dut, bench)
    assert {0, depth} <= reached, f"seed {depth}"


@pytest.mark.parametrize("depth", [4, 32])  # combinational reads; block RAM
def test_credit_fifo(depth: int) -> None:
    """An entry pushed into the empty FIFO is at the head in the next cycle, with either kind of memory."""
    dut, rng = CreditFifo(data.StructLayout({"value": 8}), depth), random.Random(depth)
    reached = set()

    async def bench(ctx) -> None:
        held: deque[int] = deque()
        for cycle in range(CYCLES):
            push, pop = (rng.random() < rate for rate in RATES[cycle // 100 % 3])
            push, pop, value = push and len(held) < depth, pop and bool(held), rng.randrange(256)
            ctx.set(dut.push, push)
            ctx.set(dut.w_data.value, value)
            ctx.set(dut.pop, pop)
            assert ctx.get(dut.valid) == bool(held)
            if held:
                assert ctx.get(dut.r_data.value) == held[0]
            reached.add(len(held))
            if pop:
                held.popleft()
            if push:
                held.append(value)
            await ctx.tick()

    simulate(dut, bench)
    assert {0, depth} <= reached, f"seed {depth}"
