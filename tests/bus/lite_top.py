"""The AXI4-Lite slave with registers that are slow to respond."""

from amaranth.hdl import Elaboratable, Module, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In

from hw.bus.axi_lite import AxiLite, join_lite_pins, lite_pins

#: Number of registers; there are no registers at higher addresses.
REGISTERS = 64


class LiteTop(wiring.Component):
    """Registers of 32 bits that can be written and read while `write_ready` and `read_ready` are high."""

    def __init__(self):
        super().__init__(lite_pins() | {"write_ready": In(1), "read_ready": In(1)})

    def elaborate(self, platform: object) -> Elaboratable:
        """Connect the slave and the memory."""
        m = Module()
        m.submodules.slave = slave = AxiLite()
        join_lite_pins(m, self, slave)
        m.submodules.registers = registers = memory.Memory(shape=32, depth=REGISTERS, init=[])
        write, read = registers.write_port(), registers.read_port(domain="comb")
        known = {name: Signal(name=f"{name}_known") for name in ("write", "read")}
        for name, address in (("write", slave.write.p.addr), ("read", slave.read.p.addr)):
            m.d.comb += known[name].eq((address < 4 * REGISTERS) & ~address[:2].any())
        m.d.comb += [
            slave.write.ready.eq(self.write_ready),
            slave.write_bad.eq(~known["write"]),
            write.addr.eq(slave.write.p.addr >> 2),
            write.data.eq(slave.write.p.data),
            write.en.eq(slave.write.valid & slave.write.ready & known["write"]),
            slave.read.ready.eq(self.read_ready),
            slave.read_bad.eq(~known["read"]),
            read.addr.eq(slave.read.p.addr >> 2),
            slave.read_data.eq(read.data),
        ]
        return m
