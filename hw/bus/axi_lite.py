"""AXI4-Lite slave, which converts the pins to one register write and one register read at a time."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

#: Width of a byte address in bits.
LITE_ADDR_BITS = 16
#: Response to a refused access, SLVERR.
_RESP_ERROR = 2

#: Payload of one register write.
LITE_WRITE = data.StructLayout({"addr": LITE_ADDR_BITS, "data": 32})
#: Payload of one register read.
LITE_READ = data.StructLayout({"addr": LITE_ADDR_BITS})

_IN_PINS = {
    "awvalid": 1,
    "awaddr": LITE_ADDR_BITS,
    "wvalid": 1,
    "wdata": 32,
    "wstrb": 4,
    "bready": 1,
    "arvalid": 1,
    "araddr": LITE_ADDR_BITS,
    "rready": 1,
}
_OUT_PINS = {
    "awready": 1,
    "wready": 1,
    "bvalid": 1,
    "bresp": 2,
    "arready": 1,
    "rvalid": 1,
    "rdata": 32,
    "rresp": 2,
}


def lite_pins(prefix: str = "s_axil_") -> dict[str, wiring.Member]:
    """Return the pins of the slave by name, for a component's signature."""
    return {f"{prefix}{name}": In(width) for name, width in _IN_PINS.items()} | {
        f"{prefix}{name}": Out(width) for name, width in _OUT_PINS.items()
    }


def lite_names() -> list[str]:
    """Return the names of the pins without their prefix."""
    return [*_IN_PINS, *_OUT_PINS]


def join_lite_pins(m: Module, outer: wiring.Component, inner: wiring.Component) -> None:
    """Connect the AXI4-Lite pins of `outer` to the same pins of `inner`, a component inside `outer`."""
    for name in _IN_PINS:
        m.d.comb += getattr(inner, f"s_axil_{name}").eq(getattr(outer, f"s_axil_{name}"))
    for name in _OUT_PINS:
        m.d.comb += getattr(outer, f"s_axil_{name}").eq(getattr(inner, f"s_axil_{name}"))


class AxiLite(wiring.Component):
    """AXI4-Lite slave of 32-bit registers. Reads and writes proceed independently; at most one read and one write are
    in progress at a time.

    Writes must cover the whole register: a write with any other write strobes is answered with SLVERR and has no
    effect.

    Latency: a write is offered 1 cycle after its address and data have arrived and answered 1 cycle after the transfer;
    a read is offered 1 cycle after its address and answered 1 cycle after the transfer. Throughput: one access every 3
    cycles.

    Members
    -------
    s_axil_* : In, Out
        Pins of the AXI4-Lite slave.
    write : Out
        Stream of register writes; a transfer completes the write and samples `write_bad`.
    write_bad : In
        High if no register has the address of the write.
    read : Out
        Stream of register reads; a transfer samples `read_data` and `read_bad`.
    read_data, read_bad : In
        Value of the register; high if no register has the address of the read.
    """

    def __init__(self) -> None:
        super().__init__(
            lite_pins()
            | {
                "write": Out(stream.Signature(LITE_WRITE)),
                "write_bad": In(1),
                "read": Out(stream.Signature(LITE_READ)),
                "read_data": In(32),
                "read_bad": In(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        self._writes(m)
        self._reads(m)
        return m

    def _writes(self, m: Module) -> None:
        have_address, have_data, whole = Signal(), Signal(), Signal()
        done = Signal()
        m.d.comb += [
            self.s_axil_awready.eq(~have_address),
            self.s_axil_wready.eq(~have_data),
            self.write.valid.eq(have_address & have_data & whole & ~self.s_axil_bvalid),
            done.eq(have_address & have_data & ~self.s_axil_bvalid & (self.write.ready | ~whole)),
        ]
        with m.If(self.s_axil_awvalid & self.s_axil_awready):
            m.d.sync += [have_address.eq(1), self.write.p.addr.eq(self.s_axil_awaddr)]
        with m.If(self.s_axil_wvalid & self.s_axil_wready):
            m.d.sync += [
                have_data.eq(1),
                self.write.p.data.eq(self.s_axil_wdata),
                whole.eq(self.s_axil_wstrb.all()),
            ]
        with m.If(self.s_axil_bready):
            m.d.sync += self.s_axil_bvalid.eq(0)
        with m.If(done):
            m.d.sync += [
                have_address.eq(0),
                have_data.eq(0),
                self.s_axil_bvalid.eq(1),
                self.s_axil_bresp.eq(Mux(self.write_bad | ~whole, _RESP_ERROR, 0)),
            ]

    def _reads(self, m: Module) -> None:
        have_address = Signal()
        m.d.comb += [
            self.s_axil_arready.eq(~have_address),
            self.read.valid.eq(have_address & ~self.s_axil_rvalid),
        ]
        with m.If(self.s_axil_arvalid & self.s_axil_arready):
            m.d.sync += [have_address.eq(1), self.read.p.addr.eq(self.s_axil_araddr)]
        with m.If(self.s_axil_rready):
            m.d.sync += self.s_axil_rvalid.eq(0)
        with m.If(self.read.valid & self.read.ready):
            m.d.sync += [
                have_address.eq(0),
                self.s_axil_rvalid.eq(1),
                self.s_axil_rdata.eq(self.read_data),
                self.s_axil_rresp.eq(Mux(self.read_bad, _RESP_ERROR, 0)),
            ]
