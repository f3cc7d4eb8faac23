"""Writes completion records."""

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.bus.axi import BURST, write_beat
from hw.config import MlaConfig
from hw.control.layouts import RECORD_LAYOUT
from hw.isa.macro_instruction import RECORD_WORD, RECORD_WORDS

_RECORD_BYTES = 4 * RECORD_WORDS

#: A record and the address of its slot.
WRITE_LAYOUT = data.StructLayout({"slot": 32, "record": RECORD_LAYOUT, "begin": 32, "end": 32, "steps": 32})


class RecordWriter(wiring.Component):
    """One AXI burst for each completion record.

    Latency: `aw` and the first beat 1 cycle after `record`. Throughput: a record every 16 / n + 1 cycles,
    every 2 when it fits a beat.

    Parameters
    ----------
    config : MlaConfig
        `n` is the width of the bus in bytes.

    Members
    -------
    record : In
        Records.
    aw, w : Out
        Write master.
    """

    def __init__(self, config: MlaConfig):
        self.n = config.n
        self.beats = max(1, _RECORD_BYTES // config.n)
        super().__init__(
            {
                "record": In(stream.Signature(WRITE_LAYOUT)),
                "aw": Out(stream.Signature(BURST)),
                "w": Out(stream.Signature(write_beat(config))),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        record = self.record.p
        first_byte = RECORD_WORD * 4 // self.n * self.n  # a burst starts with a whole beat
        skip = RECORD_WORD * 4 - first_byte
        width = 8 * self.n * self.beats
        words, left, address = Signal(width), Signal(range(self.beats + 1)), Signal(32)
        m.d.comb += [
            self.record.ready.eq(~self.aw.valid & ~self.w.valid),
            self.w.p.data.eq(words),
            self.w.p.strb.eq(((1 << min(self.n, _RECORD_BYTES)) - 1) << skip),
            self.w.p.last.eq(left == 0),
            self.aw.p.addr.eq(address),
            self.aw.p.len.eq(self.beats - 1),
        ]
        with m.If(self.aw.ready):
            m.d.sync += self.aw.valid.eq(0)
        with m.If(self.w.valid & self.w.ready):
            m.d.sync += [
                words.eq(words >> 8 * self.n),
                left.eq(Mux(left == 0, 0, left - 1)),
                self.w.valid.eq(left != 0),
            ]
        with m.If(self.record.valid & self.record.ready):
            m.d.sync += [
                self.aw.valid.eq(1),
                address.eq(record.slot + first_byte),
                self.w.valid.eq(1),
                left.eq(self.beats - 1),
                words.eq(
                    Cat(Const(0, 8 * skip), record.record.as_value(), record.begin, record.end, record.steps)
                ),
            ]
        return m
