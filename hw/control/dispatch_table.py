"""Dispatch table with a shadow, which the host writes and then makes live in one step."""

from amaranth.hdl import Cat, Elaboratable, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.control.layouts import ENTRY_LAYOUT, TABLE_OP_LAYOUT
from hw.lib.ram import Ram


class DispatchTable(wiring.Component):
    """Two banks of entries: the live table, and a shadow that the host writes. A commit exchanges the two banks between
    two dispatches and then copies the entries to the new shadow in the background. Writes wait during the copy, so no
    write is lost.

    After reset both banks are cleared, one entry per cycle, before `ready` rises.

    Latency: a look-up takes 1 cycle; a commit takes effect in the cycle after its transfer. Throughput: one look-up per
    cycle; a copy takes `entries` + 1 cycles.

    Parameters
    ----------
    entries : int
        Number of entries of the table, a power of two.

    Members
    -------
    op : In
        Writes and commits of the host; a write to an index beyond the table is ignored.
    hold : In
        High while a dispatch reads the table, possibly over several cycles; commits wait until it is low.
    addr, en : In, entry : Out
        Look-up port of the live table.
    ready : Out
        High if the table has been cleared after reset.
    busy : Out
        High if the table is being cleared or copied.
    """

    def __init__(self, *, entries: int):
        self.entries = entries
        self.index_bits = (entries - 1).bit_length()
        super().__init__(
            {
                "op": In(stream.Signature(TABLE_OP_LAYOUT)),
                "hold": In(1),
                "addr": In(self.index_bits),
                "en": In(1),
                "entry": Out(ENTRY_LAYOUT),
                "ready": Out(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.banks = banks = Ram(width=ENTRY_LAYOUT.size, depth=2 * self.entries, reads=2)
        active, sweep = Signal(), Signal(self.index_bits + 1)
        copied, copied_valid = Signal(self.index_bits), Signal()
        op = self.op.p
        index, within = op.index[: self.index_bits], Signal()
        m.d.comb += [
            banks.r0_addr.eq(Cat(self.addr, active)),
            banks.r0_en.eq(self.en),
            self.entry.eq(banks.r0_data),
            banks.r1_addr.eq(Cat(sweep[: self.index_bits], active)),
            banks.r1_en.eq(1),
            within.eq(op.index < self.entries),
        ]
        with m.FSM(name="table") as fsm:
            m.d.comb += [self.ready.eq(~fsm.ongoing("CLEAR")), self.busy.eq(~fsm.ongoing("IDLE"))]
            with m.State("CLEAR"):
                m.d.comb += [banks.w_addr.eq(sweep), banks.w_data.eq(0), banks.w_en.eq(1)]
                m.d.sync += sweep.eq(sweep + 1)
                with m.If(sweep == 2 * self.entries - 1):
                    m.d.sync += sweep.eq(0)
                    m.next = "IDLE"
            with m.State("IDLE"):
                m.d.comb += [banks.w_addr.eq(Cat(index, ~active)), banks.w_data.eq(op.entry)]
                with m.If(self.op.valid & op.commit):
                    m.d.comb += self.op.ready.eq(~self.hold)
                    with m.If(~self.hold):
                        m.d.sync += active.eq(~active)
                        m.next = "COPY"
                with m.Elif(self.op.valid):
                    m.d.comb += [self.op.ready.eq(1), banks.w_en.eq(within)]
            with m.State("COPY"):
                m.d.comb += [
                    banks.w_addr.eq(Cat(copied, ~active)),
                    banks.w_data.eq(banks.r1_data),
                    banks.w_en.eq(copied_valid),
                ]
                m.d.sync += [copied.eq(sweep), copied_valid.eq(1), sweep.eq(sweep + 1)]
                with m.If(copied_valid & (copied == self.entries - 1)):
                    m.d.sync += [sweep.eq(0), copied_valid.eq(0)]
                    m.next = "IDLE"
        return m
