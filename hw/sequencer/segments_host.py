"""What the host may do with segments: one operation at a time against the segment table."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.isa.enums import SegmentState
from hw.memory.wis import WIS_ADDR_BITS
from hw.sequencer.control_layouts import (
    IN_USE_TRAP_LAYOUT,
    JOB_LAYOUT,
    JOB_RESULT_LAYOUT,
    SEGMENT_ENTRY_LAYOUT,
    SEGMENT_OP_LAYOUT,
    WIS_WRITE_LAYOUT,
    LoaderError,
    SegmentOp,
)
from hw.sequencer.layouts import PC_BITS


class SegmentHost(wiring.Component):
    """Runs the host's operations on segments (docs/machine.md "Segments") and follows the loader's jobs.

    An operation is decided and takes effect in one cycle, against the masks of segments in use of that cycle: a dispatch
    claims a segment in the cycle in which it looks at its state at the latest, so either it sees the changed state or the
    operation sees the claim. Of everything else that can coincide:

    - a word written into a segment that is being checked reopens it and ends the check, also in the check's last cycle;
    - a word written into a segment that is being loaded is just written, in the order of the write port: the check that
      follows reads what is there;
    - open and free of the loader's segment are refused, so the loader never writes into what is no longer its own.

    Latency: 2 cycles, and one more for each segment of the table if a range has to be compared with all of them (open; a
    word outside the segment written last). Throughput: one operation at a time.

    Parameters
    ----------
    config : MlaConfig
        `segments`, `wis_words`.

    Members
    -------
    op : In
        Operations; the transfer is the decision.
    used : In
        Mask of segments that a program uses or a dispatch has claimed, and of pinned ones.
    index : Out, entry : In, define, base, length, set, state, pin : Out
        Host port of the segment table.
    loader_set, loader_index, loader_state : Out
        Loader port of the segment table.
    job, start, cancel : Out
        To the loader: `start` begins `job`, `cancel` ends a check.
    checking, result : In
        From the loader: all words are loaded; the job has ended.
    error : Out
        LOADER_ERROR.
    irq_check, irq_error : Out
        A load or check has ended; `error` was set to other than 0.
    trap : Out
        A segment in use was to be changed; one cycle.
    load_write : In
        Words of the loader.
    w_en, w_addr, w_data : Out
        Write port of the instruction store.
    busy : Out
        A job runs.
    loaded : Out
        A segment has passed its check; one cycle.
    """

    def __init__(self, config: MlaConfig):
        self.segments, self.words = config.segments, config.wis_words
        self.index_bits = bits = (config.segments - 1).bit_length()
        super().__init__({
            "op": In(stream.Signature(SEGMENT_OP_LAYOUT)), "used": In(config.segments),
            "index": Out(bits), "entry": In(SEGMENT_ENTRY_LAYOUT), "define": Out(1), "base": Out(PC_BITS),
            "length": Out(PC_BITS), "set": Out(1), "state": Out(SegmentState), "pin": Out(1),
            "loader_set": Out(1), "loader_index": Out(bits), "loader_state": Out(SegmentState),
            "job": Out(JOB_LAYOUT), "start": Out(1), "cancel": Out(1), "checking": In(1), "result": In(JOB_RESULT_LAYOUT),
            "error": Out(LoaderError), "irq_check": Out(1), "irq_error": Out(1), "trap": Out(IN_USE_TRAP_LAYOUT),
            "load_write": In(stream.Signature(WIS_WRITE_LAYOUT)),
            "w_en": Out(1), "w_addr": Out(WIS_ADDR_BITS), "w_data": Out(64),
            "busy": Out(1), "loaded": Out(1),
        })

    def elaborate(self, platform) -> Elaboratable:
        m = Module()
        op = self.op.p
        low, high = Signal(PC_BITS + 1), Signal(PC_BITS + 1)  # words [low, high) the operation is about
        bad_range, bad_select = Signal(), Signal()
        found, target, position = Signal(), Signal(self.index_bits), Signal(self.index_bits)
        deciding, code = Signal(), Signal(LoaderError)
        cache_valid, cache_low, cache_high, cache_segment = self._cache(m, low, high, target, found, deciding, code)
        writing, opening = Signal(), Signal()
        m.d.comb += [writing.eq(op.kind == SegmentOp.WRITE), opening.eq(op.kind == SegmentOp.OPEN)]
        end, cached = Signal(33), Signal()
        m.d.comb += [
            end.eq(Mux(writing, op.address, op.base) + Mux(writing, 1, op.length)),
            cached.eq(cache_valid & (op.address >= cache_low) & (op.address < cache_high)),
        ]
        sample, sample_valid, sample_last = Signal(SEGMENT_ENTRY_LAYOUT), Signal(), Signal()
        sample_position, sample_end, overlaps = Signal(self.index_bits), Signal(PC_BITS + 1), Signal()
        m.d.comb += overlaps.eq(
            (low < sample_end) & (sample.base < high) & (sample.state != SegmentState.FREE)
            & (writing | (sample_position != op.segment[: self.index_bits]))
        )
        with m.FSM(name="host"):
            with m.State("IDLE"):
                m.d.sync += [
                    low.eq(Mux(writing, op.address, op.base)), high.eq(end), position.eq(0), sample_valid.eq(0),
                    bad_range.eq((end > self.words) | ~writing & ((op.length == 0) | op.length[PC_BITS:].any())),
                    bad_select.eq(op.segment >= self.segments),
                    found.eq(writing & cached), target.eq(Mux(writing, cache_segment, op.segment)),
                ]
                with m.If(self.op.valid & (opening | writing & ~cached)):
                    m.next = "SCAN"
                with m.Elif(self.op.valid):
                    m.next = "DECIDE"
            with m.State("SCAN"):
                m.d.comb += self.index.eq(position)
                m.d.sync += [
                    position.eq(position + 1), sample.eq(self.entry), sample_end.eq(self.entry.base + self.entry.length),
                    sample_position.eq(position), sample_valid.eq(1), sample_last.eq(position == self.segments - 1),
                ]
                with m.If(sample_valid & overlaps):
                    m.d.sync += found.eq(1)
                    with m.If(writing):
                        m.d.sync += target.eq(sample_position)
                with m.If(sample_valid & (overlaps | sample_last)):
                    m.next = "DECIDE"
            with m.State("DECIDE"):
                m.d.comb += [deciding.eq(1), self.index.eq(target), self.op.ready.eq(1)]
                m.next = "IDLE"
        used = self._decide(m, code, target, bad_range, bad_select, found)
        with m.If(deciding):
            self._act(m, code, target, used)
        self._follow_loader(m, deciding, code)
        self._write(m, deciding & writing, code)
        return m

    def _cache(self, m: Module, low, high, target, found, deciding, code) -> tuple[Signal, Signal, Signal, Signal]:
        """The segment written last, so that a run of words needs one scan."""
        valid, segment = Signal(), Signal(self.index_bits)
        cache_low, cache_high = Signal(PC_BITS), Signal(PC_BITS + 1)
        kind = self.op.p.kind
        with m.If(deciding & (kind == SegmentOp.WRITE) & found):
            m.d.sync += [
                valid.eq(1), segment.eq(target), cache_low.eq(self.entry.base),
                cache_high.eq(self.entry.base + self.entry.length),
            ]
        with m.If(deciding & ((kind == SegmentOp.OPEN) | (kind == SegmentOp.FREE))):
            m.d.sync += valid.eq(0)
        return valid, cache_low, cache_high, segment

    def _decide(self, m: Module, code, target, bad_range, bad_select, found) -> Signal:
        """`code`: why the operation is refused. Returns whether a program uses the target."""
        op, state = self.op.p, self.entry.state
        used, loading, editable = Signal(), Signal(), Signal()
        m.d.comb += [
            used.eq(self.used.bit_select(target, 1)), loading.eq(self.busy & (self.loader_index == target)),
            editable.eq((state == SegmentState.OPEN) | (state == SegmentState.FAILED)),
        ]
        refusals = {
            SegmentOp.OPEN: ((bad_select, LoaderError.RANGE), (used | loading, LoaderError.IN_USE),
                             (bad_range, LoaderError.RANGE), (found, LoaderError.OVERLAP)),
            SegmentOp.CHECK: ((bad_select, LoaderError.RANGE), (self.busy, LoaderError.IN_USE),
                              (~editable, LoaderError.NOT_OPEN)),
            SegmentOp.FREE: ((bad_select, LoaderError.RANGE), (used | loading, LoaderError.IN_USE)),
            SegmentOp.PIN: ((bad_select, LoaderError.RANGE), (state != SegmentState.VALID, LoaderError.NOT_OPEN)),
            SegmentOp.LOAD: ((bad_select, LoaderError.RANGE), (self.busy, LoaderError.IN_USE),
                             (~editable, LoaderError.NOT_OPEN), (op.length != self.entry.length, LoaderError.RANGE)),
            SegmentOp.WRITE: ((bad_range, LoaderError.RANGE), (~found, LoaderError.NOT_OPEN), (used, LoaderError.IN_USE)),
        }
        with m.Switch(op.kind):
            for kind, rules in refusals.items():
                with m.Case(kind):
                    for condition, refusal in reversed(rules):
                        with m.If(condition):
                            m.d.comb += code.eq(refusal)
        return used

    def _act(self, m: Module, code, target, used) -> None:
        op = self.op.p
        with m.Switch(op.kind):
            with m.Case(SegmentOp.OPEN, SegmentOp.FREE, SegmentOp.WRITE):
                address = Mux(op.kind == SegmentOp.WRITE, op.address, self.entry.base)
                m.d.comb += [self.trap.valid.eq(used & (code == LoaderError.IN_USE)), self.trap.address.eq(address)]
        m.d.comb += [
            self.trap.segment.eq(target), self.base.eq(op.base), self.length.eq(op.length),
        ]
        with m.If(code == LoaderError.NONE):
            with m.Switch(op.kind):
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
                    # Without this condition the last word of a load could undo the step to CHECKING.
                    m.d.comb += [self.set.eq(self.entry.state != SegmentState.OPEN), self.state.eq(SegmentState.OPEN)]

    def _follow_loader(self, m: Module, deciding, code) -> None:
        op, result = self.op.p, self.result
        starting, cancelling, ended = Signal(), Signal(), Signal()
        m.d.comb += [
            starting.eq(deciding & (code == LoaderError.NONE)
                        & ((op.kind == SegmentOp.CHECK) | (op.kind == SegmentOp.LOAD))),
            cancelling.eq(deciding & (code == LoaderError.NONE) & (op.kind == SegmentOp.WRITE)
                          & (self.entry.state == SegmentState.CHECKING)),
            ended.eq(self.busy & result.valid),
            self.loader_set.eq(ended | self.busy & self.checking),
            self.loaded.eq(ended & result.good & ~cancelling),
            self.irq_check.eq(ended | cancelling),
        ]
        with m.If(~result.valid):
            m.d.comb += self.loader_state.eq(SegmentState.CHECKING)
        with m.Else():
            m.d.comb += self.loader_state.eq(Mux(result.good, SegmentState.VALID, SegmentState.FAILED))
        m.d.sync += [self.start.eq(starting), self.cancel.eq(cancelling), self.irq_error.eq(0)]
        with m.If(ended & ~result.good):
            m.d.sync += [self.error.eq(Mux(result.bus, LoaderError.BUS, LoaderError.CRC)), self.irq_error.eq(1)]
        with m.If(deciding & ((op.kind != SegmentOp.WRITE) | (code != LoaderError.NONE))):
            m.d.sync += [self.error.eq(code), self.irq_error.eq((code != LoaderError.NONE) | ended & ~result.good)]
        with m.If(ended | cancelling):
            m.d.sync += self.busy.eq(0)
        with m.If(starting):
            m.d.sync += [
                self.busy.eq(1), self.loader_index.eq(self.index), self.job.load.eq(op.kind == SegmentOp.LOAD),
                self.job.base.eq(self.entry.base), self.job.length.eq(self.entry.length),
                self.job.source.eq(op.source), self.job.crc.eq(op.crc),
            ]

    def _write(self, m: Module, host, code) -> None:
        """Registered write port; the host goes first."""
        op, load = self.op.p, self.load_write
        m.d.comb += load.ready.eq(~host)
        m.d.sync += [
            self.w_en.eq(Mux(host, code == LoaderError.NONE, load.valid)),
            self.w_addr.eq(Mux(host, op.address, load.p.addr)), self.w_data.eq(Mux(host, op.word, load.p.data)),
        ]
