"""Read-back of a segment and computation of its CRC."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.crc.catalog import CRC32_ISO_HDLC
from amaranth.lib.wiring import In, Out

from hw.layouts import PC_BITS
from hw.memory.instruction_store import WIS_ADDR_BITS

_WORD, _BYTE = 64, 8
_BYTES = _WORD // _BYTE


class SegmentChecker(wiring.Component):
    """Reads a segment back through the instruction store's second port and computes its CRC-32.

    Latency: `length` + 4 cycles from `start` to `done`. Throughput: one word per cycle, with `slow` one word every 8
    cycles.

    Parameters
    ----------
    slow : int
        1 if the CRC processes one byte per cycle, which takes a quarter of the logic; else 0.

    Members
    -------
    start : In
        Start a check of `length` (at least 1) words, starting at `base`; `base` and `length` must be held until `done`.
    cancel : In
        Abandon the check in progress.
    check_addr, check_en : Out, check_data : In
        Read port of the instruction store.
    done, crc : Out
        One-cycle pulse at the end of the check, and the CRC of the segment.
    """

    start: In(1)
    cancel: In(1)
    base: In(WIS_ADDR_BITS)
    length: In(PC_BITS)
    check_addr: Out(WIS_ADDR_BITS)
    check_en: Out(1)
    check_data: In(64)
    done: Out(1)
    crc: Out(32)

    def __init__(self, slow: int = 0) -> None:
        self._slow = slow
        super().__init__()

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.crc = crc = CRC32_ISO_HDLC(data_width=_BYTE if self._slow else _WORD).create()
        reading, left = Signal(), Signal(PC_BITS)
        last = Signal()
        # Three stages follow the address: a register for the read data, a register for the word, and the CRC.
        data_valid, word_valid, word = Signal(), Signal(), Signal(64)
        data_last, word_last, crc_last = Signal(), Signal(), Signal()
        read = reading
        if self._slow:
            read, turn = Signal(), Signal(range(_BYTES))
            m.d.comb += read.eq(reading & (turn == 0))
            m.d.sync += turn.eq(Mux(self.start, 0, turn + 1))
            word_valid, word_last = self._bytes(m, word, data_valid, data_last)
        m.d.comb += [
            last.eq(left == 1),
            self.check_en.eq(read),
            crc.start.eq(self.start),
            crc.valid.eq(word_valid & ~self.start),  # discard a word of a cancelled check
            crc.data.eq(word),
            self.crc.eq(crc.crc),
            self.done.eq(crc_last),
        ]
        m.d.sync += [
            data_valid.eq(read),
            data_last.eq(read & last),
            crc_last.eq(word_last),
        ]
        if not self._slow:
            m.d.sync += [word_valid.eq(data_valid), word_last.eq(data_last)]
        with m.If(data_valid):
            m.d.sync += word.eq(self.check_data)
        with m.If(read):
            m.d.sync += [self.check_addr.eq(self.check_addr + 1), left.eq(left - 1)]
            with m.If(last):
                m.d.sync += reading.eq(0)
        with m.If(self.start):
            m.d.sync += [reading.eq(1), self.check_addr.eq(self.base), left.eq(self.length)]
        with m.If(self.cancel):
            m.d.sync += [reading.eq(0), data_last.eq(0), crc_last.eq(0)]
            if not self._slow:
                m.d.sync += word_last.eq(0)
        return m

    def _bytes(self, m: Module, word: Signal, loads: Value, final: Value) -> tuple[Value, Value]:
        """Shift out the bytes of the words, which are loaded every eight cycles, and return the valid flag and the last
        flag of the current byte.
        """
        left, ends = Signal(range(_BYTES + 1)), Signal()
        with m.If(left != 0):
            m.d.sync += [left.eq(left - 1), word.eq(word >> _BYTE)]
        with m.If(loads):
            m.d.sync += [left.eq(_BYTES), ends.eq(final)]
        with m.If(self.start | self.cancel):
            m.d.sync += [left.eq(0), ends.eq(0)]
        return left != 0, (left == 1) & ends
