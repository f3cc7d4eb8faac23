"""LOAD matches docs/machine.md for random commands, stalls, errors and aborts, and keeps the bus busy."""

import random
from dataclasses import replace
from typing import Any

import pytest

from hw.config import MlaConfig
from hw.isa.enums import Unit
from hw.units.load.unit import LoadUnit
from tests.block.units.dma_models import (
    MACHINES,
    PARAM,
    SP,
    TABLE,
    ReadSlave,
    load_command,
    load_writes,
    set_command,
)
from tests.support.sp_port import SpPort
from tests.support.testbench import Testbench, shared_block

DRAM_BYTES = 32768


def small(n: int, pipelined: bool = False, bus: int = 0) -> MlaConfig:
    config = MlaConfig(
        n=n, bus_bytes=bus, sp_bytes=128 * n, acc_bytes=256 * n, max_burst=16, param_slots=8, table_slots=2
    )
    return replace(config, fuse_rate=4, serial_commands=1, pipelined=1) if pipelined else config


class LoadTestbench(Testbench):
    """Testbench that runs commands through a LoadUnit and applies its writes to byte arrays."""

    def __init__(
        self,
        config: MlaConfig,
        slave: ReadSlave,
        rng: random.Random,
        *,
        refuse: float = 0.0,
        hold_tags: bool = False,
    ):
        self.config, self.slave, self.rng, self.hold_tags = config, slave, rng, hold_tags
        super().__init__(shared_block(LoadUnit, config))
        self.check_contract(self.dut.ar)
        self.sp_write = SpPort(self.dut.sp_write, rng, refuse)
        self.memory = {
            SP: bytearray(rng.randbytes(config.sp_bytes)),
            PARAM: bytearray(16 * config.n * 8),
            TABLE: bytearray(1024),
        }
        self.dones: list[int] = []
        self.events: dict[str, int] = {}
        self.bytes_of_tag: dict[int, int] = {}
        self.done_tags: list[int] = []
        self.errors: list[int] = []
        self.tag_changes: list[int] = []
        self.cycle = 0
        self.on_done: Any = None

    def _writes(self, ctx) -> None:
        dut, n = self.dut, self.config.n
        if write := self.sp_write.granted(ctx):
            self.write(self.memory[SP], write)
        if ctx.get(dut.slot_write.valid):
            addr = ctx.get(dut.slot_write.addr)
            assert addr % n == 0
            memory = self.memory[TABLE if ctx.get(dut.slot_write.table) else PARAM]
            memory[addr : addr + n] = ctx.get(dut.slot_write.data).to_bytes(n, "little")

    def write(self, memory: bytearray, write: tuple[int, ...]) -> None:
        """Apply a write to the scratchpad."""
        addr, data, mask, pair, following, *more = write
        n = self.config.n
        assert not pair or addr % n == 0
        rows = ((addr, data, mask), (addr + n, following, *(more or [mask])))
        for start, each, chosen in rows if pair else rows[:1]:
            row = each.to_bytes(n, "little")
            for i in range(n):
                if chosen >> i & 1:
                    memory[(start + i) % self.config.sp_bytes] = row[i]

    def _observe(self, ctx) -> None:
        dut = self.dut
        tag = ctx.get(dut.active_tag)
        if not self.tag_changes or self.tag_changes[-1] != tag:
            self.tag_changes.append(tag)
        events = ctx.get(dut.events)
        for name in (
            "load_bytes",
            "load_expanded",
            "load_requests",
            "load_beats",
            "load_latency",
            "load_stall_bank",
            "load_stall_bus",
        ):
            self.events[name] = self.events.get(name, 0) + getattr(events, name)
        self.bytes_of_tag[tag] = self.bytes_of_tag.get(tag, 0) + events.load_bytes
        if ctx.get(dut.error):
            self.errors.append(ctx.get(dut.error_addr))
        if ctx.get(dut.done):
            assert ctx.get(dut.active)
            self.dones.append(self.cycle)
            self.done_tags.append(tag)
            if self.on_done:
                self.on_done(len(self.dones) - 1)

    async def cycle_once(self, ctx) -> bool:
        """Advance by one clock cycle; return True if a command was accepted in this cycle."""
        self.slave.drive(ctx, self.dut.ar, self.dut.r)
        self.sp_write.drive(ctx)
        if self.hold_tags:
            ctx.set(self.dut.tag_busy, self.rng.random() < 0.8)
        self.slave.sample(ctx, self.dut.ar, self.dut.r)
        self._observe(ctx)
        self._writes(ctx)
        taken = bool(ctx.get(self.dut.cmd.valid) and ctx.get(self.dut.cmd.ready))
        self.cycle += 1
        await ctx.tick()
        return taken

    async def send(self, ctx, commands: list[dict]) -> None:
        """Offer the commands one after another."""
        for command in commands:
            set_command(ctx, self.dut.cmd.payload, Unit.LOAD, command)
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
    """Return a random legal command of any kind whose accesses stay within DRAM and memory."""
    n, size = config.n, config.sp_bytes
    while True:
        kind = rng.choice(["plain", "plain", "fill", "transpose", "packed", "slot"])
        command = load_command(
            dram=rng.randrange(8192, 24576),
            len=rng.choice([1, n, rng.randrange(1, 3 * n), rng.randrange(1, 5 * n)]),
            y_count=rng.choice([1, 2, rng.randrange(1, 6)]),
            z_count=rng.choice([1, 1, 2, 3]),
            dram_y=rng.choice([n, rng.randrange(-300, 300)]),
            dram_z=rng.randrange(-2000, 2000),
            dst=rng.randrange(size),
            dst_y=rng.randrange(-3 * n, 3 * n),
            dst_z=rng.randrange(-size // 4, size // 4),
            tag=rng.randrange(4),
            fill_value=rng.randrange(256),
        )
        word = command["word"]
        limit = size
        if kind == "fill":
            word["fill"] = 1
        elif kind == "packed":
            word["packed"] = 1
            command["len"] = rng.choice([1, n, rng.randrange(1, 3 * n), rng.randrange(1, 20 * n)])
            command["z_count"] = rng.choice([1, rng.randrange(1, 12)])
            command["dst_z"] = rng.choice([2 * n, rng.randrange(-4, 4) * n])
            for name in ("dst", "dst_y"):
                command[name] = command[name] // n * n
        elif kind == "transpose":
            word["transpose"] = 1
            command["len"], command["y_count"] = rng.randrange(1, n + 1), rng.randrange(1, n + 1)
        elif kind == "slot":
            word["space"], limit = rng.choice([(PARAM, 128 * n), (TABLE, 1024)])
            word["fill"] = int(rng.random() < 0.2)
            for name in ("len", "dst", "dst_y", "dst_z"):
                command[name] = command[name] // n * n
            command["len"] = max(command["len"], n)
        touched = [a for a, _ in load_writes(command, bytes(DRAM_BYTES), n)]
        if min(touched) >= 0 and max(touched) < limit:
            return command


@pytest.mark.parametrize(("n", "bus", "pipelined"), MACHINES)
@pytest.mark.parametrize("smooth", [True, False])
def test_random_commands(n: int, bus: int, pipelined: bool, smooth: bool) -> None:
    seed = 100 * n + smooth + 10 * (bus > n)
    print("seed", seed)
    rng = random.Random(seed)
    config = small(n, pipelined, bus)
    dram = rng.randbytes(DRAM_BYTES)
    commands = [random_command(rng, config) for _ in range(50)]
    slave = ReadSlave(bus, dram, rng, latency=rng.choice([1, 20]), stall=0 if smooth else 0.3)
    bench = LoadTestbench(config, slave, rng, refuse=0 if smooth else 0.3, hold_tags=not smooth)
    golden = {space: bytearray(memory) for space, memory in bench.memory.items()}
    footprints = [{(c["word"]["space"], a): v for a, v in load_writes(c, dram, n)} for c in commands]
    for footprint in footprints:
        for (space, addr), value in footprint.items():
            golden[space][addr] = value

    def visible(index: int) -> None:
        later = set().union(*footprints[index + 1 :])
        for (space, addr), value in footprints[index].items():
            assert (space, addr) in later or bench.memory[space][addr] == value, (index, space, addr)

    bench.on_done = visible

    async def run(ctx) -> None:
        await bench.send(ctx, commands)
        await bench.finish(ctx)
        assert bench.memory == golden
        assert bench.done_tags == [c["meta"]["tag"] for c in commands]
        expected: dict[int, int] = {}
        for c in commands:
            if not c["word"]["fill"]:
                tag = c["meta"]["tag"]
                planes = 1 if c["word"]["packed"] else c["z_count"]
                expected[tag] = expected.get(tag, 0) + c["len"] * c["y_count"] * planes
        assert {tag: count for tag, count in bench.bytes_of_tag.items() if count} == expected
        packed = [c for c in commands if c["word"]["packed"]]
        groups = sum(c["y_count"] * c["z_count"] for c in packed)
        assert bench.events["load_expanded"] == 2 * config.n * groups
        assert bench.events["load_requests"] == len(bench.slave.bursts)
        assert bench.events["load_beats"] == bench.slave.beats

    bench.simulate(run)


@pytest.mark.parametrize("kind", ["contiguous", "aligned", "strided", "unaligned", "transposed", "packed"])
@pytest.mark.parametrize(("n", "bus"), [(4, 4), (16, 16), (4, 8), (16, 32)])
def test_fills_the_bus(n: int, bus: int, kind: str) -> None:
    """At a latency of 400 cycles, at least 99% of the cycles from the first to the last beat carry a beat.

    On a bus of 2 * n bytes, a beat of lines that do not go to multiples of n takes two cycles. (Beats of transposed
    lines of n bytes are of one cycle.)
    """
    rng = random.Random(5)
    config = MlaConfig(n=n, bus_bytes=bus, sp_bytes=1024 * n, acc_bytes=256 * n)
    dram = bytearray(rng.randbytes(1 << 17))
    if kind == "packed":  # groups of 8 bits each, the longest ones: 2 * n + 1 bytes
        for place in range(0, len(dram), 2 * n + 1):
            dram[place] = 0x88
    slave = ReadSlave(bus, bytes(dram), rng, latency=400)
    bench = LoadTestbench(config, slave, rng)
    groups = 480 // (2 * n + 1) * n
    command = {
        "contiguous": load_command(dst=3, len=500 * n),
        "aligned": load_command(dst=n, dram=3 * n, len=500 * n - 4),
        "unaligned": load_command(dst=3, dram=3, len=500 * n - 4),
        "strided": load_command(dst=3, len=n, y_count=500, dram_y=2 * n, dst_y=n),
        "transposed": load_command(
            len=n, y_count=n, z_count=512 // n, dram_y=3 * n, dram_z=n, dst_y=n, dst_z=n * n
        ),
        "packed": load_command(packed=1, len=groups * (2 * n + 1), z_count=groups, dst_z=2 * n),
    }[kind]
    second = (1 << 16) // (2 * n + 1) * (2 * n + 1) if kind == "packed" else 1 << 16
    expected = [{**command, "dram": command["dram"] + base} for base in (0, second)]
    lines = [
        (each["dram"] + z * each["dram_z"] + y * each["dram_y"], each["len"])
        for each in expected
        for z in range(1 if kind == "packed" else each["z_count"])
        for y in range(each["y_count"])
    ]
    beats = sum((start + size - 1) // bus - start // bus + 1 for start, size in lines)
    # Two cycles for beats of two rows at an address that is not a multiple of n.
    cycles = beats * (bus // n) if kind in ("contiguous", "unaligned") else beats
    seen: list[int] = []

    async def run(ctx) -> None:
        sending = list(expected)
        set_command(ctx, bench.dut.cmd.payload, Unit.LOAD, sending.pop(0))
        ctx.set(bench.dut.cmd.valid, 1)
        while slave.beats < beats:
            before = slave.beats
            if await bench.cycle_once(ctx):
                if sending:
                    set_command(ctx, bench.dut.cmd.payload, Unit.LOAD, sending.pop(0))
                else:
                    ctx.set(bench.dut.cmd.valid, 0)
            if slave.beats > before:
                seen.append(bench.cycle)
            assert bench.cycle < 3000
        await bench.finish(ctx)
        print(seen[-1] - seen[0] + 1, beats)
        assert (seen[-1] - seen[0] + 1) * 99 <= 100 * cycles
        assert len(bench.dones) == 2
        if kind == "strided":
            assert 400 <= ctx.get(bench.dut.in_flight_max) <= 410

    bench.simulate(run)


def test_latency_and_in_flight_counters() -> None:
    """The recorded maxima and the sum of latencies equal those of the slave's schedule."""
    rng = random.Random(1)
    config = small(4)
    slave = ReadSlave(4, rng.randbytes(DRAM_BYTES), rng, latency=30)
    bench = LoadTestbench(config, slave, rng)

    async def run(ctx) -> None:
        await bench.send(ctx, [load_command(len=16)])
        await bench.finish(ctx)
        assert ctx.get(bench.dut.in_flight_max) == 1
        assert (
            ctx.get(bench.dut.latency_max) == bench.events["load_latency"] == 33
        )  # four beats, the first after 30 cycles

    bench.simulate(run)


def test_bus_errors_are_reported_and_not_written() -> None:
    """A beat with an error is reported with its address and not written; the command still retires."""
    rng = random.Random(3)
    dram = rng.randbytes(DRAM_BYTES)
    for seed in range(12):
        rng = random.Random(seed)
        print("seed", seed)
        config = small(8, bus=8 << seed % 2)
        n = config.beat_bytes
        slave = ReadSlave(n, dram, rng, latency=rng.choice([1, 9]), stall=rng.choice([0, 0.4]))
        bench = LoadTestbench(config, slave, rng, refuse=rng.choice([0, 0.4]))
        commands = [load_command(dram=4096 - 37, dst=i * 256, len=200) for i in range(4)]
        slave.error_at = {(4096 - 40) // n * n + n * rng.randrange(208 // n) for _ in range(3)}

        async def run(ctx, bench=bench, slave=slave, commands=commands, n=n) -> None:
            expected = bytearray(bench.memory[SP])
            for command in commands:
                for i in range(command["len"]):
                    if (command["dram"] + i) // n * n not in slave.error_at:
                        expected[command["dst"] + i] = dram[command["dram"] + i]
            await bench.send(ctx, commands)
            await bench.finish(ctx)
            assert bench.memory[SP] == expected
            assert bench.errors == sorted(slave.error_at) * 4
            assert len(bench.dones) == 4

        bench.simulate(run)


def test_abort() -> None:
    """After an abort, writes stop, the bus becomes idle, and the unit accepts new commands."""
    for seed in range(30):
        rng = random.Random(seed)
        print("seed", seed)
        config = small(rng.choice([4, 8]), bus=rng.choice([0, 8]))
        dram = rng.randbytes(DRAM_BYTES)
        slave = ReadSlave(
            config.beat_bytes, dram, rng, latency=rng.choice([1, 30]), stall=rng.choice([0, 0.5])
        )
        bench = LoadTestbench(config, slave, rng, refuse=rng.choice([0, 0.5]))

        async def run(ctx, bench=bench, slave=slave, rng=rng, config=config, dram=dram) -> None:
            for _ in range(3):
                await bench.send(ctx, [random_command(rng, config) for _ in range(3)])
                for _ in range(rng.randrange(40)):
                    await bench.cycle_once(ctx)
                ctx.set(bench.dut.abort, 1)
                await bench.cycle_once(ctx)
                before = {space: bytearray(memory) for space, memory in bench.memory.items()}
                if bench.sp_write.waits:
                    bench.write(before[SP], bench.sp_write.waits)  # accepted before the abort
                if rng.random() < 0.5:
                    ctx.set(bench.dut.abort, 0)
                dones = len(bench.dones)
                await bench.finish(ctx)
                assert before == bench.memory and not slave.queue and len(bench.dones) == dones
                ctx.set(bench.dut.abort, 0)
                await bench.cycle_once(ctx)
            command = random_command(rng, config)
            wanted = dict(load_writes(command, dram, config.n))
            await bench.send(ctx, [command])
            await bench.finish(ctx)
            assert all(bench.memory[command["word"]["space"]][a] == v for a, v in wanted.items())

        bench.simulate(run)
