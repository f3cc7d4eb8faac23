"""The double buffer behind the command ring."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.bus.axi import RESP_ERROR_BIT, read_beat
from hw.config import MlaConfig
from hw.control.layouts import HEADER_LAYOUT
from hw.isa.macro_instruction import MAGIC, OPERAND_WORD
from hw.isa.micro_instruction import MAX_OPERANDS
from hw.lib.ram import Ram

#: Words of a slot that are read.
_WORDS = OPERAND_WORD + MAX_OPERANDS
#: Words that each half of the buffer spans.
_SPAN = 64

SLOT_LAYOUT = data.StructLayout({"header": HEADER_LAYOUT, "fault": 1})


class RingSlots(wiring.Component):
    """Receives the beats of the slots in order, alternately into two halves of the operand buffer, and offers
    the older slot.

    A slot may be released while beats that nobody needs are still on their way: they go where the slot after
    the next will overwrite them. Beats must not be requested for more than two slots that have not been
    released.

    Latency: 2 cycles from the last needed beat to `valid`; 1 for an operand. Throughput: one beat per cycle,
    `r` is always ready.

    Parameters
    ----------
    config : MlaConfig
        `n` is the width of the bus in bytes.

    Members
    -------
    r : In
        Beats.
    valid, slot : Out
        A slot's header and needed operands have arrived; `fault`: with a bus error.
    release : In
        The slot on offer is done with.
    operand_addr : In, operand_data : Out
        Operand of the slot on offer.
    """

    def __init__(self, config: MlaConfig):
        self.n = config.n
        self.beat_words = config.n // 4
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
        """Beats of one slot."""
        return _WORDS * 4 // config.n

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.d.comb += self.r.ready.eq(1)
        beat, half = Signal(range(self.slot_beats)), Signal()  # of the beat to come
        got, needed, fault, open_half = (
            Signal(range(self.slot_beats + 1)),
            Signal(range(self.slot_beats + 1)),
            Signal(),
            Signal(),
        )
        pending, offered = (
            Signal(),
            Signal(2),
        )  # the slot being received has not been offered; halves on offer
        oldest, enough = Signal(), Signal()
        slots = [Signal(SLOT_LAYOUT, name=f"slot{i}") for i in range(2)]
        m.d.comb += [
            enough.eq(pending & (got >= needed)),
            self.valid.eq(offered.bit_select(oldest, 1)),
            self.slot.eq(Mux(oldest, slots[1].as_value(), slots[0].as_value())),
        ]
        with m.If(enough):
            m.d.sync += [pending.eq(0), offered.bit_select(open_half, 1).eq(1)]
            for i, slot in enumerate(slots):
                with m.If(open_half == i):
                    m.d.sync += slot.fault.eq(fault)
        with m.If(self.release):
            m.d.sync += [offered.bit_select(oldest, 1).eq(0), oldest.eq(~oldest)]
        with m.If(self.r.valid):
            bad = self.r.p.resp[RESP_ERROR_BIT]
            m.d.sync += [beat.eq(beat + 1), got.eq(beat + 1)]
            with m.If(beat == self.slot_beats - 1):
                m.d.sync += [beat.eq(0), half.eq(~half)]
            with m.If(beat == 0):
                m.d.sync += [
                    pending.eq(1),
                    open_half.eq(half),
                    fault.eq(bad),
                    needed.eq(Mux(bad, 1, self._needed(m))),
                ]
                for i, slot in enumerate(slots):
                    with m.If(half == i):
                        m.d.sync += slot.header.eq(self.r.p.data[:32])
            with m.Elif(bad):
                m.d.sync += fault.eq(1)
        self._operands(m, beat, half, oldest)
        return m

    def _needed(self, m: Module) -> Signal:
        """Beats up to the last operand of the header that is arriving; only the first if nothing in it makes
        sense.
        """
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
        # Operand 0 lands in row 0 of its half; the words before it wrap to the unused end.
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
