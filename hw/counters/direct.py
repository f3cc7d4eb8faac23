"""A counter that is kept by tag where it happens, for events whose tags may alternate from cycle to cycle."""

from amaranth.hdl import Elaboratable, Module, Mux
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.lib.ram import Ram


class DirectCounter(wiring.Component):
    """One sum for each tag, modulo a power of two, in a small memory that is read, added to and written in one cycle.

    Parameters
    ----------
    width : int
        Bits of the increment.
    sum_width : int
        Bits of a sum.
    tag_bits : int
        Bits of a tag.

    Members
    -------
    increment, tag : In
        Event of this cycle and its tag.
    clear, clear_tag : In
        This tag's sum starts anew with the increment of this cycle, whatever its tag.
    read_tag : In, value : Out
        Sum of a tag, combinational.
    """

    def __init__(self, *, width: int, sum_width: int, tag_bits: int):
        self.tag_bits, self.sum_width = tag_bits, sum_width
        super().__init__(
            {
                "increment": In(width),
                "tag": In(6),
                "clear": In(1),
                "clear_tag": In(tag_bits),
                "read_tag": In(tag_bits),
                "value": Out(sum_width),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.mem = mem = Ram(width=self.sum_width, depth=1 << self.tag_bits, reads=2, comb=True)
        m.d.comb += [
            mem.r0_addr.eq(self.tag),
            mem.r1_addr.eq(self.read_tag),
            self.value.eq(mem.r1_data),
            mem.w_addr.eq(Mux(self.clear, self.clear_tag, self.tag[: self.tag_bits])),
            mem.w_data.eq(Mux(self.clear, 0, mem.r0_data) + self.increment),
            mem.w_en.eq(self.clear | (self.increment != 0)),
        ]
        return m
