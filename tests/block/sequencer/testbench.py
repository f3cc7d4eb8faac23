"""The core with its memories, and a driver that runs programs and collects their effects."""

import random

from amaranth.hdl import Elaboratable, Module, Signal, unsigned
from amaranth.lib import data, memory

from hw.config import MlaConfig
from hw.isa.enums import Unit
from hw.sequencer.core import Core
from tests.block.sequencer.interpreter import Outcome, Segment
from tests.support.testbench import Testbench

STATISTICS = {
    "fuse_rows": 17,
    "fuse_zeros": 0,
    "fuse_min": -5 & 0xFFFFFFFF,
    "fuse_max": 0x7FFFFFFF,
    "matrix_zeros": 0x80000000,
    "cycle": 123456,
}
UNITS = [u.name.lower() for u in Unit]


class CoreHarness(Elaboratable):
    """Core, instruction store, operand buffer and segment table."""

    def __init__(self, config: MlaConfig, segments: list[Segment], operands: list[int]):
        self.config, self.segments, self.operands = config, segments, operands
        self.core = Core(config)
        self.transfers = Signal(4)
        self.quiet = Signal()

    def elaborate(self, platform):
        m = Module()
        m.submodules.core = core = self.core
        words = [0] * self.config.wis_words
        for segment in self.segments:
            words[segment.base : segment.base + len(segment.words)] = segment.words
        m.submodules.store = store = memory.Memory(shape=unsigned(64), depth=len(words), init=words)
        m.submodules.buffer = buffer = memory.Memory(shape=unsigned(32), depth=64, init=self.operands)
        fetch, operand = store.read_port(), buffer.read_port()
        m.d.comb += [
            fetch.addr.eq(core.fetch_addr),
            fetch.en.eq(core.fetch_en),
            core.fetch_data.eq(fetch.data),
            operand.addr.eq(core.operand_addr),
            core.operand_data.eq(operand.data),
        ]
        with m.Switch(core.seg_index):
            for i, segment in enumerate(self.segments):
                with m.Case(i):
                    m.d.comb += [
                        core.seg_info.valid.eq(int(segment.valid)),
                        core.seg_info.pinned.eq(int(segment.pinned)),
                        core.seg_info.base.eq(segment.base),
                        core.seg_info.length.eq(len(segment.words)),
                    ]
        for i, name in enumerate(UNITS):
            port = getattr(core, name)
            m.d.comb += self.transfers[i].eq(port.valid & port.ready)
        m.d.comb += self.quiet.eq(
            ~self.transfers.any() & ~core.halted & ~core.trap.valid & ~core.seq_take.any()
        )
        return m


class CoreTestbench(Testbench):
    """Testbench that runs programs one after another in one simulation."""

    def __init__(self, harness: CoreHarness, seed: int, stalls: bool = True):
        super().__init__(harness)
        self.core, self.random, self.stalls = harness.core, random.Random(seed), stalls
        self.cycles: list[int] = []
        self.outcomes: list[Outcome] = []

    def run(self, jobs: list[dict], timeout: int = 4000) -> list[Outcome]:
        async def testbench(ctx):
            core = self.core
            for name, value in STATISTICS.items():
                ctx.set(getattr(core.statistics, name), value)
            ctx.set(core.windows[0].last, 0xFFFFFFFF)
            ctx.set(core.windows[0].perm, 3)
            for job in jobs:
                self.outcomes.append(await self._one(ctx, job, timeout))

        self.simulate(testbench)
        return self.outcomes

    async def _one(self, ctx, job: dict, timeout: int) -> Outcome:
        core, out = self.core, Outcome()
        segment = self.dut.segments[job["segment"]]
        for name, value in (
            ("segment", job["segment"]),
            ("base", segment.base),
            ("length", len(segment.words)),
            ("tag", job["tag"]),
            ("macro", job["macro"]),
            ("operands", job["operands"]),
        ):
            ctx.set(getattr(core.start.payload, name), value)
        ctx.set(core.step_limit, job["limit"])
        ctx.set(core.start.valid, 1)
        assert ctx.get(core.start.ready)
        await ctx.tick()
        ctx.set(core.start.valid, 0)
        cycle = 1
        while True:
            if self.stalls:
                bits = self.random.getrandbits(24)
                ctx.set(core.seq_tokens, bits & 0xFFFF)
                ctx.set(core.unit_idle, bits >> 16 & 15)
                for i, name in enumerate(UNITS):
                    ctx.set(getattr(core, name).ready, bits >> (20 + i) & 1)
            else:
                ctx.set(core.seq_tokens, 0xFFFF)
                ctx.set(core.unit_idle, 15)
                for name in UNITS:
                    ctx.set(getattr(core, name).ready, 1)
            for name in out.classes:
                out.classes[name] += ctx.get(getattr(core, f"micro_{name}"))
            if not ctx.get(self.dut.quiet):
                self._collect(ctx, out, job)
                if ctx.get(core.halted) or ctx.get(core.trap.valid):
                    break
            await ctx.tick()
            cycle += 1
            assert cycle < timeout, f"job {job} does not end, at {ctx.get(core.pc)}"
        out.steps = ctx.get(core.steps)
        self.cycles.append(cycle)
        if ctx.get(core.trap.valid):
            trap = ctx.get(core.trap)
            out.trap = {name: trap[name] for name in ("cause", "pc", "segment", "tag", "address")}
            assert trap["macro"] == job["macro"]
            ctx.set(core.clear, 1)
            await ctx.tick()
            ctx.set(core.clear, 0)
        return out

    def _collect(self, ctx, out: Outcome, job: dict) -> None:
        core = self.core
        if take := ctx.get(core.seq_take):
            assert take & (take - 1) == 0
            out.waits.append(take.bit_length() - 1)
        transfers = ctx.get(self.dut.transfers)
        for i, name in enumerate(UNITS):
            if transfers >> i & 1:
                payload = ctx.get(getattr(core, name).payload)
                fields = {key: _plain(payload[key]) for key in payload.shape().members if key != "meta"}
                meta = {key: payload["meta"][key] for key in ("wait", "signal", "tag")}
                assert payload["meta"]["macro"] == job["macro"] & 0xFF
                out.commands.append((i, fields, meta))


def _plain(value):
    return value.as_bits() if isinstance(value, data.Const) else value
