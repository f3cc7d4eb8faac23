"""STORE matches docs/machine.md for random commands, stalls, errors and aborts, and keeps the bus busy."""

import random
from collections import deque
from dataclasses import replace

import pytest

from hw.config import MlaConfig
from hw.isa.enums import Unit
from hw.memory.ports import SP_READ_LATENCY
from hw.units.store.unit import StoreUnit
from tests.block.units.dma_models import MACHINES, WriteSlave, set_command, store_command, store_writes
from tests.support.sp_port import SpPort
from tests.support.testbench import Testbench, shared_block

DRAM_BYTES = 32768


def small(n: int, pipelined: bool = False, bus: int = 0) -> MlaConfig:
    config = MlaConfig(n=n, bus_bytes=bus, sp_bytes=128 * n, acc_bytes=256 * n, max_burst=16)
    return replace(config, fuse_rate=4, serial_commands=1, pipelined=1) if pipelined else config


class StoreTestbench(Testbench):
    """Testbench that runs commands through a StoreUnit whose scratchpad is a byte array."""

    def __init__(
        self,
        config: MlaConfig,
        slave: WriteSlave,
        rng: random.Random,
        *,
        refuse: float = 0.0,
        hold_tags: bool = False,
    ):
        self.config, self.slave, self.rng, self.hold_tags = config, slave, rng, hold_tags
        super().__init__(shared_block(StoreUnit, config))
        self.check_contract(self.dut.aw, self.dut.w)
        self.sp_read = SpPort(self.dut.sp_read, rng, refuse)
        self.memory = rng.randbytes(config.sp_bytes)
        self.pipe: deque = deque([None] * SP_READ_LATENCY)
        self.done_tags: list[int] = []
        self.events: dict[str, int] = {}
        self.bytes_of_tag: dict[int, int] = {}
        self.errors: list[int] = []
        self.cycle = 0
        self.on_done = lambda index: None

    async def cycle_once(self, ctx) -> bool:
        """Advance by one clock cycle; return True if a command was accepted in this cycle."""
        dut, slave = self.dut, self.slave
        slave.drive(ctx, dut.aw, dut.w, dut.b)
        self.sp_read.drive(ctx)
        row = self.pipe.popleft()
        ctx.set(dut.sp_read.data, self.rng.getrandbits(8 * self.config.n) if row is None else row)
        if self.hold_tags:
            ctx.set(dut.tag_busy, self.rng.random() < 0.8)
        slave.sample(ctx, dut.aw, dut.w, dut.b)
        granted = self.sp_read.granted(ctx)
        self.pipe.append(
            int.from_bytes(
                bytes(self.memory[(granted[0] + i) % self.config.sp_bytes] for i in range(self.config.n)),
                "little",
            )
            if granted
            else None
        )
        tag, events = ctx.get(dut.active_tag), ctx.get(dut.events)
        for name in ("store_bytes", "store_requests", "store_beats", "store_stall_bank", "store_stall_bus"):
            self.events[name] = self.events.get(name, 0) + getattr(events, name)
        self.bytes_of_tag[tag] = self.bytes_of_tag.get(tag, 0) + events.store_bytes
        if ctx.get(dut.error):
            self.errors.append(ctx.get(dut.error_addr))
        if ctx.get(dut.done):
            assert ctx.get(dut.active)
            self.done_tags.append(tag)
            self.on_done(len(self.done_tags) - 1)
        taken = bool(ctx.get(dut.cmd.valid) and ctx.get(dut.cmd.ready))
        self.cycle += 1
        await ctx.tick()
        return taken

    async def send(self, ctx, commands: list[dict]) -> None:
        """Offer the commands one after another."""
        for command in commands:
            set_command(ctx, self.dut.cmd.payload, Unit.STORE, command)
            ctx.set(self.dut.cmd.valid, 1)
            while not await self.cycle_once(ctx):
                pass
        ctx.set(self.dut.cmd.valid, 0)

    async def finish(self, ctx, limit: int = 20000) -> None:
        """Run until the unit is idle."""
        while ctx.get(self.dut.busy):
            limit -= 1
            assert limit, "the unit does not come to rest"
            await self.cycle_once(ctx)
        for _ in range(4):
            await self.cycle_once(ctx)


def random_command(rng: random.Random, config: MlaConfig) -> dict:
    """Return a random legal command whose accesses stay within DRAM and memory."""
    n, size = config.n, config.sp_bytes
    while True:
        command = store_command(
            dram=rng.randrange(8192, 24576),
            len=rng.choice([1, n, rng.randrange(1, 3 * n), rng.randrange(1, 40 * n)]),
            y_count=rng.choice([1, 2, rng.randrange(1, 6)]),
            z_count=rng.choice([1, 1, 2, 3]),
            dram_y=rng.choice([n, rng.randrange(-300, 300)]),
            dram_z=rng.randrange(-2000, 2000),
            src=rng.randrange(size),
            src_y=rng.randrange(-3 * n, 3 * n),
            src_z=rng.randrange(-size // 4, size // 4),
            tag=rng.randrange(3),
        )
        ends = [
            command["src"] + z * command["src_z"] + y * command["src_y"]
            for z in (0, command["z_count"] - 1)
            for y in (0, command["y_count"] - 1)
        ]
        if min(ends) >= 0 and max(ends) + command["len"] <= size:
            return command


@pytest.mark.parametrize(("n", "bus", "pipelined"), MACHINES)
@pytest.mark.parametrize("smooth", [True, False])
def test_random_commands(n: int, bus: int, pipelined: bool, smooth: bool) -> None:
    seed = 900 * n + smooth + 10 * (bus > n)
    print("seed", seed)
    rng = random.Random(seed)
    config = small(n, pipelined, bus)
    dram = bytearray(rng.randbytes(DRAM_BYTES))
    golden = bytearray(dram)
    commands = [random_command(rng, config) for _ in range(40)]
    slave = WriteSlave(bus, dram, rng, latency=rng.choice([1, 20]), stall=0 if smooth else 0.3)
    bench = StoreTestbench(config, slave, rng, refuse=0 if smooth else 0.3, hold_tags=not smooth)
    footprints = [store_writes(c, bench.memory) for c in commands]
    for footprint in footprints:
        for addr, value in footprint.items():
            golden[addr] = value

    def visible(index: int) -> None:
        later = set().union(*footprints[index + 1 :])
        assert all(addr in later or dram[addr] == value for addr, value in footprints[index].items()), index

    bench.on_done = visible

    async def run(ctx) -> None:
        await bench.send(ctx, commands)
        await bench.finish(ctx)
        assert dram == golden
        assert bench.done_tags == [c["meta"]["tag"] for c in commands]
        expected: dict[int, int] = {}
        for c in commands:
            tag = c["meta"]["tag"]
            expected[tag] = expected.get(tag, 0) + c["len"] * c["y_count"] * c["z_count"]
        assert {tag: count for tag, count in bench.bytes_of_tag.items() if count} == expected
        assert bench.events["store_requests"] == len(slave.bursts)
        assert bench.events["store_beats"] == slave.beats

    bench.simulate(run)


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize(("n", "bus"), [(4, 4), (16, 16), (4, 8), (16, 32)])
def test_fills_the_bus(n: int, bus: int, strided: bool) -> None:
    """At least 99% of the cycles from the first to the last beat of two commands of 500 rows carry n bytes."""
    rng = random.Random(5)
    config = MlaConfig(n=n, bus_bytes=bus, sp_bytes=1024 * n, acc_bytes=256 * n)
    dram = bytearray(1 << 17)
    slave = WriteSlave(bus, dram, rng, latency=400)
    beats = 1000 if strided else 1000 * n // bus
    bench = StoreTestbench(config, slave, rng)
    command = (
        store_command(dram=0, src=3, len=n, y_count=500, dram_y=2 * n, src_y=n)
        if strided
        else store_command(src=3, len=500 * n)
    )
    seen: list[int] = []

    async def run(ctx) -> None:
        sending = [command, {**command, "dram": 1 << 16}]
        set_command(ctx, bench.dut.cmd.payload, Unit.STORE, sending.pop(0))
        ctx.set(bench.dut.cmd.valid, 1)
        while slave.beats < beats:
            before = slave.beats
            if await bench.cycle_once(ctx):
                if sending:
                    set_command(ctx, bench.dut.cmd.payload, Unit.STORE, sending.pop(0))
                else:
                    ctx.set(bench.dut.cmd.valid, 0)
            if slave.beats > before:
                seen.append(bench.cycle)
            assert bench.cycle < 3000
        await bench.finish(ctx)
        assert (seen[-1] - seen[0] + 1) * 99 <= 100 * 1000
        assert len(bench.done_tags) == 2

    bench.simulate(run)


def test_errors_and_abort() -> None:
    """An error is reported with its burst; aborted bursts end with their write strobes deasserted, and the unit
    recovers.
    """
    for seed in range(30):
        rng = random.Random(seed)
        config = small(rng.choice([4, 8]), bus=rng.choice([0, 8]))
        dram = bytearray(DRAM_BYTES)
        slave = WriteSlave(config.beat_bytes, dram, rng, rng.choice([1, 30]), rng.choice([0, 0.5]))
        bench = StoreTestbench(config, slave, rng, refuse=rng.choice([0, 0.5]))

        async def run(ctx, bench=bench, slave=slave, rng=rng, config=config, dram=dram) -> None:
            for _ in range(3):
                await bench.send(ctx, [random_command(rng, config) for _ in range(3)])
                for _ in range(rng.randrange(40)):
                    await bench.cycle_once(ctx)
                ctx.set(bench.dut.abort, 1)
                for _ in range(8):  # data that was read before the abort is sent unchanged
                    await bench.cycle_once(ctx)
                strobes, dones = slave.strobes, len(bench.done_tags)
                if rng.random() < 0.5:
                    ctx.set(bench.dut.abort, 0)
                spare = 8 if slave.stall else 0
                await bench.finish(ctx)
                assert slave.strobes - strobes <= spare * config.beat_bytes
                assert len(bench.done_tags) == dones and not slave.open and not slave.answers
                ctx.set(bench.dut.abort, 0)
                await bench.cycle_once(ctx)
            command = random_command(rng, config)
            first = command["dram"] // config.beat_bytes * config.beat_bytes
            slave.error_at = {first}
            wanted = store_writes(command, bench.memory)
            await bench.send(ctx, [command])
            await bench.finish(ctx)
            assert all(dram[a] == v for a, v in wanted.items())
            assert first in bench.errors and set(bench.errors) == {first}

        print("seed", seed)
        bench.simulate(run)
