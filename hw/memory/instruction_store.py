"""Writable instruction store (WIS)."""

from amaranth.hdl import Elaboratable, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.lib.ram import Ram

#: Width of a word address in bits, regardless of the size of the store.
WIS_ADDR_BITS = 14


class InstructionStore(wiring.Component):
    """Memory of `wis_words` micro-instructions of 64 bits, with two independent read ports and one write port.

    The CRC check of a segment has a separate read port, so that it does not delay the running program.

    Latency: one cycle for a read; a write is visible to reads from the next cycle on. Throughput: one access per cycle
    and port.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses `wis_words`, the number of micro-instructions.

    Members
    -------
    fetch_addr, fetch_en : In, fetch_data : Out
        Read port of the sequencer's instruction fetch.
    check_addr, check_en : In, check_data : Out
        Read port of the CRC check.
    w_addr, w_data, w_en : In
        Write port of the host and the loader.
    """

    fetch_addr: In(WIS_ADDR_BITS)
    fetch_en: In(1)
    fetch_data: Out(64)
    check_addr: In(WIS_ADDR_BITS)
    check_en: In(1)
    check_data: Out(64)
    w_addr: In(WIS_ADDR_BITS)
    w_data: In(64)
    w_en: In(1)

    def __init__(self, config: MlaConfig):
        self.words = config.wis_words
        super().__init__()

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.mem = mem = Ram(width=64, depth=self.words, reads=2)
        m.d.comb += [
            mem.r0_addr.eq(self.fetch_addr),
            mem.r0_en.eq(self.fetch_en),
            self.fetch_data.eq(mem.r0_data),
            mem.r1_addr.eq(self.check_addr),
            mem.r1_en.eq(self.check_en),
            self.check_data.eq(mem.r1_data),
            mem.w_addr.eq(self.w_addr),
            mem.w_data.eq(self.w_data),
            mem.w_en.eq(self.w_en),
        ]
        return m
