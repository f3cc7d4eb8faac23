"""Segment loader, which copies a program image from DRAM to the instruction store and checks it."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hw.bus.axi import BURST, RESP_ERROR_BIT, chunk_beats, read_beat
from hw.config import MlaConfig
from hw.control.layouts import JOB_LAYOUT, JOB_RESULT_LAYOUT, WIS_WRITE_LAYOUT
from hw.control.segment_checker import SegmentChecker
from hw.layouts import PC_BITS
from hw.lib.ram import Ram
from hw.memory.instruction_store import WIS_ADDR_BITS

#: Maximum number of bursts in flight.
BURSTS = 8
#: Alignment of every image in bytes.
ALIGNMENT = 64


class LoaderDma(wiring.Component):
    """Reads `length` 64-bit words, starting at DRAM address `source`, and outputs them with their addresses in the
    store.

    A burst is requested only when the buffer has room for all its beats, so `r` is always ready and the loader never
    blocks the beats of other masters on the shared bus. Bursts are whole chunks of at most 64 bytes; the image is
    aligned to 64 bytes, so no burst crosses a 4 KiB boundary.

    Latency: 3 cycles from `start` to the first request, 2 from a beat to its first word. Throughput: one word per
    cycle; one word every two cycles if a beat is half a word.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses the width of the bus and `max_burst`.

    Members
    -------
    start : In
        Start a transfer; `source`, `base` and `length` must be held until `done`.
    ar, r : Out, In
        Read master of the bus: addresses and data.
    write : Out
        Words in order, with their addresses in the store.
    done, failed : Out
        `done` is high for one cycle when every word has been output and every beat has arrived; `failed` is high if a
        beat had an error, after which no further words are output.
    """

    def __init__(self, config: MlaConfig):
        self.n = config.beat_bytes
        self.burst_beats = min(ALIGNMENT // self.n, chunk_beats(config))
        self.burst_words = self.burst_beats * self.n // 8
        self.depth = BURSTS * self.burst_beats
        super().__init__(
            {
                "start": In(1),
                "source": In(32),
                "base": In(PC_BITS),
                "length": In(PC_BITS),
                "ar": Out(stream.Signature(BURST)),
                "r": In(stream.Signature(read_beat(config))),
                "write": Out(stream.Signature(WIS_WRITE_LAYOUT)),
                "done": Out(1),
                "failed": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        busy = Signal()
        taken_burst = Signal()  # high if the last word of a burst leaves the buffer
        outstanding = self._request(m, busy, taken_burst)
        words_left = self._unpack(m, busy, taken_burst)
        with m.If(self.start):
            m.d.sync += [busy.eq(1), self.failed.eq(0)]
        with m.If(self.r.valid & self.r.p.resp[RESP_ERROR_BIT]):
            m.d.sync += self.failed.eq(1)
        finished = Signal()
        m.d.comb += finished.eq(
            (outstanding == 0) & ~self.ar.valid & ((words_left == 0) & ~self.write.valid | self.failed)
        )
        m.d.sync += self.done.eq(busy & finished & ~self.start & ~self.done)
        with m.If(busy & finished):
            m.d.sync += busy.eq(0)
        return m

    def _request(self, m: Module, busy: Signal, taken_burst: Signal) -> Signal:
        """Add the requests, and return the number of bursts that have been requested and are not complete."""
        left = Signal(range((1 << PC_BITS) // self.burst_words + 2))
        outstanding, room = Signal(range(BURSTS + 1)), Signal(range(BURSTS + 1))
        ask, arrived, address = Signal(), Signal(), Signal(32)
        m.d.comb += [
            self.ar.p.addr.eq(address),
            self.ar.p.len.eq(self.burst_beats - 1),
            ask.eq(busy & (left != 0) & (room != 0) & ~self.ar.valid & ~self.failed),
            arrived.eq(self.r.valid & self.r.ready & self.r.p.last),
        ]
        m.d.sync += [outstanding.eq(outstanding + ask - arrived), room.eq(room - ask + taken_burst)]
        with m.If(ask):
            m.d.sync += [self.ar.valid.eq(1), left.eq(left - 1)]
        with m.Elif(self.ar.ready & self.ar.valid):
            m.d.sync += [self.ar.valid.eq(0), address.eq(address + self.burst_beats * self.n)]
        with m.If(self.start):
            shift = (self.burst_words - 1).bit_length()
            m.d.sync += [
                address.eq(self.source),
                left.eq((self.length + (self.burst_words - 1)) >> shift),
                room.eq(BURSTS),
            ]
        return outstanding

    def _unpack(self, m: Module, busy: Signal, taken_burst: Signal) -> Signal:
        """Add the output of words, and return the number of words that have not been output yet."""
        per_word, per_beat = max(1, 8 // self.n), max(1, self.n // 8)
        m.submodules.buffer = buffer = Ram(width=8 * self.n, depth=self.depth, comb=True)
        head, tail = Signal(range(self.depth)), Signal(range(self.depth))
        filled = Signal(range(self.depth + 1))
        phase, words_left = Signal(range(max(2, per_word, per_beat))), Signal(PC_BITS)
        advance, pop, word = Signal(), Signal(), Signal(64)
        m.d.comb += [
            self.r.ready.eq(1),
            buffer.w_addr.eq(tail),
            buffer.w_data.eq(self.r.p.data),
            buffer.w_en.eq(self.r.valid),
            buffer.r0_addr.eq(head),
            advance.eq(busy & (filled != 0) & (~self.write.valid | self.write.ready)),
            pop.eq(advance & (phase == per_beat - 1)),
            taken_burst.eq(pop & (head % self.burst_beats == self.burst_beats - 1)),
        ]
        m.d.sync += [
            tail.eq(tail + self.r.valid),
            head.eq(head + pop),
            filled.eq(filled + self.r.valid - pop),
        ]
        complete = Signal()
        if per_word > 1:
            low = Signal(8 * self.n)
            m.d.comb += [word.eq(Cat(low, buffer.r0_data)), complete.eq(phase == 1), pop.eq(advance)]
            with m.If(advance):
                m.d.sync += low.eq(buffer.r0_data)
        else:
            m.d.comb += [
                word.eq(buffer.r0_data.word_select(phase[: (per_beat - 1).bit_length()], 64)),
                complete.eq(1),
            ]
        with m.If(advance):
            m.d.sync += phase.eq(Mux(phase == max(per_word, per_beat) - 1, 0, phase + 1))
        with m.If(self.write.ready):
            m.d.sync += self.write.valid.eq(0)
        with m.If(self.write.valid & self.write.ready):
            m.d.sync += self.write.p.addr.eq(self.write.p.addr + 1)
        with m.If(advance & complete & (words_left != 0) & ~self.failed):
            m.d.sync += [self.write.valid.eq(1), self.write.p.data.eq(word), words_left.eq(words_left - 1)]
        with m.If(self.start):
            m.d.sync += [
                self.write.p.addr.eq(self.base),
                words_left.eq(self.length),
                phase.eq(0),
                head.eq(0),
                tail.eq(0),
                filled.eq(0),
            ]
        return words_left


class Loader(wiring.Component):
    """Loads and checks a segment: optionally reads the segment's image from DRAM, then reads the segment back and
    compares its CRC.

    Latency: a check takes `length` + 7 cycles; a load adds the latency of the DMA. Throughput: one operation at a
    time.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses the width of the bus and the maximum burst length.

    Members
    -------
    job, start : In
        `start` begins the operation `job`, which must be held until `result`.
    cancel : In
        Abort a check; a result in this cycle or the next one must be ignored.
    checking : Out
        One-cycle pulse when the image is complete in the store and its check begins; never set by an operation that
        only checks a segment.
    result : Out
        End of the operation (`valid`), with its outcome.
    write : Out
        Words for the instruction store.
    check_addr, check_en : Out, check_data : In
        Read-back port of the instruction store.
    ar, r : Out, In
        Read master of the bus: addresses and data.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        super().__init__(
            {
                "job": In(JOB_LAYOUT),
                "start": In(1),
                "cancel": In(1),
                "checking": Out(1),
                "result": Out(JOB_RESULT_LAYOUT),
                "write": Out(stream.Signature(WIS_WRITE_LAYOUT)),
                "check_addr": Out(WIS_ADDR_BITS),
                "check_en": Out(1),
                "check_data": In(64),
                "ar": Out(stream.Signature(BURST)),
                "r": In(stream.Signature(read_beat(self.config))),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.dma = dma = LoaderDma(self.config)
        m.submodules.checker = checker = SegmentChecker(slow=self.config.serial_commands)
        connect(m, dma.ar, flipped(self.ar))
        connect(m, flipped(self.r), dma.r)
        connect(m, dma.write, flipped(self.write))
        m.d.comb += [
            dma.source.eq(self.job.source),
            dma.base.eq(self.job.base),
            dma.length.eq(self.job.length),
            checker.base.eq(self.job.base),
            checker.length.eq(self.job.length),
            checker.cancel.eq(self.cancel),
            self.check_addr.eq(checker.check_addr),
            self.check_en.eq(checker.check_en),
            checker.check_data.eq(self.check_data),
        ]
        matches = Signal()
        m.d.sync += [self.result.valid.eq(0), matches.eq(checker.crc == self.job.crc)]
        with m.FSM(name="loader"):
            with m.State("IDLE"), m.If(self.start):
                m.d.comb += dma.start.eq(self.job.load)
                with m.If(self.job.load):
                    m.next = "LOAD"
                with m.Else():
                    m.next = "SETTLE"
            with m.State("LOAD"):
                with m.If(dma.done & dma.failed):
                    m.d.sync += [self.result.valid.eq(1), self.result.good.eq(0), self.result.bus.eq(1)]
                    m.next = "IDLE"
                with m.Elif(dma.done):
                    m.d.comb += self.checking.eq(1)
                    m.next = "SETTLE"
            with m.State("SETTLE"):
                # A word that the host wrote while the state was still OPEN reaches the store in this cycle.
                m.next = "BEGIN"
                self._end_if_cancelled(m)
            with m.State("BEGIN"):
                m.d.comb += checker.start.eq(1)
                m.next = "CHECK"
                self._end_if_cancelled(m)
            with m.State("CHECK"):
                with m.If(checker.done):
                    m.next = "COMPARE"
                self._end_if_cancelled(m)
            with m.State("COMPARE"):
                m.d.sync += [self.result.valid.eq(1), self.result.good.eq(matches), self.result.bus.eq(0)]
                m.next = "IDLE"
        return m

    def _end_if_cancelled(self, m: Module) -> None:
        with m.If(self.cancel):
            m.next = "IDLE"
