"""Control with a scripted core, scripted units and a DRAM model, driven cycle by cycle."""

import struct
import zlib
from collections import deque
from collections.abc import Awaitable, Callable

from amaranth.sim import Simulator, SimulatorContext

from hw.config import MlaConfig
from hw.isa.macro import CANDIDATE, HEADER, MAGIC, RECORD, SLOT_BYTES
from hw.regs import ADDRESS
from hw.sequencer.control import Control

RING = 0x1000
RING_LOG2 = 4
IMAGES = 0x8000
#: Delay of a command that never starts.
NEVER = 0xFFFF


def small(n: int = 16, **changes: int) -> MlaConfig:
    """A machine with small tables."""
    sizes = {
        "sp_bytes": 128 * n * 8,
        "acc_bytes": 256 * n * 4,
        "wis_words": 256,
        "segments": 8,
        "opcodes": 8,
        "candidates": 4,
    }
    return MlaConfig(**{"n": n, "max_burst": 16} | sizes | changes)


# Words of the scripted core's programs: what it does, in the low byte.
def halt(version: int = 0) -> int:
    return 1 | version << 48


def issue(unit: int, delay: int) -> int:
    return 2 | unit << 8 | delay << 16


def trap(cause: int, address: int = 0) -> int:
    return 3 | cause << 8 | address << 32


def delay(cycles: int) -> int:
    return 4 | cycles << 16


def block() -> int:
    return 5


def operand(index: int) -> int:
    return 6 | index << 8


def spin() -> int:
    return 7


class Memory:
    """DRAM behind one read and one write master each; requests are answered in order after a latency."""

    def __init__(self, size: int, beat: int, latency: int):
        self.bytes, self.beat, self.latency = bytearray(size), beat, latency
        self.bad_reads: set[int] = set()
        self.bad_writes: set[int] = set()
        self.write_stall = 0

    def words(self, address: int, count: int) -> tuple[int, ...]:
        return struct.unpack_from(f"<{count}I", self.bytes, address)


class ReadChannel:
    """AR and R of one master."""

    def __init__(self, memory: Memory, ar, r):
        self.memory, self.ar, self.r = memory, ar, r
        self.queue: deque[tuple[int, int, int]] = deque()  # due, address, last
        self.requests: list[tuple[int, int, int]] = []

    def signals(self):
        return [self.ar.valid, self.ar.p.addr, self.ar.p.len, self.r.valid, self.r.ready]

    def step(
        self, ctx: SimulatorContext, now: int, valid: int, address: int, length: int, sent: int, ready: int
    ) -> None:
        size = self.memory.beat
        if valid:  # always ready
            assert address % size == 0
            assert address // 4096 == (address + (length + 1) * size - 1) // 4096, "burst crosses 4 KiB"
            self.requests.append((now, address, length))
            for i in range(length + 1):
                self.queue.append((now + self.memory.latency + i, address + i * size, int(i == length)))
        if sent:
            assert ready, "the masters of the control side never hold the bus up"
            self.queue.popleft()
        if self.queue and self.queue[0][0] <= now:
            _, address, last = self.queue[0]
            data = int.from_bytes(self.memory.bytes[address : address + size], "little")
            bad = address in self.memory.bad_reads
            ctx.set(self.r.valid, 1)
            ctx.set(self.r.payload, {"data": 0 if bad else data, "resp": 2 if bad else 0, "last": last})
        else:
            ctx.set(self.r.valid, 0)


class WriteChannel:
    """AW, W and B of the records."""

    def __init__(self, memory: Memory, aw, w, b):
        self.memory, self.aw, self.w, self.b = memory, aw, w, b
        self.addresses: deque[tuple[int, int]] = deque()
        self.beats: deque[tuple[int, int, int]] = deque()
        self.answers: deque[tuple[int, int]] = deque()
        self.times: list[int] = []

    def signals(self):
        return [
            self.aw.valid,
            self.aw.p.addr,
            self.aw.p.len,
            self.aw.ready,
            self.w.valid,
            self.w.p.data,
            self.w.p.strb,
            self.w.p.last,
            self.w.ready,
            self.b.valid,
        ]

    def step(self, ctx: SimulatorContext, now: int, *v: int) -> None:
        aw_valid, address, length, aw_ready, w_valid, data, strobe, last, w_ready, answered = v
        if aw_valid and aw_ready:
            self.addresses.append((address, length))
            self.times.append(now)
        if w_valid and w_ready:
            self.beats.append((data, strobe, last))
        if answered:
            self.answers.popleft()
        if self.addresses and len(self.beats) > self.addresses[0][1]:
            address, length = self.addresses.popleft()
            bad = address in self.memory.bad_writes
            for i in range(length + 1):
                data, strobe, last = self.beats.popleft()
                assert last == (i == length)
                for lane in range(self.memory.beat):
                    if strobe >> lane & 1 and not bad:
                        self.memory.bytes[address + i * self.memory.beat + lane] = data >> 8 * lane & 0xFF
            self.answers.append((now + self.memory.latency, 2 if bad else 0))
        open_now = self.memory.write_stall == 0 or now % (self.memory.write_stall + 1) == 0
        ctx.set(self.aw.ready, open_now)
        ctx.set(self.w.ready, open_now)
        ready = bool(self.answers) and self.answers[0][0] <= now
        ctx.set(self.b.valid, ready)
        if ready:
            ctx.set(self.b.payload, {"resp": self.answers[0][1]})


class Units:
    """Four units that start and retire commands in order, each after its own delay."""

    def __init__(self, dut: Control):
        self.dut = dut
        self.queues: list[deque[int]] = [deque() for _ in range(4)]
        self.holding = 0  # cycles an abort takes

    def step(self, ctx: SimulatorContext, flush: int, abort: int, issued: tuple[int, ...]) -> None:
        retired = idle = stuck = busy = 0
        for unit, queue in enumerate(self.queues):
            if issued[unit]:
                queue.append(issued[unit] - 1)
            if flush:
                queue.clear()
            elif queue and queue[0] != NEVER:
                if queue[0] == 0:
                    queue.popleft()
                    retired |= 1 << unit
                else:
                    queue[0] -= 1
            started = bool(queue) and queue[0] != NEVER
            idle |= (not queue) << unit
            stuck |= (not started) << unit
            busy |= started << unit
        if abort:
            self.holding = max(0, self.holding - 1)
            for queue in self.queues:
                queue.clear()
            busy = 15 if self.holding else 0
        ctx.set(self.dut.retired, retired)
        ctx.set(self.dut.idle, idle)
        ctx.set(self.dut.stuck, stuck)
        ctx.set(self.dut.busy, busy)


class Core:
    """Runs programs made of the words above."""

    def __init__(self, dut: Control):
        self.dut = dut
        self.log: list[dict] = []  # one entry a program
        self.run: dict | None = None
        self.state = "idle"
        self.issued = (0, 0, 0, 0)
        self.time = 0

    def signals(self):
        dut = self.dut
        return [
            dut.start.valid,
            dut.start.ready,
            dut.start.payload,
            dut.fetch_data,
            dut.operand_data,
            dut.stop,
            dut.flush,
        ]

    def step(
        self, ctx: SimulatorContext, now: int, valid, ready, start, fetched, operand_data, stop, flush
    ) -> None:
        dut = self.dut
        self.issued = (0, 0, 0, 0)
        ctx.set(dut.halted, 0)
        if flush:
            self.run, self.state = None, "idle"
            ctx.set(dut.trap.valid, 0)
            ctx.set(dut.core_blocked, 0)
        elif valid and ready:
            self.run = {
                name: getattr(start, name)
                for name in ("segment", "base", "length", "tag", "macro", "operands")
            }
            self.run |= {"begin": now, "words": [], "operands_read": [], "pc": 0, "end": None}
            self.log.append(self.run)
            self.state = "fetch"
        elif self.run is not None and not stop:
            self._execute(ctx, now, fetched, operand_data)
        self._outputs(ctx)

    def _execute(self, ctx: SimulatorContext, now: int, fetched: int, operand_data: int) -> None:
        dut, run = self.dut, self.run
        assert run is not None
        if self.state == "fetch":
            self.state = "data"
        elif self.state == "data":
            run["words"].append(fetched)
            self._word(ctx, now, fetched)
        elif self.state == "operand":
            self.state = "operand_data"
        elif self.state == "operand_data":
            run["operands_read"].append(operand_data)
            self._next()
        elif self.state == "delay":
            self.time -= 1
            if self.time <= 0:
                self._next()

    def _word(self, ctx: SimulatorContext, now: int, word: int) -> None:
        dut, run = self.dut, self.run
        assert run is not None
        kind, low, middle, high = word & 0xFF, word >> 8 & 0xFF, word >> 16 & 0xFFFF, word >> 32 & 0xFFFFFFFF
        if kind == 1:
            ctx.set(dut.halted, 1)
            run["end"] = now
            self.run, self.state = None, "idle"
        elif kind == 2:
            self.issued = tuple(middle + 1 if unit == low else 0 for unit in range(4))
            self._next()
        elif kind == 3:
            ctx.set(
                dut.trap,
                {
                    "valid": 1,
                    "cause": low,
                    "pc": run["pc"],
                    "segment": run["segment"],
                    "tag": run["tag"],
                    "macro": run["macro"],
                    "address": high,
                },
            )
            self.state = "trapped"
        elif kind == 4:
            self.time, self.state = middle, "delay"
        elif kind == 5:
            ctx.set(dut.core_blocked, 1)
            ctx.set(dut.blocked_pc, run["pc"])
            self.state = "blocked"
        elif kind == 6:
            ctx.set(dut.operand_addr, low)
            self.state = "operand"
        elif kind == 7:
            self.state = "spinning"
        else:
            raise AssertionError(f"program {run['segment']} ran into {word:#x} at {run['pc']}")

    def _next(self) -> None:
        assert self.run is not None
        self.run["pc"] += 1
        assert self.run["pc"] < self.run["length"]
        self.state = "fetch"

    def _outputs(self, ctx: SimulatorContext) -> None:
        dut, run = self.dut, self.run
        ctx.set(dut.start.ready, run is None)
        ctx.set(dut.in_use, 0 if run is None else 1 << run["segment"])
        ctx.set(dut.steps, self.log[-1]["pc"] + 1 if self.log else 0)
        ctx.set(dut.fetch_en, self.state == "fetch")
        ctx.set(dut.issued, sum(bool(issued) << unit for unit, issued in enumerate(self.issued)))
        if run is not None:
            ctx.set(dut.fetch_addr, run["base"] + run["pc"])
            ctx.set(dut.core_pc, run["pc"])
            ctx.set(dut.core_segment, run["segment"])
            ctx.set(dut.core_tag, run["tag"])


class Bench:
    """One simulation. `run` gives the host's coroutine the bench; everything else goes on beside it."""

    def __init__(self, config: MlaConfig | None = None, latency: int = 10):
        self.config = config or small()
        self.dut = Control(self.config)
        self.memory = Memory(1 << 16, self.config.n, latency)
        self.fetch = ReadChannel(self.memory, self.dut.fetch_ar, self.dut.fetch_r)
        self.loader = ReadChannel(self.memory, self.dut.loader_ar, self.dut.loader_r)
        self.records = WriteChannel(self.memory, self.dut.record_aw, self.dut.record_w, self.dut.record_b)
        self.core, self.units = Core(self.dut), Units(self.dut)
        self.now = 0
        self.enqueued = 0
        self.events = dict.fromkeys(self.dut.events.shape().members, 0)
        self.next_base = 0
        self.ctx: SimulatorContext | None = None

    def run(self, host: Callable[["Bench"], Awaitable[None]]) -> None:
        simulator = Simulator(self.dut)
        simulator.add_clock(1e-6)

        async def main(ctx: SimulatorContext) -> None:
            self.ctx = ctx
            await host(self)

        simulator.add_process(self._environment)
        simulator.add_testbench(main)
        simulator.run()

    async def _environment(self, ctx: SimulatorContext) -> None:
        dut = self.dut
        parts = (self.fetch, self.loader, self.records, self.core)
        signals = [part.signals() for part in parts]
        flat = [signal for group in signals for signal in group]
        for name in ("fetch_ar", "loader_ar"):
            ctx.set(getattr(dut, name).ready, 1)
        ctx.set(dut.idle, 15)
        ctx.set(dut.stuck, 15)
        ctx.set(dut.start.ready, 1)
        ctx.set(dut.counter_done, 1)
        async for _, _, *values in ctx.tick().sample(*flat, dut.flush, dut.abort, dut.events):
            flush, abort, events = values[-3:]
            at = 0
            for part, group in zip(parts, signals, strict=True):
                part.step(ctx, self.now, *values[at : at + len(group)])
                at += len(group)
            self.units.step(ctx, flush, abort, self.core.issued)
            for name in self.events:
                self.events[name] += getattr(events, name)
            self.now += 1

    # The host.
    async def cycles(self, count: int) -> None:
        if count:
            await self.ctx.tick().repeat(count)

    async def write(self, name: str | int, value: int, *, strobe: int = 15) -> int:
        """Write a register; returns the response."""
        ctx, dut = self.ctx, self.dut
        ctx.set(dut.s_axil_awaddr, ADDRESS[name] if isinstance(name, str) else name)
        ctx.set(dut.s_axil_wdata, value & 0xFFFFFFFF)
        ctx.set(dut.s_axil_wstrb, strobe)
        for valid in (dut.s_axil_awvalid, dut.s_axil_wvalid, dut.s_axil_bready):
            ctx.set(valid, 1)
        await ctx.tick().until(dut.s_axil_awready & dut.s_axil_wready)
        ctx.set(dut.s_axil_awvalid, 0)
        ctx.set(dut.s_axil_wvalid, 0)
        (response,) = await ctx.tick().sample(dut.s_axil_bresp).until(dut.s_axil_bvalid)
        ctx.set(dut.s_axil_bready, 0)
        return response

    async def access(self, name: str | int) -> tuple[int, int]:
        """Read a register: value, response."""
        ctx, dut = self.ctx, self.dut
        ctx.set(dut.s_axil_araddr, ADDRESS[name] if isinstance(name, str) else name)
        ctx.set(dut.s_axil_arvalid, 1)
        ctx.set(dut.s_axil_rready, 1)
        await ctx.tick().until(dut.s_axil_arready)
        ctx.set(dut.s_axil_arvalid, 0)
        value, response = await ctx.tick().sample(dut.s_axil_rdata, dut.s_axil_rresp).until(dut.s_axil_rvalid)
        ctx.set(dut.s_axil_rready, 0)
        return value, response

    async def read(self, name: str) -> int:
        return (await self.access(name))[0]

    async def until(self, name: str, condition: Callable[[int], bool], limit: int = 5000) -> int:
        """Poll a register."""
        start = self.now
        while not condition(value := await self.read(name)):
            assert self.now - start < limit, f"{name} stayed {value:#x}"
        return value

    async def begin(self) -> None:
        for name, value in (("RING_BASE", RING), ("RING_LOG2", RING_LOG2), ("CONTROL", 1)):
            await self.write(name, value)
        await self.until("STATUS", lambda status: not status & 16)

    async def open(self, segment: int, length: int, base: int) -> int:
        """Open a segment; returns LOADER_ERROR."""
        for name, value in (
            ("SEG_SELECT", segment),
            ("SEG_BASE", base),
            ("SEG_LENGTH", length),
            ("SEG_COMMAND", 1),
        ):
            await self.write(name, value)
        return await self.read("LOADER_ERROR")

    async def check(self, segment: int, crc: int) -> int:
        """Check a segment; returns its status."""
        await self.write("SEG_SELECT", segment)
        await self.write("SEG_CRC", crc)
        await self.write("SEG_COMMAND", 2)
        await self.until("STATUS", lambda status: not status & 8)
        return await self.read("SEG_STATUS")

    async def put(self, address: int, words: list[int]) -> None:
        await self.write("WIS_ADDRESS", address)
        for word in words:
            await self.write("WIS_DATA_LO", word)
            await self.write("WIS_DATA_HI", word >> 32)

    async def program(self, segment: int, words: list[int], base: int | None = None) -> None:
        """Make a segment VALID with these words."""
        if base is None:
            base, self.next_base = self.next_base, self.next_base + len(words)
        assert await self.open(segment, len(words), base) == 0
        await self.put(base, words)
        assert await self.check(segment, crc(words)) & 7 == 3

    async def entry(
        self, index: int, segment: int, *, valid: int = 1, compare: int = 0, selector: int = 0, value: int = 0
    ) -> None:
        """Write a shadow entry."""
        await self.write("DISPATCH_INDEX", index)
        await self.write(
            "DISPATCH_WORD", CANDIDATE.pack(valid=valid, segment=segment, compare=compare, selector=selector)
        )
        await self.write("DISPATCH_VALUE", value)

    async def bind(self, opcode: int, segment: int) -> None:
        await self.entry(opcode * self.config.candidates, segment)
        await self.write("DISPATCH_COMMIT", 1)

    def slot(self, number: int) -> int:
        return RING + (number % (1 << RING_LOG2)) * SLOT_BYTES

    def place(
        self,
        opcode: int,
        operands: list[int] | None = None,
        *,
        tag: int = 0,
        irq: int = 0,
        magic: int = MAGIC,
        count: int | None = None,
    ) -> int:
        """Put a macro-instruction into the next slot; returns its number."""
        operands = operands or []
        number, self.enqueued = self.enqueued, self.enqueued + 1
        at = self.slot(number)
        header = HEADER.pack(
            opcode=opcode, operands=len(operands) if count is None else count, tag=tag, irq=irq, magic=magic
        )
        self.memory.bytes[at : at + SLOT_BYTES] = bytes([0xA5]) * SLOT_BYTES
        struct.pack_into("<I", self.memory.bytes, at, header)
        struct.pack_into(f"<{len(operands)}I", self.memory.bytes, at + 32, *operands)
        return number

    async def ring(self) -> None:
        """Doorbell."""
        await self.write("RING_HEAD", self.enqueued)

    def record(self, number: int) -> dict[str, int]:
        """Completion record."""
        first, begin, end, steps = self.memory.words(self.slot(number) + 16, 4)
        return RECORD.unpack(first) | {"begin": begin, "end": end, "steps": steps}

    async def trap_record(self) -> dict[str, int]:
        names = ("CAUSE", "PC", "SEGMENT", "TAG", "MACRO", "ADDRESS", "COUNT")
        return {name.lower(): await self.read(f"TRAP_{name}") for name in names}

    async def resume(self) -> None:
        await self.write("IRQ_STATUS", 15)
        await self.write("RESUME", 1)


def crc(words: list[int]) -> int:
    """CRC-32 of a program."""
    return zlib.crc32(struct.pack(f"<{len(words)}Q", *words))
