"""A small chip with the pins of `mla_chip`, for tests of the simulator and its server.

The chip has registers, two engines that read and write DRAM and record the cycles of their transfers, and
memories with the same names as those of the accelerator.
"""

from enum import IntEnum

from amaranth.hdl import Cat, ClockSignal, Elaboratable, Instance, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.lib.ram import Ram
from hw.verilog.writer import convert
from tests.support.sim_pins import host_pins, join, read_pins, write_pins
from tests.support.sim_regs import SimRegs
from tests.support.sim_traffic import ReadTraffic, WriteTraffic

IDENTITY = 0x51A4D
SP_WORDS, ACC_WORDS = 8, 16


class Reg(IntEnum):
    """Byte addresses of the registers."""

    IDENTITY = 0x00
    GO = 0x04  #: bit 0 starts reading, bit 1 starts writing, bit 2 clears the words chosen by SELECT
    BUSY = 0x08
    READ_BASE = 0x0C
    WRITE_BASE = 0x10
    BEATS = 0x14
    SLOW = 0x18
    STROBE = 0x1C
    ALARM = 0x20  #: the interrupt rises when the cycle counter reaches this value
    NOW = 0x24
    READ_TOTAL = 0x28
    READ_ERRORS = 0x2C
    READ_ASKED = 0x30
    READ_FIRST = 0x34
    READ_LAST = 0x38
    WRITE_ERRORS = 0x3C
    WRITE_FIRST = 0x40
    WRITE_LAST = 0x44
    WRITE_ANSWERED = 0x48
    SELECT = 0x4C  #: {bank, word} of the memories that the registers below read
    SP_WORD = 0x50  #: lowest 32 bits
    ACC_WORD = 0x54
    ARRAY_WORD = 0x58


WRITABLE = (Reg.READ_BASE, Reg.WRITE_BASE, Reg.BEATS, Reg.SLOW, Reg.STROBE, Reg.ALARM, Reg.SELECT)


class Banks(wiring.Component):
    """Memories with the same hierarchy as those of the accelerator; `clear` zeroes the word at `address` in each
    memory.
    """

    def __init__(self, names: list[str], width: int, depth: int):
        self._names, self._width, self._depth = names, width, depth
        super().__init__({"clear": In(1), "bank": In(8), "address": In(8), "word": Out(width)})

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        with m.Switch(self.bank):
            for index, name in enumerate(self._names):
                m.submodules[name] = ram = Ram(width=self._width, depth=self._depth, granularity=8)
                m.d.comb += [
                    ram.r0_addr.eq(self.address),
                    ram.w_addr.eq(self.address),
                    ram.w_en.eq(self.clear.replicate(len(ram.w_en))),
                ]
                with m.Case(index):
                    m.d.comb += self.word.eq(ram.r0_data)
        return m


class SimChip(wiring.Component):
    """The small test chip.

    Parameters
    ----------
    n : int
        Bus width in bytes.
    array : bool
        Add the bare systolic array with changing operands, to measure the cost of the harness.
    """

    def __init__(self, n: int, *, array: bool = False):
        self._n, self._array = n, array
        super().__init__(read_pins(n) | write_pins(n) | host_pins() | {"irq": Out(1)})

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        n = self._n
        m.submodules.regs = regs = SimRegs()
        m.submodules.read = read = ReadTraffic(n)
        m.submodules.write = write = WriteTraffic(n)
        halves = [f"bank{bank}_{half}" for bank in range(8) for half in range(2)]
        m.submodules.sp = sp = Banks(halves, 8 * n, SP_WORDS)
        m.submodules.acc = acc = Banks([f"bank{bank}" for bank in range(4)], 32 * n, ACC_WORDS)
        for block in (regs, read, write):
            join(m, self, block)
        held = {reg: Signal(32, name=reg.name.lower()) for reg in WRITABLE}
        now = Signal(32)
        shown = held | {
            Reg.IDENTITY: IDENTITY,
            Reg.GO: 0,
            Reg.BUSY: Cat(read.busy, write.busy),
            Reg.NOW: now,
            Reg.READ_TOTAL: read.total,
            Reg.READ_ERRORS: read.errors,
            Reg.READ_ASKED: read.asked,
            Reg.READ_FIRST: read.first,
            Reg.READ_LAST: read.last,
            Reg.WRITE_ERRORS: write.errors,
            Reg.WRITE_FIRST: write.first,
            Reg.WRITE_LAST: write.last,
            Reg.WRITE_ANSWERED: write.answered,
            Reg.SP_WORD: sp.word,
            Reg.ACC_WORD: acc.word,
            Reg.ARRAY_WORD: self._bare_array(m) if self._array else 0,
        }
        m.d.sync += now.eq(now + 1)
        with m.Switch(regs.address):
            for reg, value in shown.items():
                with m.Case(reg):
                    m.d.comb += [regs.word.eq(value), regs.known.eq(1)]
                    if reg in held:
                        with m.If(regs.write):
                            m.d.sync += held[reg].eq(regs.value)
        go = regs.write & (regs.address == Reg.GO)
        m.d.comb += [
            self.irq.eq((held[Reg.ALARM] != 0) & (now >= held[Reg.ALARM])),
            read.go.eq(go & regs.value[0]),
            write.go.eq(go & regs.value[1]),
            read.base.eq(held[Reg.READ_BASE]),
            write.base.eq(held[Reg.WRITE_BASE]),
            read.slow.eq(held[Reg.SLOW]),
            write.strobe.eq(held[Reg.STROBE]),
            *(engine.beats.eq(held[Reg.BEATS]) for engine in (read, write)),
            *(engine.now.eq(now) for engine in (read, write)),
            *(banks.clear.eq(go & regs.value[2]) for banks in (sp, acc)),
            *(banks.bank.eq(held[Reg.SELECT][8:16]) for banks in (sp, acc)),
            *(banks.address.eq(held[Reg.SELECT][:8]) for banks in (sp, acc)),
        ]
        return m

    def _bare_array(self, m: Module) -> Signal:
        noise = Signal(128, init=1)
        sums = Signal(512)
        m.d.sync += noise.eq(Cat(noise[37:], noise[:37] ^ noise[5:42]))
        m.submodules.array = Instance(
            "bare_array",
            i_clk=ClockSignal(),
            i_rst=0,
            i_load=1,
            i_swap=noise[:4].all(),
            i_a=noise,
            i_w=Cat(noise[64:], noise[:64]),
            o_p=sums,
        )
        return sums


def sim_verilog(n: int, *, array: bool = False) -> str:
    """Return the Verilog of the chip; with `array`, the caller must add the module `bare_array`."""
    return convert(SimChip(n, array=array), "mla_chip")
