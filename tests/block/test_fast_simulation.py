"""The faster functions of the simulator compute what those of Amaranth compute."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from amaranth.hdl import ClockDomain, ClockSignal, Elaboratable, Module, ResetSignal, Signal, signed
from amaranth.lib.data import ArrayLayout
from amaranth.lib.memory import Memory
from amaranth.sim import Simulator

from tests.support import fast_simulation


@contextmanager
def original() -> Iterator[None]:
    """Use Amaranth's own functions inside the `with` block."""
    fast_simulation.uninstall()
    try:
        yield
    finally:
        fast_simulation.install()


class Mixture(Elaboratable):
    """Design with all that the simulator distinguishes: memories, parts of signals, signed values, two domains."""

    def __init__(self) -> None:
        self.i, self.select, self.clear = Signal(8), Signal(3), Signal()
        self.parts, self.total, self.other = Signal(ArrayLayout(4, 4)), Signal(signed(12)), Signal(8)
        self.read, self.waiting, self.answer, self.halves = Signal(8), Signal(), Signal(8), Signal(8)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.domains.slow = ClockDomain()
        m.d.comb += [ClockSignal("slow").eq(self.total[0]), ResetSignal("slow").eq(0)]
        m.submodules.memory = memory = Memory(shape=8, depth=8, init=range(8))
        write = memory.write_port(granularity=4)
        read, at_once = memory.read_port(transparent_for=(write,)), memory.read_port(domain="comb")
        m.d.comb += [
            write.addr.eq(self.select),
            write.data.eq(self.i),
            write.en.eq(self.i[:2]),
            read.addr.eq(self.select ^ 1),
            read.en.eq(self.i[3]),
            at_once.addr.eq(self.i),
            self.read.eq(read.data + at_once.data),
        ]
        m.submodules.half = half = Module()
        m.d.comb += self.halves[:4].eq(self.select)
        half.d.sync += self.halves[4:].eq(self.i)
        m.d.sync += self.parts[self.select[:2]].eq(self.i)
        with m.Switch(self.select):
            with m.Case("1--"):
                m.d.sync += self.total.eq(self.total - self.i.as_signed())
            with m.Case(1, 2):
                m.d.sync += self.total[2:6].eq(self.parts[1])
            with m.Default():
                m.d.comb += self.waiting.eq(self.i.any())
        m.d.slow += self.other.eq(self.other + self.parts[0])
        with m.If(self.clear):
            m.d.sync += self.total.eq(-1)
        with m.FSM():
            with m.State("idle"), m.If(self.i[0]):
                m.next = "busy"
            with m.State("busy"):
                m.d.comb += self.waiting.eq(1)
                m.next = "idle"
        return m


def trace(seed: int, runs: int = 1) -> list[tuple[int, ...]]:
    """Return the values of all signals in each cycle of a simulation with random inputs."""
    dut, found = Mixture(), []
    simulator = Simulator(dut)
    simulator.add_clock(1e-6)

    async def answer(ctx) -> None:
        async for value, waiting in ctx.changed(dut.total, dut.waiting):
            ctx.set(dut.answer, (value ^ waiting) & 0xFF)

    async def drive(ctx) -> None:
        rng = random.Random(seed)
        for _ in range(200):
            for signal in (dut.i, dut.select, dut.clear):
                if rng.randrange(3):
                    ctx.set(
                        signal,
                        rng.getrandbits(len(signal)) if signal is not dut.clear else rng.random() < 0.1,
                    )
            found.append(tuple(ctx.get(each) for each in (dut.waiting, dut.read, dut.answer, dut.halves)))
            sampled = await ctx.tick().sample(dut.total, dut.other, dut.read, dut.answer, *dut.parts)
            found.append(tuple(map(int, sampled[2:])))

    async def wait(ctx) -> None:
        for _ in range(20):
            await ctx.posedge(dut.total[3])
            found.append((ctx.get(dut.total),))

    simulator.add_process(answer)
    simulator.add_testbench(drive)
    simulator.add_testbench(wait, background=True)
    for run in range(runs):
        if run:
            simulator.reset()
        simulator.run()
    return found


@pytest.mark.parametrize("seed", range(4))
def test_all_values_are_equal(seed: int) -> None:
    faster = trace(seed, runs=2)
    with original():
        expected = trace(seed, runs=2)
    assert faster == expected
    assert len({*expected}) > 200


def test_installed_functions_are_used(monkeypatch) -> None:
    """The sources of Amaranth's processes have the form that `faster_source` expects."""
    sources = []
    monkeypatch.setattr(fast_simulation, "faster_source", lambda code: sources.append(code) or code)
    trace(0)
    monkeypatch.undo()
    changed = [fast_simulation.faster_source(code) for code in sources]
    assert len(changed) > 4 and all("slots[" in code for code in sources)
    assert not any("slots[" in code for code in changed)
    assert sum(code.count(".next != next_") for code in changed) == sum(
        code.count(".update(") for code in sources
    )
