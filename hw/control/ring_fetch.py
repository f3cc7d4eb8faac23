"""The command ring: reads macro-instructions from DRAM ahead of their execution."""

from amaranth.hdl import Cat, Const, Elaboratable, Module, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hw.bus.axi import BURST, read_beat
from hw.config import MlaConfig
from hw.control.layouts import MACRO_LAYOUT
from hw.control.ring_slots import RingSlots


class Ring(wiring.Component):
    """Requests the slots from the doorbell on, two at a time: the one that runs and the one after it.

    A slot is read whole, in one burst where `max_burst` allows it, and offered as soon as its header and the
    operands that the header announces are there.

    Latency: 3 cycles from `head` to the request, 2 from the last needed beat to `macro`. Throughput: one
    macro-instruction per bus latency, or none lost when each runs longer than its successor takes to read.

    Parameters
    ----------
    config : MlaConfig
        `n` is the width of the bus in bytes, `max_burst` limits bursts.

    Members
    -------
    enable : In
        New slots may be read.
    base, log2, head : In
        Ring registers.
    ar, r : Out, In
        Read master.
    macro : Out
        Macro-instructions whose operands are there; the transfer frees the slot's buffer.
    operand_addr : In, operand_data : Out
        Operand of the macro-instruction on offer, one cycle later.
    mask : Out
        Slots less one.
    more : Out
        There are macro-instructions that have not been released.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        super().__init__(
            {
                "enable": In(1),
                "base": In(32),
                "log2": In(5),
                "head": In(32),
                "ar": Out(stream.Signature(BURST)),
                "r": In(stream.Signature(read_beat(config))),
                "macro": Out(stream.Signature(MACRO_LAYOUT)),
                "operand_addr": In(6),
                "operand_data": Out(32),
                "mask": Out(16),
                "more": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.slots = slots = RingSlots(self.config)
        connect(m, flipped(self.r), slots.r)
        number, taken = Signal(32), Signal(32)  # of the next slot to request and to release
        differs, held = Signal(), Signal(range(3))
        requested, released = Signal(), Signal()
        current = slots.slot
        m.d.comb += [
            released.eq(self.macro.valid & self.macro.ready),
            slots.release.eq(released),
            self.macro.valid.eq(slots.valid),
            self.macro.p.header.eq(current.header),
            self.macro.p.fault.eq(current.fault),
            self.macro.p.number.eq(taken),
            self.macro.p.address.eq(self._address(taken)),
            slots.operand_addr.eq(self.operand_addr),
            self.operand_data.eq(slots.operand_data),
        ]
        m.d.sync += [
            self.mask.eq((1 << self.log2) - 1),
            differs.eq(number != self.head),
            self.more.eq(differs | (held != 0)),
            taken.eq(taken + released),
            held.eq(held + requested - released),
        ]
        self._request(m, number, differs & self.enable & (held != 2), requested)
        return m

    def _address(self, number: Signal) -> Value:
        return self.base + Cat(Const(0, 8), number[:16] & self.mask)

    def _request(self, m: Module, number: Signal, wanted: Signal, requested: Signal) -> None:
        burst = min(RingSlots.beats(self.config), self.config.max_burst)
        bursts = -(-RingSlots.beats(self.config) // burst)
        left = Signal(range(bursts + 1))
        # `differs` lags by a cycle behind the number; REQUEST lets it catch up.
        with m.FSM(name="request"):
            with m.State("IDLE"):
                m.d.sync += [
                    self.ar.p.addr.eq(self._address(number)),
                    self.ar.p.len.eq(burst - 1),
                    left.eq(bursts - 1),
                ]
                with m.If(wanted):
                    m.d.comb += requested.eq(1)
                    m.d.sync += [self.ar.valid.eq(1), number.eq(number + 1)]
                    m.next = "REQUEST"
            with m.State("REQUEST"), m.If(self.ar.ready):
                m.d.sync += [left.eq(left - 1), self.ar.p.addr.eq(self.ar.p.addr + burst * self.config.n)]
                with m.If(left == 1):
                    m.d.sync += self.ar.p.len.eq(RingSlots.beats(self.config) - (bursts - 1) * burst - 1)
                with m.If(left == 0):
                    m.d.sync += self.ar.valid.eq(0)
                    m.next = "IDLE"
