"""Operations of the host on segments, one at a time, and the scan of the segment table for overlaps."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.control.layouts import (
    IN_USE_TRAP_LAYOUT,
    JOB_LAYOUT,
    SEGMENT_ENTRY_LAYOUT,
    SEGMENT_OP_LAYOUT,
    LoaderError,
    SegmentOp,
)
from hw.isa.enums import SegmentState
from hw.layouts import PC_BITS
from hw.lib.pipeline import pipeline_domain


class SegmentScan(wiring.Component):
    """Compares a range of words with all segments that are not FREE, one segment per cycle, until one overlaps.

    Latency: 3 cycles from `start` to `done` if segment 0 overlaps, and one more for each segment before the
    overlapping one. Throughput: one scan at a time.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses `segments`.

    Members
    -------
    start : In
        Start a scan; the inputs below must be held until `done`.
    low, high : In
        Range of words, low..high - 1.
    skip, skipped : In
        If `skip` is set, segment `skipped` is not compared.
    active, index : Out, entry : In
        While `active` is high, the host port of the segment table must look up `index`; `entry` is its result.
    done, found, position : Out
        One-cycle pulse at the end of the scan; if `found` is high, segment `position` overlaps.
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
        # The look-up is followed by the comparison.
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


class SegmentHost(wiring.Component):
    """Accepts or refuses the host's operations on segments (docs/machine.md, "Segments").

    An operation is decided and takes effect in a single cycle, according to the mask of segments in use in that cycle.
    A dispatch claims a segment no later than in the cycle in which it evaluates the segment's state, so either the
    dispatch observes the changed state or the operation observes the claim. The following happens if other operations
    are in progress at the same time:

    - a word written to a segment that is being checked reopens the segment and ends the check, even in the check's last
      cycle;
    - a word written to a segment that is being loaded is stored in the order of the accesses to the write port; the
      subsequent check reads the final contents;
    - the operations OPEN and FREE on the loader's segment are refused, so the loader never writes outside its segment.

    Latency: 3 cycles, and up to `segments` + 2 more if a range has to be compared with all segments (for OPEN, and for
    a word outside the segment that was written last). Throughput: one operation at a time.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses `segments`, `wis_words`.

    Members
    -------
    op : In
        Operations of the host; an operation is decided in the cycle of its transfer.
    used : In
        Mask of segments that are used by a program, claimed by a dispatch, or pinned.
    busy, busy_segment : In
        High if the loader is busy; index of its segment.
    index : Out, entry : In, define, base, length, set, state, pin : Out
        Host port of the segment table.
    decided, code, writing : Out
        `decided`: high if an operation is decided in this cycle; `code`: reason for its refusal, or NONE; `writing`:
        high if the operation is the write of a word.
    job, start, cancel : Out
        Ports to the loader: in the next cycle, `start` begins the operation `job`; `cancel` is high if a word is
        written to the segment that is being checked.
    trap : Out
        One-cycle pulse when a change to a segment in use is refused.
    write : Out
        High if the word of this cycle's operation is written to the instruction store.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        self.index_bits = bits = (config.segments - 1).bit_length()
        super().__init__(
            {
                "op": In(stream.Signature(SEGMENT_OP_LAYOUT)),
                "used": In(config.segments),
                "busy": In(1),
                "busy_segment": In(bits),
                "index": Out(bits),
                "entry": In(SEGMENT_ENTRY_LAYOUT),
                "define": Out(1),
                "base": Out(PC_BITS),
                "length": Out(PC_BITS),
                "set": Out(1),
                "state": Out(SegmentState),
                "pin": Out(1),
                "decided": Out(1),
                "writing": Out(1),
                "code": Out(LoaderError),
                "job": Out(JOB_LAYOUT),
                "start": Out(1),
                "cancel": Out(1),
                "trap": Out(IN_USE_TRAP_LAYOUT),
                "write": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        op = self.op.p
        m.submodules.scan = scan = SegmentScan(self.config)
        bad_range, bad_select, found = Signal(), Signal(), Signal()
        target = Signal(self.index_bits)
        end, writing, scanning = Signal(33), Signal(), Signal()
        # These are registers because the path through the decoder of host registers is long.
        self._kind = kind = Signal(SegmentOp)
        self._wrong_length = wrong_length = Signal()
        cached, cache_segment = self._cache(m, found)
        m.d.comb += [
            writing.eq(op.kind == SegmentOp.WRITE),
            scanning.eq((op.kind == SegmentOp.OPEN) | writing & ~cached),
            scan.high.eq(end),
            scan.skip.eq(~self.writing),
            scan.skipped.eq(op.segment),
            scan.entry.eq(self.entry),
            self.index.eq(Mux(scan.active, scan.index, target)),
        ]
        with m.FSM(name="host"):
            with m.State("IDLE"):
                m.d.sync += [
                    kind.eq(op.kind),
                    scan.low.eq(Mux(writing, op.address, op.base)),
                    end.eq(Mux(writing, op.address, op.base) + Mux(writing, 1, op.length)),
                    bad_select.eq(op.segment >= self.config.segments),
                    found.eq(writing & cached),
                    target.eq(Mux(writing, cache_segment, op.segment)),
                ]
                with m.If(self.op.valid & scanning):
                    m.d.comb += scan.start.eq(1)
                    m.next = "SCAN"
                with m.Elif(self.op.valid):
                    m.next = "LOOK"
            with m.State("SCAN"), m.If(scan.done):
                m.d.sync += found.eq(scan.found)
                with m.If(self.writing):
                    m.d.sync += target.eq(scan.position)
                m.next = "LOOK"
            with m.State("LOOK"):
                # Only this component changes lengths, so the comparison is still valid in the cycle of the decision.
                m.d.sync += [
                    wrong_length.eq(op.length != self.entry.length),
                    bad_range.eq(
                        (end > self.config.wis_words)
                        | ~self.writing & ((op.length == 0) | op.length[PC_BITS:].any())
                    ),
                ]
                m.next = "DECIDE"
            with m.State("DECIDE"):
                m.d.comb += [self.decided.eq(1), self.op.ready.eq(1)]
                m.next = "IDLE"
        m.d.comb += self.writing.eq(kind == SegmentOp.WRITE)
        used = self._judge(m, target, bad_range, bad_select, found)
        with m.If(self.decided & (self.code == LoaderError.NONE)):
            self._act(m)
        self._refuse(m, target, used)
        self._start(m)
        return m

    def _cache(self, m: Module, found: Signal) -> tuple[Signal, Signal]:
        """Return the hit flag and the index of the cached segment, to which the last word was written. The words of one
        segment therefore need a single scan.
        """
        op, cached = self.op.p, Signal()
        valid, segment = Signal(), Signal(self.index_bits)
        low, high = Signal(PC_BITS), Signal(PC_BITS + 1)
        m.d.comb += cached.eq(valid & (op.address >= low) & (op.address < high))
        with m.If(self.decided & (self._kind == SegmentOp.WRITE) & found):
            m.d.sync += [valid.eq(1), segment.eq(self.index)]
            m.d.sync += [low.eq(self.entry.base), high.eq(self.entry.base + self.entry.length)]
        with m.If(self.decided & ((self._kind == SegmentOp.OPEN) | (self._kind == SegmentOp.FREE))):
            m.d.sync += valid.eq(0)
        return cached, segment

    def _judge(
        self, m: Module, target: Signal, bad_range: Signal, bad_select: Signal, found: Signal
    ) -> Signal:
        """Drive `code`, the reason for a refusal, and return a signal that is high if segment `target` is in use."""
        state = self.entry.state
        used, loading, closed = Signal(), Signal(), Signal()
        domain = pipeline_domain(m, self.config.pipelined)
        domain += used.eq(self.used.bit_select(target, 1))
        m.d.comb += [
            loading.eq(self.busy & (self.busy_segment == target)),
            closed.eq((state != SegmentState.OPEN) & (state != SegmentState.FAILED)),
        ]
        select, loader = (bad_select, LoaderError.RANGE), (self.busy, LoaderError.IN_USE)
        edit, touch = (closed, LoaderError.NOT_OPEN), (used | loading, LoaderError.IN_USE)
        limits = (bad_range, LoaderError.RANGE)
        refusals = {
            SegmentOp.OPEN: (select, touch, limits, (found, LoaderError.OVERLAP)),
            SegmentOp.CHECK: (select, loader, edit),
            SegmentOp.FREE: (select, touch),
            SegmentOp.PIN: (select, (state != SegmentState.VALID, LoaderError.NOT_OPEN)),
            SegmentOp.LOAD: (select, loader, edit, (self._wrong_length, LoaderError.RANGE)),
            SegmentOp.WRITE: (limits, (~found, LoaderError.NOT_OPEN), (used, LoaderError.IN_USE)),
        }
        with m.Switch(self._kind):
            for kind, rules in refusals.items():
                with m.Case(kind):
                    for condition, refusal in reversed(rules):
                        with m.If(condition):
                            m.d.comb += self.code.eq(refusal)
        return used

    def _act(self, m: Module) -> None:
        op = self.op.p
        m.d.comb += [self.base.eq(op.base), self.length.eq(op.length)]
        with m.Switch(self._kind):
            with m.Case(SegmentOp.OPEN):
                m.d.comb += [self.define.eq(1), self.set.eq(1), self.state.eq(SegmentState.OPEN)]
            with m.Case(SegmentOp.FREE):
                m.d.comb += [self.set.eq(1), self.state.eq(SegmentState.FREE)]
            with m.Case(SegmentOp.CHECK):
                m.d.comb += [self.set.eq(1), self.state.eq(SegmentState.CHECKING)]
            with m.Case(SegmentOp.LOAD):
                m.d.comb += [self.set.eq(1), self.state.eq(SegmentState.OPEN)]
            with m.Case(SegmentOp.PIN):
                m.d.comb += self.pin.eq(1)
            with m.Case(SegmentOp.WRITE):
                # The state of an OPEN segment is not written, because the loader may change it to CHECKING in this
                # cycle.
                m.d.comb += [self.set.eq(self.entry.state != SegmentState.OPEN), self.write.eq(1)]
                m.d.comb += self.state.eq(SegmentState.OPEN)

    def _refuse(self, m: Module, target: Signal, used: Signal) -> None:
        op = self.op.p
        kinds = (SegmentOp.OPEN, SegmentOp.FREE, SegmentOp.WRITE)
        changes = Signal()
        with m.Switch(self._kind), m.Case(*kinds):
            m.d.comb += changes.eq(1)
        m.d.comb += [
            self.trap.valid.eq(self.decided & changes & used & (self.code == LoaderError.IN_USE)),
            self.trap.segment.eq(target),
            self.trap.address.eq(Mux(self._kind == SegmentOp.WRITE, op.address, self.entry.base)),
        ]

    def _start(self, m: Module) -> None:
        op, job = self.op.p, Signal()
        m.d.comb += [
            job.eq(self.decided & ((self._kind == SegmentOp.CHECK) | (self._kind == SegmentOp.LOAD))),
            self.cancel.eq(self.write & (self.entry.state == SegmentState.CHECKING)),
        ]
        m.d.sync += self.start.eq(job & (self.code == LoaderError.NONE))
        # The start is decided late in the cycle, so a refused operation also loads these inputs; an idle loader
        # ignores them.
        with m.If(job & ~self.busy):
            m.d.sync += [
                self.job.load.eq(self._kind == SegmentOp.LOAD),
                self.job.segment.eq(self.index),
                self.job.base.eq(self.entry.base),
                self.job.length.eq(self.entry.length),
                self.job.source.eq(op.source),
                self.job.crc.eq(op.crc),
            ]
