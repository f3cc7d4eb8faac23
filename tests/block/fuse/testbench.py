"""Testbench of a FUSE unit with models of its memories."""

import random
from dataclasses import dataclass

import numpy as np

from hw.config import MlaConfig
from hw.memory.ports import ACC_READ_LATENCY, SP_READ_LATENCY
from hw.units.fuse import FuseUnit
from tests.block.fuse.commands import payload
from tests.numerics.reference import wrap
from tests.support.sp_port import SpPort
from tests.support.testbench import Testbench, shared_block

EVENTS = ("fuse_points", "fuse_results", "fuse_scaled", "fuse_tables", "fuse_residuals", "fuse_reduced")


@dataclass
class Retirement:
    """Values that the unit reported when a command retired, and the cycle of the retirement."""

    cycle: int
    tag: int
    statistics: tuple[int, int, int, int]
    events: dict[str, int]


class FuseTestbench(Testbench):
    """Testbench of a FUSE unit whose memory ports refuse accesses at random.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the unit.
    rng : random.Random
        Source of the memory contents and of refused accesses.
    refuse : float
        Probability that a port refuses an access in a cycle.
    """

    def __init__(self, config: MlaConfig, rng: random.Random, refuse: float = 0.0):
        super().__init__(shared_block(FuseUnit, config))
        self.config, self.rng, self.refuse = config, rng, refuse
        self.finished: list[Retirement] = []
        self.started: list[int] = []
        c = config
        draw = np.random.default_rng(self.rng.getrandbits(32))
        self.sp = draw.integers(0, 256, c.sp_bytes, np.uint8)
        scale = draw.integers(1, 32, (c.acc_rows, 1))
        self.acc = (draw.integers(-(1 << 31), 1 << 31, (c.acc_rows, c.n)) >> (31 - scale)).astype(np.int32)
        self.params = draw.integers(0, 256, (c.param_slots, 16 * c.n), np.uint8)
        exponents = draw.integers(-12, 4, (c.param_slots, c.n), np.int8)
        self.params[:, 8 * c.n : 9 * c.n] = exponents.view(np.uint8)
        self.tables = draw.integers(-(1 << 15), 1 << 15, (c.table_slots, 256), np.int16)

    def run(self, commands: list[dict[str, int]]) -> None:
        """Load slots and tables, run the commands, and return when all have retired."""

        async def testbench(ctx) -> None:
            await self._load(ctx, self.dut)
            await self._serve(ctx, self.dut, commands)

        self.simulate(testbench)

    async def _load(self, ctx, dut: FuseUnit) -> None:
        n = self.config.n
        for table, image in ((0, self.params.reshape(-1)), (1, self.tables.view(np.uint8).reshape(-1))):
            for address in range(0, len(image), n):
                ctx.set(dut.slot_write.valid, 1)
                ctx.set(dut.slot_write.table, table)
                ctx.set(dut.slot_write.addr, address)
                ctx.set(dut.slot_write.data, int.from_bytes(image[address : address + n].tobytes(), "little"))
                await ctx.tick()
        ctx.set(dut.slot_write.valid, 0)

    async def _serve(self, ctx, dut: FuseUnit, commands: list[dict[str, int]]) -> None:
        sp_reads: list[int] = [0] * SP_READ_LATENCY
        acc_reads: list[int] = [0] * ACC_READ_LATENCY
        waiting = list(enumerate(commands))
        events: dict[str, int] = dict.fromkeys((*EVENTS, "fuse_saturations"), 0)
        cycle = 0
        self._reader = SpPort(dut.sp_read, self.rng, self.refuse)
        self._writer = SpPort(dut.sp_write, self.rng)  # writes by FUSE are never refused
        while len(self.finished) < len(commands):
            ctx.set(dut.sp_read.data, sp_reads[0])
            ctx.set(dut.acc_read.data, acc_reads[0])
            for port in (dut.acc_read, dut.acc_write):
                ctx.set(port.ready, self.rng.random() >= self.refuse)
            for port in (self._reader, self._writer):
                port.drive(ctx)
            ctx.set(dut.cmd.valid, bool(waiting))
            if waiting:
                ctx.set(dut.cmd.payload, payload(waiting[0][1], waiting[0][0] % 64))
            sp_reads = [*sp_reads[1:], self._read_sp(ctx, dut)]
            acc_reads = [*acc_reads[1:], self._read_acc(ctx, dut)]
            self._write(ctx, dut)
            if waiting and ctx.get(dut.cmd.ready):
                waiting.pop(0)
                self.started.append(cycle)
            for name in EVENTS:
                events[name] += ctx.get(dut.events[name])
            events["fuse_saturations"] += ctx.get(dut.out_events.fuse_saturations)
            if ctx.get(dut.done):
                statistics = tuple(ctx.get(v) for v in (dut.rows, dut.zeros, dut.min, dut.max))
                statistics = (*statistics[:2], wrap(statistics[2]), wrap(statistics[3]))
                self.finished.append(Retirement(cycle, ctx.get(dut.active_tag), statistics, events))
                events = dict.fromkeys(events, 0)
            await ctx.tick()
            cycle += 1
            assert cycle < 2000 * len(commands), "the unit hangs"

    def _read_sp(self, ctx, dut: FuseUnit) -> int:
        n = self.config.n
        if granted := self._reader.granted(ctx):
            (address,) = granted
            return int.from_bytes(self.sp[address : address + n].tobytes(), "little")
        return self.rng.getrandbits(8 * n)

    def _read_acc(self, ctx, dut: FuseUnit) -> int:
        port, n = dut.acc_read, self.config.n
        if ctx.get(port.valid) and ctx.get(port.ready):
            return int.from_bytes(self.acc[ctx.get(port.row)].tobytes(), "little")
        return self.rng.getrandbits(32 * n)

    def _write(self, ctx, dut: FuseUnit) -> None:
        n = self.config.n
        if granted := self._writer.granted(ctx):
            address, data, mask = granted
            for i in range(n):
                if mask >> i & 1:
                    self.sp[address + i] = data >> (8 * i) & 255
        port = dut.acc_write
        if ctx.get(port.valid) and ctx.get(port.ready):
            row, data, mask = ctx.get(port.row), ctx.get(port.data), ctx.get(port.mask)
            for lane in range(n):
                if mask >> lane & 1:
                    self.acc[row, lane] = wrap(data >> (32 * lane))
