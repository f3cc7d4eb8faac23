"""Control with a scripted core, scripted units and a DRAM model, driven cycle by cycle."""

import struct
import zlib
from collections.abc import Awaitable, Callable

from amaranth.sim import SimulatorContext

from hw.bus.register_map import ADDRESS
from hw.config import MlaConfig
from hw.control.control import Control
from hw.isa.macro_instruction import CANDIDATE, HEADER, MAGIC, RECORD, SLOT_BYTES
from tests.block.control.models import Core, Memory, ReadChannel, UnitModels, WriteChannel
from tests.support.testbench import Testbench, shared_block

RING = 0x1000
RING_LOG2 = 4
IMAGES = 0x8000


def small(n: int = 16, **changes: int) -> MlaConfig:
    """Return a configuration with small tables."""
    sizes = {
        "sp_bytes": 128 * n * 8,
        "acc_bytes": 256 * n * 4,
        "wis_words": 256,
        "segments": 8,
        "opcodes": 8,
        "candidates": 4,
    }
    return MlaConfig(**{"n": n, "max_burst": 16} | sizes | changes)


# Words of the scripted core's programs; the low byte is the operation.
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


class ControlTestbench(Testbench):
    """Control, connected to models of DRAM, core and units; `run` passes this testbench to the host function."""

    def __init__(self, config: MlaConfig | None = None, latency: int = 10):
        self.config = config or small()
        super().__init__(shared_block(Control, self.config))
        self.check_contract(self.dut.fetch_ar, self.dut.loader_ar, self.dut.record_aw, self.dut.record_w)
        self.memory = Memory(1 << 16, self.config.beat_bytes, latency)
        self.fetch = ReadChannel(self.memory, self.dut.fetch_ar, self.dut.fetch_r)
        self.loader = ReadChannel(self.memory, self.dut.loader_ar, self.dut.loader_r)
        self.records = WriteChannel(self.memory, self.dut.record_aw, self.dut.record_w, self.dut.record_b)
        self.core, self.units = Core(self.dut), UnitModels(self.dut)
        self.now = 0
        self.enqueued = 0
        self.events = dict.fromkeys(self.dut.events.shape().members, 0)
        self.next_base = 0
        self.ctx: SimulatorContext  # since the start of `run`

    def run(self, host: Callable[["ControlTestbench"], Awaitable[None]]) -> None:
        """Run the simulation until the coroutine `host` returns."""

        async def main(ctx: SimulatorContext) -> None:
            self.ctx = ctx
            await host(self)

        self.simulate(main, environment=self._environment)

    async def _environment(self, ctx: SimulatorContext) -> None:
        dut = self.dut
        parts = (self.fetch, self.loader, self.records, self.core)
        signals = [part.signals() for part in parts]
        flat = [signal for group in signals for signal in group]
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

    # Operations of the host
    async def cycles(self, count: int) -> None:
        """Wait for a number of cycles."""
        if count:
            await self.ctx.tick().repeat(count)

    async def write(self, name: str | int, value: int, *, strobe: int = 15) -> int:
        """Write a register and return the response."""
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
        """Read a register and return its value and the response."""
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
        """Read a register and return its value."""
        return (await self.access(name))[0]

    async def until(self, name: str, condition: Callable[[int], object], limit: int = 5000) -> int:
        """Poll a register until a condition holds and return its value."""
        start = self.now
        while not condition(value := await self.read(name)):
            assert self.now - start < limit, f"{name} stayed {value:#x}"
        return value

    async def begin(self) -> None:
        """Set up the ring and enable dispatch."""
        for name, value in (("RING_BASE", RING), ("RING_LOG2", RING_LOG2), ("CONTROL", 1)):
            await self.write(name, value)
        await self.until("STATUS", lambda status: not status & 16)

    async def open(self, segment: int, length: int, base: int) -> int:
        """Open a segment and return LOADER_ERROR."""
        for name, value in (
            ("SEG_SELECT", segment),
            ("SEG_BASE", base),
            ("SEG_LENGTH", length),
            ("SEG_COMMAND", 1),
        ):
            await self.write(name, value)
        return await self.read("LOADER_ERROR")

    async def check(self, segment: int, crc: int) -> int:
        """Start the check of a segment, wait for its end, and return the segment's status."""
        await self.write("SEG_SELECT", segment)
        await self.write("SEG_CRC", crc)
        await self.write("SEG_COMMAND", 2)
        await self.until("STATUS", lambda status: not status & 8)
        return await self.read("SEG_STATUS")

    async def put_words(self, address: int, words: list[int]) -> None:
        """Write words into the instruction store."""
        await self.write("WIS_ADDRESS", address)
        for word in words:
            await self.write("WIS_DATA_LO", word)
            await self.write("WIS_DATA_HI", word >> 32)

    async def program(self, segment: int, words: list[int], base: int | None = None) -> None:
        """Make a segment VALID with the given words."""
        if base is None:
            base, self.next_base = self.next_base, self.next_base + len(words)
        assert await self.open(segment, len(words), base) == 0
        await self.put_words(base, words)
        assert await self.check(segment, crc(words)) & 7 == 3

    async def entry(
        self, index: int, segment: int, *, valid: int = 1, compare: int = 0, selector: int = 0, value: int = 0
    ) -> None:
        """Write an entry of the shadow table."""
        await self.write("DISPATCH_INDEX", index)
        await self.write(
            "DISPATCH_WORD", CANDIDATE.pack(valid=valid, segment=segment, compare=compare, selector=selector)
        )
        await self.write("DISPATCH_VALUE", value)

    async def bind(self, opcode: int, segment: int) -> None:
        """Bind an opcode to one program."""
        await self.entry(opcode * self.config.candidates, segment)
        await self.write("DISPATCH_COMMIT", 1)

    def slot(self, number: int) -> int:
        """Return the address of a macro-instruction's slot."""
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
        """Write a macro-instruction into the next slot and return its number."""
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
        """Ring the doorbell."""
        await self.write("RING_HEAD", self.enqueued)

    def record(self, number: int) -> dict[str, int]:
        """Return a completion record."""
        first, begin, end, steps = self.memory.words(self.slot(number) + 16, 4)
        return RECORD.unpack(first) | {"begin": begin, "end": end, "steps": steps}

    async def trap_record(self) -> dict[str, int]:
        """Return the TRAP registers."""
        names = ("CAUSE", "PC", "SEGMENT", "TAG", "MACRO", "ADDRESS", "COUNT")
        return {name.lower(): await self.read(f"TRAP_{name}") for name in names}

    async def resume(self) -> None:
        """Acknowledge a trap and resume."""
        await self.write("IRQ_STATUS", 15)
        await self.write("RESUME", 1)


def crc(words: list[int]) -> int:
    """Return the CRC-32 of a program."""
    return zlib.crc32(struct.pack(f"<{len(words)}Q", *words))
