"""The cocotb testbench of the pins: an AXI slave with errors, commands, and their expected effects."""

import os
import random
from collections.abc import Iterator

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge, with_timeout
from cocotbext.axi import AxiBus, AxiRam
from cocotbext.axi.constants import AxiResp

from hw.isa.enums import Unit
from hw.layouts import command_layout
from tests.block.units.dma_models import load_command, load_writes, store_command, store_writes
from tests.bus.dma_top import CONFIG

#: Lanes, bytes of a beat, bytes of the scratchpad.
N, BEAT, SP_BYTES = CONFIG.n, CONFIG.beat_bytes, CONFIG.sp_bytes
#: DRAM areas: source of LOAD and ring fetches; destination of STORE; destination of completion records.
SOURCE, TARGET, RECORDS, DRAM_BYTES = 0, 1 << 16, 1 << 17, 1 << 18
TRANSACTIONS = int(os.environ.get("PIN_TRANSACTIONS", "10000"))


class FaultyRam(AxiRam):
    """RAM that responds to beats at chosen addresses with SLVERR or DECERR and does not perform their accesses."""

    def __init__(self, bus: AxiBus, clock, reset):
        super().__init__(bus, clock, reset, size=DRAM_BYTES)
        self.faults: dict[int, AxiResp] = {}
        self.read_faults = self.write_faults = 0
        self._hook(self.read_if, "_read", self.read_if.r_channel, "rresp")
        self._hook(self.write_if, "_write", self.write_if.b_channel, "bresp")

    def _hook(self, interface, name: str, channel, field: str) -> None:
        access, send = getattr(interface, name), channel.send
        failed: list[AxiResp] = []

        async def checked(address: int, argument):
            fault = self.faults.get(address // BEAT * BEAT)
            if fault is not None:
                failed.append(fault)
                raise OSError("fault")
            return await access(address, argument)

        async def answered(item) -> None:
            if failed:
                setattr(item, field, failed[0])
                failed.clear()
                if field == "rresp":
                    self.read_faults += 1
                else:
                    self.write_faults += 1
            await send(item)

        setattr(interface, name, checked)
        channel.send = answered

    def stall(self, rng: random.Random, probability: float) -> None:
        """Pause every channel at random."""

        def pauses(seed: int) -> Iterator[bool]:
            own = random.Random(seed)
            while True:
                yield own.random() < probability

        channels = (
            self.write_if.aw_channel,
            self.write_if.w_channel,
            self.write_if.b_channel,
            self.read_if.ar_channel,
            self.read_if.r_channel,
        )
        for channel in channels:
            if probability:
                channel.set_pause_generator(pauses(rng.getrandbits(32)))
            else:
                channel.clear_pause_generator()
                channel.pause = False


class PinsTestbench:
    """The DMA blocks under test, and a copy of the memory contents that they must produce."""

    def __init__(self, dut, seed: int):
        self.dut, self.rng = dut, random.Random(seed)
        dut._log.warning("seed %d", seed)
        self.ram = FaultyRam(AxiBus.from_prefix(dut, "m_axi"), dut.clk, dut.rst)
        self.image = bytearray(self.rng.randbytes(DRAM_BYTES))
        self.ram.write(0, bytes(self.image))
        self.sp = bytearray(SP_BYTES)
        self.fetches = self.records = 0

    async def start(self) -> None:
        """Start the clock, reset, and fill the scratchpad."""
        for name in (
            "load_cmd__valid",
            "store_cmd__valid",
            "fetch_ar__valid",
            "record_aw__valid",
            "record_w__valid",
            "abort",
        ):
            getattr(self.dut, name).value = 0
        self.dut.fetch_r__ready.value = 1
        self.dut.record_b__ready.value = 1
        self.dut.rst.value = 1
        cocotb.start_soon(Clock(self.dut.clk, 2, unit="ns").start())
        await ClockCycles(self.dut.clk, 4)
        self.dut.rst.value = 0
        await ClockCycles(self.dut.clk, 2)
        await self.send(Unit.LOAD, load_command(dram=SOURCE, dst=0, len=SP_BYTES))
        self.sp[:] = self.image[SOURCE : SOURCE + SP_BYTES]
        await self.settle()

    async def _transfer(self, stream: str, payload: int) -> None:
        getattr(self.dut, f"{stream}__payload").value = payload
        valid, ready = getattr(self.dut, f"{stream}__valid"), getattr(self.dut, f"{stream}__ready")
        valid.value = 1
        await RisingEdge(self.dut.clk)
        while not int(ready.value):
            await RisingEdge(self.dut.clk)
        valid.value = 0

    async def send(self, unit: Unit, *commands: dict) -> None:
        """Send commands to a unit."""
        stream = {Unit.LOAD: "load_cmd", Unit.STORE: "store_cmd"}[unit]
        for command in commands:
            await self._transfer(stream, command_layout(unit).const(command).as_value().value)

    async def settle(self) -> None:
        """Wait until both units are idle."""

        async def idle() -> None:
            await ClockCycles(self.dut.clk, 4)
            while int(self.dut.load_busy.value) or int(self.dut.store_busy.value):
                await ClockCycles(self.dut.clk, 10)
            await ClockCycles(self.dut.clk, 10)

        await with_timeout(idle(), 200, "us")

    async def fetch(self, count: int) -> None:
        """Fetch ring slots, as the sequencer does, and check their contents."""
        for _ in range(count):
            addr = SOURCE + self.rng.randrange(0, TARGET, 256)
            await self._transfer("fetch_ar", addr | (256 // BEAT - 1) << 32)
            beats = []
            while len(beats) < 256 // BEAT:
                await RisingEdge(self.dut.clk)
                if int(self.dut.fetch_r__valid.value):
                    beats.append(int(self.dut.fetch_r__payload.value))
            data = b"".join((beat & ((1 << 8 * BEAT) - 1)).to_bytes(BEAT, "little") for beat in beats)
            assert data == self.image[addr : addr + 256]
            self.fetches += 1
            await ClockCycles(self.dut.clk, self.rng.randrange(1, 60))

    async def record(self, count: int) -> None:
        """Write completion records."""
        for _ in range(count):
            addr = RECORDS + self.rng.randrange(0, 4096, 16)
            data = self.rng.randbytes(16)
            address = cocotb.start_soon(self._transfer("record_aw", addr | (16 // BEAT - 1) << 32))
            for i in range(0, 16, BEAT):
                beat = (
                    int.from_bytes(data[i : i + BEAT], "little")
                    | ((1 << BEAT) - 1) << 8 * BEAT
                    | (i + BEAT == 16) << 9 * BEAT
                )
                await self._transfer("record_w", beat)
            await address
            while not int(self.dut.record_b__valid.value):
                await RisingEdge(self.dut.clk)
            self.image[addr : addr + 16] = data
            self.records += 1
            await ClockCycles(self.dut.clk, self.rng.randrange(1, 60))

    def random_load(self, low: int, high: int) -> dict:
        """Return a LOAD into bytes low..high-1 of the scratchpad."""
        rng = self.rng
        while True:
            command = load_command(
                dram=SOURCE + rng.randrange(8192, TARGET - 16384),
                len=rng.choice([N, rng.randrange(1, 4 * N), rng.randrange(1, 40 * N)]),
                y_count=rng.randrange(1, 12),
                z_count=rng.choice([1, 2]),
                dram_y=rng.randrange(-500, 500),
                dram_z=rng.randrange(-999, 999),
                dst=rng.randrange(low, high),
                dst_y=rng.randrange(-9 * N, 9 * N),
                dst_z=rng.randrange(-99, 99),
                tag=rng.randrange(3),
            )
            if rng.random() < 0.15:
                command["word"]["transpose"] = 1
                command["len"], command["y_count"] = rng.randrange(1, N + 1), rng.randrange(1, N + 1)
            elif rng.random() < 0.2:
                command["word"]["packed"], command["dst_z"] = 1, rng.choice([2 * N, rng.randrange(-4, 4) * N])
                command["z_count"] = rng.randrange(1, 20)
                for name in ("dst", "dst_y"):
                    command[name] = command[name] // N * N
            touched = [a for a, _ in load_writes(command, bytes(DRAM_BYTES), N)]
            if low <= min(touched) and max(touched) < high:
                return command

    def random_store(self, low: int, high: int) -> dict:
        """Return a STORE from bytes low..high-1 of the scratchpad."""
        rng = self.rng
        while True:
            command = store_command(
                dram=TARGET + rng.randrange(16384, 49152),
                len=rng.choice([N, rng.randrange(1, 4 * N), rng.randrange(1, 40 * N)]),
                y_count=rng.randrange(1, 12),
                z_count=rng.choice([1, 2]),
                dram_y=rng.randrange(-500, 500),
                dram_z=rng.randrange(-999, 999),
                src=rng.randrange(low, high),
                src_y=rng.randrange(-9 * N, 9 * N),
                src_z=rng.randrange(-99, 99),
                tag=rng.randrange(3),
            )
            starts = [
                command["src"] + z * command["src_z"] + y * command["src_y"]
                for z in (0, command["z_count"] - 1)
                for y in (0, command["y_count"] - 1)
            ]
            if low <= min(starts) and max(starts) + command["len"] <= high:
                return command

    def apply(self, loads: list[dict], stores: list[dict]) -> None:
        """Apply the effect of commands, including faults, to the copy."""
        for command in stores:
            for addr, value in store_writes(command, bytes(self.sp)).items():
                if addr // BEAT * BEAT not in self.ram.faults:
                    self.image[addr] = value
        good = bytes(self.image)
        for command in loads:
            marked = (
                load_writes(
                    command,
                    bytes(1 if a // BEAT * BEAT in self.ram.faults else 0 for a in range(DRAM_BYTES)),
                    N,
                )
                if (self.ram.faults and not command["word"]["packed"])
                else None
            )
            for i, (addr, value) in enumerate(load_writes(command, good, N)):
                if marked is None or not marked[i][1]:
                    self.sp[addr] = value

    async def compare(self) -> None:
        """Compare DRAM and, through a STORE, the scratchpad with the copy; check that no channel violated the
        protocol.
        """
        await self.settle()
        self.ram.faults = {}
        await self.send(Unit.STORE, store_command(dram=TARGET, src=0, len=SP_BYTES))
        await self.settle()
        self.image[TARGET : TARGET + SP_BYTES] = self.sp
        assert self.ram.read(0, DRAM_BYTES) == self.image
        assert not int(self.dut.unstable.value) and not int(self.dut.crossing.value)
        assert int(self.dut.aw_bursts.value) == int(self.dut.b_answers.value)


@cocotb.test()
async def transactions(dut) -> None:
    """Thousands of bursts of four masters under stalls are correct; LOAD and STORE alternate halves of the
    scratchpad.
    """
    bench = PinsTestbench(dut, 4711)
    await bench.start()
    turn = 0
    while int(dut.ar_bursts.value) + int(dut.aw_bursts.value) < TRANSACTIONS:
        bench.ram.stall(bench.rng, bench.rng.choice([0, 0.2, 0.6]))
        halves = [(0, SP_BYTES // 2), (SP_BYTES // 2, SP_BYTES)]
        loads = [bench.random_load(*halves[turn % 2]) for _ in range(12)]
        stores = [bench.random_store(*halves[1 - turn % 2]) for _ in range(12)]
        tasks = [
            cocotb.start_soon(task)
            for task in (
                bench.send(Unit.LOAD, *loads),
                bench.send(Unit.STORE, *stores),
                bench.fetch(6),
                bench.record(6),
            )
        ]
        for task in tasks:
            await task
        bench.apply(loads, stores)
        await bench.compare()
        turn += 1
    assert int(dut.load_dones.value) == 1 + 12 * turn and int(dut.store_dones.value) == 13 * turn
    assert int(dut.load_errors.value) == int(dut.store_errors.value) == 0
    assert bench.fetches == bench.records == 6 * turn


@cocotb.test()
async def errors(dut) -> None:
    """SLVERR and DECERR at random beats affect only the bytes of these beats; new commands work after an abort."""
    bench = PinsTestbench(dut, 815)
    await bench.start()
    rng = bench.rng
    for turn in range(40):
        bench.ram.stall(rng, rng.choice([0, 0.3]))
        loads = [bench.random_load(0, SP_BYTES // 2) for _ in range(3)]
        for command in loads:  # packed and transpose would spread a fault over several bytes
            command["word"]["packed"] = command["word"]["transpose"] = 0
        loads = [c for c in loads if max(a for a, _ in load_writes(c, bytes(DRAM_BYTES), N)) < SP_BYTES // 2]
        loads = [c for c in loads if min(a for a, _ in load_writes(c, bytes(DRAM_BYTES), N)) >= 0]
        stores = [bench.random_store(SP_BYTES // 2, SP_BYTES) for _ in range(3)]
        touched = [
            c["dram"] + rng.randrange(c["len"]) + c["dram_y"] * rng.randrange(c["y_count"])
            for c in loads + stores
        ]
        bench.ram.faults = {a // BEAT * BEAT: rng.choice([AxiResp.SLVERR, AxiResp.DECERR]) for a in touched}
        before = int(dut.load_errors.value), int(dut.store_errors.value)
        hits = bench.ram.read_faults, bench.ram.write_faults
        if turn % 2:
            bench.apply(loads, stores)
            await bench.send(Unit.LOAD, *loads)
            await bench.send(Unit.STORE, *stores)
            await bench.settle()
            assert (int(dut.load_errors.value) - before[0], int(dut.store_errors.value) - before[1]) == (
                bench.ram.read_faults - hits[0],
                bench.ram.write_faults - hits[1],
            )
        else:
            both = [
                cocotb.start_soon(bench.send(Unit.LOAD, *loads)),
                cocotb.start_soon(bench.send(Unit.STORE, *stores)),
            ]
            for task in both:
                await task
            await ClockCycles(dut.clk, rng.randrange(1, 200))
            dut.abort.value = 1
            await bench.settle()
            dut.abort.value = 0
            bench.ram.faults = {}
            bench.image[TARGET : TARGET + 65536] = bench.ram.read(TARGET, 65536)
            await bench.send(Unit.LOAD, load_command(dram=SOURCE, dst=0, len=SP_BYTES))
            bench.sp[:] = bench.image[SOURCE : SOURCE + SP_BYTES]
        await bench.compare()
    assert int(dut.load_errors.value) and int(dut.store_errors.value)
