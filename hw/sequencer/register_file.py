"""Scalar registers."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.isa.micro_instruction import REGISTERS
from hw.lib.ram import Ram

_INDEX = (REGISTERS - 1).bit_length()


class RegisterFile(wiring.Component):
    """32 registers of 32 bits with two combinational reads; r0 is always 0.

    A bit for each register indicates whether it has been written since `clear`. Registers that have not been written
    read as 0.

    Latency: a written value can be read in the next cycle. Throughput: two reads and one write per cycle.

    Members
    -------
    clear : In
        Set all registers to 0.
    w_en, w_addr, w_data : In
        Enable, address and data of the write port.
    a_addr, b_addr : In, a_data, b_data : Out
        Addresses and data of the two read ports.
    """

    clear: In(1)
    w_en: In(1)
    w_addr: In(_INDEX)
    w_data: In(32)
    a_addr: In(_INDEX)
    b_addr: In(_INDEX)
    a_data: Out(32)
    b_data: Out(32)

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.ram = ram = Ram(width=32, depth=REGISTERS, reads=2, comb=True)
        written = Signal(REGISTERS)
        keep = Signal()
        m.d.comb += [
            keep.eq(self.w_en & (self.w_addr != 0)),
            ram.w_en.eq(keep),
            ram.w_addr.eq(self.w_addr),
            ram.w_data.eq(self.w_data),
            ram.r0_addr.eq(self.a_addr),
            ram.r1_addr.eq(self.b_addr),
            self.a_data.eq(Mux(written.bit_select(self.a_addr, 1), ram.r0_data, 0)),
            self.b_data.eq(Mux(written.bit_select(self.b_addr, 1), ram.r1_data, 0)),
        ]
        with m.If(self.clear):
            m.d.sync += written.eq(0)
        with m.Elif(keep):
            m.d.sync += written.bit_select(self.w_addr, 1).eq(1)
        return m
