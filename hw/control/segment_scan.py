"""Finds the segment that a range of words touches."""

from amaranth.hdl import Elaboratable, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.control.layouts import SEGMENT_ENTRY_LAYOUT
from hw.isa.enums import SegmentState
from hw.sequencer.layouts import PC_BITS


class SegmentScan(wiring.Component):
    """Compares a range of words with all segments that are not FREE, one a cycle, until one overlaps.

    Latency: 3 cycles from `start` to `done` if segment 0 overlaps, one more for each segment before the one
    that does. Throughput: one scan at a time.

    Parameters
    ----------
    config : MlaConfig
        `segments`.

    Members
    -------
    start : In
        Begin; what follows stays until `done`.
    low, high : In
        The range: words low..high - 1.
    skip, skipped : In
        With `skip`, segment `skipped` does not count.
    active, index : Out, entry : In
        While `active` the table's host port looks up `index`.
    done, found, position : Out
        `done` is up for one cycle; if `found`, segment `position` overlaps.
    """

    def __init__(self, config: MlaConfig):
        self.segments = config.segments
        bits = (config.segments - 1).bit_length()
        super().__init__(
            {
                "start": In(1),
                "low": In(PC_BITS + 1),
                "high": In(PC_BITS + 1),
                "skip": In(1),
                "skipped": In(bits),
                "active": Out(1),
                "index": Out(bits),
                "entry": In(SEGMENT_ENTRY_LAYOUT),
                "done": Out(1),
                "found": Out(1),
                "position": Out(bits),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        # The look-up, then the comparison.
        sample, sample_end, sampled = Signal(SEGMENT_ENTRY_LAYOUT), Signal(PC_BITS + 1), Signal()
        overlaps, last = Signal(), Signal()
        m.d.comb += [
            overlaps.eq(
                (self.low < sample_end)
                & (sample.base < self.high)
                & (sample.state != SegmentState.FREE)
                & ~(self.skip & (self.position == self.skipped))
            ),
            last.eq(self.position == self.segments - 1),
            self.found.eq(sampled & overlaps),
            self.done.eq(sampled & (overlaps | last)),
        ]
        with m.If(self.start):
            m.d.sync += [self.active.eq(1), self.index.eq(0)]
        with m.Elif(self.done):
            m.d.sync += [self.active.eq(0), sampled.eq(0)]
        with m.Elif(self.active):
            m.d.sync += [self.index.eq(self.index + 1), sampled.eq(1)]
        with m.If(self.active):
            m.d.sync += [
                self.position.eq(self.index),
                sample.eq(self.entry),
                sample_end.eq(self.entry.base + self.entry.length),
            ]
        return m
