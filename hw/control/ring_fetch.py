"""Prefetch of macro-instructions from the command ring in DRAM into a double buffer."""

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hw.bus.axi import BURST, RESP_ERROR_BIT, read_beat
from hw.config import MlaConfig
from hw.control.layouts import HEADER_LAYOUT, MACRO_LAYOUT
from hw.isa.macro_instruction import MAGIC, OPERAND_WORD
from hw.isa.micro_instruction import MAX_OPERANDS
from hw.lib.pipeline import pipeline_domain
from hw.lib.ram import Ram

#: Number of words of a slot that are read.
_WORDS = OPERAND_WORD + MAX_OPERANDS
#: Number of words in each half of the buffer.
_SPAN = 64

SLOT_LAYOUT = data.StructLayout({"header": HEADER_LAYOUT, "fault": 1})


class RingSlots(wiring.Component):
    """Receives the beats of the slots in order, alternately into two halves of the operand buffer, and offers
    the older slot.

    A slot may be released while unneeded beats of the slot are still outstanding; these beats are stored in locations
    that the slot after the next one will overwrite. Beats must not be requested for more than two slots that have not
    been released.

    Latency: 1 cycle from the last needed beat to `valid` (2 with `pipelined`); 1 for an operand. Throughput: one beat
    per cycle; `r` is always ready.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses the width of the bus and `pipelined`.

    Members
    -------
    r : In
        Beats read from the ring.
    valid, slot : Out
        High if the header and the needed operands of a slot have arrived; this slot, whose `fault` is set if there was
        a bus error.
    release : In
        Release the offered slot, which frees its half of the buffer.
    operand_addr : In, operand_data : Out
        Index of an operand of the offered slot, and its value one cycle later.
    """

    def __init__(self, config: MlaConfig):
        self.n, self._late = config.beat_bytes, config.pipelined
        self.beat_words = config.beat_bytes // 4
        self.slot_beats = self.beats(config)
        super().__init__(
            {
                "r": In(stream.Signature(read_beat(config))),
                "valid": Out(1),
                "slot": Out(SLOT_LAYOUT),
                "release": In(1),
                "operand_addr": In(6),
                "operand_data": Out(32),
            }
        )

    @staticmethod
    def beats(config: MlaConfig) -> int:
        """Return the number of beats of one slot."""
        return _WORDS * 4 // config.beat_bytes

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.d.comb += self.r.ready.eq(1)
        beat, half = Signal(range(self.slot_beats)), Signal()  # index and buffer half of the next beat
        count = range(self.slot_beats + 1)
        arrived = Signal(
            data.StructLayout({"valid": 1, "first": 1, "bad": 1, "half": 1, "got": count, "needed": count})
        )
        # Number of beats that the slot needs; whether it has an error; high if it is not yet offered.
        needed, fault, pending = Signal(count), Signal(), Signal()
        wanted, faulty, waits = Signal(count), Signal(), Signal()
        # Halves that are offered; the half that is offered first; high if the needed beats have arrived.
        offered, oldest, enough = Signal(2), Signal(), Signal()
        slots = [Signal(SLOT_LAYOUT, name=f"slot{i}") for i in range(2)]
        bad = self.r.p.resp[RESP_ERROR_BIT]
        domain = pipeline_domain(m, self._late)
        domain += [
            arrived.valid.eq(self.r.valid),
            arrived.first.eq(beat == 0),
            arrived.bad.eq(bad),
            arrived.half.eq(half),
            arrived.got.eq(beat + 1),
            arrived.needed.eq(Mux(bad, 1, self._needed(m))),
        ]
        m.d.comb += [
            wanted.eq(Mux(arrived.first, arrived.needed, needed)),
            waits.eq(arrived.first | pending),
            faulty.eq(arrived.bad | (fault & ~arrived.first)),
            enough.eq(arrived.valid & waits & (arrived.got >= wanted)),
            self.valid.eq(offered.bit_select(oldest, 1)),
            self.slot.eq(Mux(oldest, slots[1].as_value(), slots[0].as_value())),
        ]
        with m.If(arrived.valid):
            m.d.sync += [needed.eq(wanted), fault.eq(faulty), pending.eq(waits & ~enough)]
        with m.If(enough):
            m.d.sync += offered.bit_select(arrived.half, 1).eq(1)
            for i, slot in enumerate(slots):
                with m.If(arrived.half == i):
                    m.d.sync += slot.fault.eq(faulty)
        with m.If(self.release):
            m.d.sync += [offered.bit_select(oldest, 1).eq(0), oldest.eq(~oldest)]
        with m.If(self.r.valid):
            m.d.sync += beat.eq(beat + 1)
            with m.If(beat == self.slot_beats - 1):
                m.d.sync += [beat.eq(0), half.eq(~half)]
            with m.If(beat == 0):
                for i, slot in enumerate(slots):
                    with m.If(half == i):
                        m.d.sync += slot.header.eq(self.r.p.data[:32])
        self._operands(m, beat, half, oldest)
        return m

    def _needed(self, m: Module) -> Signal:
        """Return the number of beats up to the last operand of the arriving header; 1 if the header is not valid."""
        header, words = Signal(HEADER_LAYOUT), Signal(8)
        needed = Signal(range(self.slot_beats + 1))
        m.d.comb += [
            header.eq(self.r.p.data[:32]),
            words.eq(header.operands + (OPERAND_WORD + self.beat_words - 1)),
        ]
        with m.If((header.magic == MAGIC) & (header.operands <= MAX_OPERANDS)):
            m.d.comb += needed.eq(words >> (self.beat_words - 1).bit_length())
        with m.Else():
            m.d.comb += needed.eq(1)
        return needed

    def _operands(self, m: Module, beat: Signal, half: Signal, oldest: Signal) -> None:
        rows = _SPAN // self.beat_words
        row_bits, lane_bits = (rows - 1).bit_length(), (self.beat_words - 1).bit_length()
        m.submodules.operands = operands = Ram(width=8 * self.n, depth=2 * rows)
        row = Signal(row_bits)
        # Operand 0 is stored in row 0 of its half; the words before it wrap to the unused end.
        m.d.comb += [
            row.eq(beat - OPERAND_WORD // self.beat_words),
            operands.w_addr.eq(Cat(row, half)),
            operands.w_data.eq(self.r.p.data),
            operands.w_en.eq(self.r.valid),
            operands.r0_addr.eq(Cat(self.operand_addr[lane_bits:], oldest)),
            operands.r0_en.eq(1),
        ]
        if lane_bits:
            lane = Signal(lane_bits)
            m.d.sync += lane.eq(self.operand_addr[:lane_bits])
            m.d.comb += self.operand_data.eq(operands.r0_data.word_select(lane, 32))
        else:
            m.d.comb += self.operand_data.eq(operands.r0_data)


class RingFetch(wiring.Component):
    """Reads slots after a doorbell, and holds at most two: the slot of the running macro-instruction and the next one.

    A whole slot is read, in one burst if `max_burst` permits, and offered as soon as its header and the operands that
    the header announces have arrived.

    Latency: 2 cycles from `head` to the request, 1 from the last needed beat to `macro`; with `pipelined`, one more
    cycle each. Throughput: one
    macro-instruction per bus latency; no cycle is lost if each macro-instruction runs longer than the read of its
    successor takes.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses `n`, the width of the bus in bytes, `max_burst`, the maximum length of a burst, and
        `pipelined`.

    Members
    -------
    enable : In
        High if further slots may be read.
    base, log2, head : In
        Values of the ring registers.
    ar, r : Out, In
        Read master of the bus: addresses and data.
    macro : Out
        Macro-instructions whose operands have arrived; the transfer frees the slot's buffer.
    operand_addr : In, operand_data : Out
        Index of an operand of the offered macro-instruction, and its value one cycle later.
    mask : Out
        Number of ring slots minus one, the mask of slot indices.
    more : Out
        High if the ring contains macro-instructions that have not been released.
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
        number, taken = (
            Signal(32),
            Signal(32),
        )  # index of the next slot to request, and of the next slot to release
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
        domain = pipeline_domain(m, self.config.pipelined)
        domain += differs.eq(number != self.head)
        m.d.sync += [
            self.mask.eq((1 << self.log2) - 1),
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
        # `differs` may be one cycle later than the index; state REQUEST accounts for this.
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
                m.d.sync += [
                    left.eq(left - 1),
                    self.ar.p.addr.eq(self.ar.p.addr + burst * self.config.beat_bytes),
                ]
                with m.If(left == 1):
                    m.d.sync += self.ar.p.len.eq(RingSlots.beats(self.config) - (bursts - 1) * burst - 1)
                with m.If(left == 0):
                    m.d.sync += self.ar.valid.eq(0)
                    m.next = "IDLE"
