"""AXI4-Lite slave of the small test chip: one access at a time."""

from amaranth.hdl import Elaboratable, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from tests.support.sim_pins import host_pins

SLVERR = 2


class SimRegs(wiring.Component):
    """Slave that translates bus accesses to register accesses with a write strobe.

    Members
    -------
    address : Out(16)
        Byte address of the access; the address of the read channel while no write is offered.
    value : Out(32)
        Value to write while `write` is high, for one cycle.
    word : In(32), known : In(1)
        Result of a read of `address`; high if the register exists. Both are combinational.
    """

    def __init__(self) -> None:
        super().__init__(
            host_pins()
            | {
                "address": Out(16),
                "value": Out(32),
                "write": Out(1),
                "word": In(32),
                "known": In(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        response = (~self.known) * SLVERR
        accept_write = self.s_axil_awvalid & self.s_axil_wvalid & ~self.s_axil_bvalid
        accept_read = self.s_axil_arvalid & ~accept_write & ~self.s_axil_rvalid
        m.d.comb += [
            self.address.eq(self.s_axil_araddr),
            self.value.eq(self.s_axil_wdata),
            self.write.eq(accept_write),
            self.s_axil_awready.eq(accept_write),
            self.s_axil_wready.eq(accept_write),
            self.s_axil_arready.eq(accept_read),
        ]
        with m.If(self.s_axil_awvalid):
            m.d.comb += self.address.eq(self.s_axil_awaddr)
        with m.If(self.s_axil_bready):
            m.d.sync += self.s_axil_bvalid.eq(0)
        with m.If(self.s_axil_rready):
            m.d.sync += self.s_axil_rvalid.eq(0)
        with m.If(accept_write):
            m.d.sync += [self.s_axil_bvalid.eq(1), self.s_axil_bresp.eq(response)]
        with m.If(accept_read):
            m.d.sync += [self.s_axil_rvalid.eq(1), self.s_axil_rresp.eq(response)]
            m.d.sync += self.s_axil_rdata.eq(self.word)
        return m
