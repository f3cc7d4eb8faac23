"""The FUSE unit: drain path of the array and vector engine in one."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.fuse import lane_reduce, post, reduce, requant, residual, source, tables
from hw.fuse import op as operator
from hw.fuse.decoder import Decoder
from hw.fuse.delay import Delay
from hw.fuse.issue import Issue
from hw.fuse.lane_reduce import LaneReduce
from hw.fuse.layouts import COMMANDS, CREDITS, INDEX_BITS, control_write, controls, lanes_of
from hw.fuse.op import Operator
from hw.fuse.params import Params
from hw.fuse.post import PostScale
from hw.fuse.reduce import WindowReduce
from hw.fuse.requant import COUNT_BITS, Requantizer
from hw.fuse.residual import Residual
from hw.fuse.source import Source
from hw.fuse.statistics import Statistics
from hw.fuse.tables import TableLookup
from hw.fuse.walker import Walker
from hw.fuse.writer import Writer
from hw.isa.enums import Unit
from hw.layouts import (
    AccReadPort,
    AccWritePort,
    SlotWritePort,
    SpReadPort,
    SpWritePort,
    command_stream,
    event_layout,
)

#: Cycles from the operands' arrival to the residual stage, and from the requantizer's result to the end of the pipeline.
_TO_RESIDUAL = operator.LATENCY + requant.LATENCY + tables.LATENCY
_STAGES = ("source", "op", "requant", "table", "residual", "table2", "reduce", "lane_reduce", "post")


def pipeline_latency(config: MlaConfig) -> int:
    """Cycles from a beat at the operand registers to its end of the pipeline."""
    return (
        source.LATENCY + _TO_RESIDUAL + residual.LATENCY + tables.LATENCY + reduce.LATENCY
        + lane_reduce.latency(config) + post.LATENCY
    )


class FuseUnit(wiring.Component):
    """Reads operands, takes them through the six steps of docs/machine.md, writes results.

    A rigid pipeline between elastic ends: a point is issued only when the queue before the writer has room for it, so
    nothing in between ever stalls. Up to COMMANDS commands are inside at once, each beat carrying the index of its own.

    Latency: pipeline_latency(config) plus about eight cycles from a command to its first write. Throughput: one row in
    fuse_rate cycles, or as many cycles as its scratchpad reads, accumulator reads or writes.

    Parameters
    ----------
    config : MlaConfig
        The machine.

    Members
    -------
    cmd : In(stream)
        Commands whose semaphores have been taken.
    done : Out(1)
        The oldest command has finished; all its writes are visible.
    rows, zeros, min, max : Out(32)
        Statistics of the last finished command.
    sp_read, sp_write, acc_read, acc_write : Out
        Memory ports.
    slot_write : In
        Writes of parameter slots and tables.
    events, out_events : Out
        Increments of the counters, both with `active_tag`; those of the queue are left 0.
    active : Out(1), active_tag : Out(6)
        Commands are inside; tag of the oldest.
    """

    def __init__(self, config: MlaConfig):
        self._config = config
        if pipeline_latency(config) + 6 > CREDITS:
            raise ValueError(f"{CREDITS} credits do not cover a pipeline of {pipeline_latency(config)} cycles")
        super().__init__({
            "cmd": In(command_stream(Unit.FUSE)), "done": Out(1),
            **{name: Out(32) for name in ("rows", "zeros", "min", "max")},
            "sp_read": Out(SpReadPort(config)), "sp_write": Out(SpWritePort(config)),
            "acc_read": Out(AccReadPort(config)), "acc_write": Out(AccWritePort(config)),
            "slot_write": In(SlotWritePort(config)),
            "events": Out(event_layout("fuse")), "out_events": Out(event_layout("fuse_out")), "active": Out(1), "active_tag": Out(6),
        })

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        config = self._config
        m.submodules.walker = self._walker = Walker(config)
        m.submodules.issue = self._issue = Issue(config)
        m.submodules.source = self._source = Source(config)
        m.submodules.params = self._params = Params(config)
        m.submodules.op = self._op = Operator(config)
        m.submodules.requant = self._requant = Requantizer(config)
        m.submodules.table = self._table = TableLookup(config)
        m.submodules.residual = self._residual = Residual(config)
        m.submodules.table2 = self._table2 = TableLookup(config)
        m.submodules.reduce = self._reduce = WindowReduce(config)
        m.submodules.lane_reduce = self._lane_reduce = LaneReduce(config)
        m.submodules.post = self._post = PostScale(config)
        m.submodules.writer = self._writer = Writer(config)
        m.submodules.statistics = self._statistics = Statistics(config)
        self._commands(m)
        self._front(m)
        self._middle(m)
        self._back(m)
        self._report(m)
        return m

    def _commands(self, m: Module) -> None:
        """Accept commands, and hand the decoded controls to every stage."""
        walker = self._walker
        m.submodules.decoder = decoder = Decoder(self._config)
        wiring.connect(m, wiring.flipped(self.cmd), walker.cmd)
        m.d.comb += [decoder.cmd.eq(self.cmd.payload), walker.read.eq(decoder.read)]
        targets = {name: getattr(self, f"_{name}") for name in (*_STAGES, "writer")}
        layouts = controls(self._config.n)
        for name, stage in targets.items():
            kind = "reduce" if name == "lane_reduce" else name
            held = Signal(control_write(layouts[kind]), name=f"{name}_controls")
            # One register between decoder and stores: no stage needs the controls that soon.
            m.d.sync += [
                held.write.eq(walker.load), held.index.eq(walker.index), held.control.eq(getattr(decoder, kind)),
            ]
            m.d.comb += stage.controls.eq(held)
        inside = Signal(range(COMMANDS + 1))
        m.d.sync += inside.eq(inside + walker.load - self.done)
        m.d.comb += [walker.room.eq(inside != COMMANDS), self.active.eq(inside != 0)]
        tags = [Signal(6, name=f"tag_{i}") for i in range(COMMANDS)]
        oldest = Signal(INDEX_BITS)
        m.d.sync += oldest.eq(oldest + self.done)
        for number, tag in enumerate(tags):
            with m.If(walker.load & (walker.index == number)):
                m.d.sync += tag.eq(self.cmd.payload.meta.tag)
            with m.If(oldest == number):
                m.d.comb += self.active_tag.eq(tag)

    def _front(self, m: Module) -> None:
        """Points, reads, operands."""
        issue, source_ = self._issue, self._source
        wiring.connect(m, self._walker.points, issue.points)
        wiring.connect(m, issue.sp_read, wiring.flipped(self.sp_read))
        wiring.connect(m, issue.acc_read, wiring.flipped(self.acc_read))
        m.d.comb += [
            source_.sp_data.eq(issue.sp_read.data), source_.acc_data.eq(issue.acc_read.data),
            source_.sp_load.eq(issue.sp_load), source_.acc_load.eq(issue.acc_load), source_.beat.eq(issue.beat),
        ]

    def _middle(self, m: Module) -> None:
        """Steps 1 to 4."""
        source_, op, params, requant_ = self._source, self._op, self._params, self._requant
        m.d.comb += [
            op.beat.eq(source_.o_beat), op.a.eq(source_.a), op.b.eq(source_.b), op.bias.eq(params.bias),
            requant_.beat.eq(op.o_beat), requant_.value.eq(op.value),
        ]
        for target in (params.write, self._table.write, self._table2.write):
            m.d.comb += [getattr(target, name).eq(getattr(self.slot_write, name)) for name in ("valid", "table", "addr", "data")]
        # The bias is wanted one cycle before the multipliers: both reads start where the operands come out.
        later = Signal(source_.o_beat.shape())
        m.d.sync += later.eq(source_.o_beat)
        m.d.comb += [
            params.bias_en.eq(op.bias_en), params.bias_slot.eq(source_.o_beat.slot), params.bias_half.eq(source_.o_beat.half),
            params.scale_en.eq(later.valid), params.scale_slot.eq(later.slot), params.scale_half.eq(later.half),
        ]
        m.d.comb += [getattr(requant_, n).eq(getattr(params, n)) for n in ("mult", "exponent", "neg_mult", "neg_exponent")]
        for name in ("row_mult", "row_exponent"):
            held = getattr(source_, name)
            for i in range(operator.LATENCY):
                stage = Signal(held.shape(), name=f"{name}_{i + 1}")
                m.d.sync += stage.eq(held)
                held = stage
            m.d.comb += getattr(requant_, name).eq(held)
        m.submodules.elements = elements = Delay(width=16 * lanes_of(self._config), cycles=_TO_RESIDUAL)
        m.d.comb += [elements.i.eq(source_.r.as_value()), self._residual.r.as_value().eq(elements.o)]
        chain = (("requant", "table"), ("table", "residual"), ("residual", "table2"), ("table2", "reduce"))
        for before, after in ((getattr(self, f"_{a}"), getattr(self, f"_{b}")) for a, b in chain):
            m.d.comb += [after.beat.eq(before.o_beat), after.value.eq(before.o)]

    def _back(self, m: Module) -> None:
        """Steps 5 and 6."""
        reduce_, lanes_, post_, writer, issue = self._reduce, self._lane_reduce, self._post, self._writer, self._issue
        wait = pipeline_latency(self._config) - source.LATENCY - operator.LATENCY - requant.LATENCY - 1 - post.CHANGED_BEFORE
        m.submodules.changed = changed = Delay(width=COUNT_BITS, cycles=wait)
        m.d.comb += [
            lanes_.beat.eq(reduce_.o_beat), lanes_.value.eq(reduce_.o), lanes_.any.eq(reduce_.any),
            lanes_.count.eq(reduce_.count),
            post_.beat.eq(lanes_.o_beat), post_.value.eq(lanes_.o), post_.count.eq(lanes_.o_count),
            changed.i.eq(self._requant.changed), post_.changed.eq(changed.o),
            writer.beat.eq(post_.o_beat.valid), writer.value.eq(post_.o), writer.changed.eq(post_.o_changed),
            writer.push.eq(issue.push), writer.descriptor.eq(issue.descriptor), issue.free.eq(writer.report.valid),
        ]
        wiring.connect(m, writer.sp_write, wiring.flipped(self.sp_write))
        wiring.connect(m, writer.acc_write, wiring.flipped(self.acc_write))

    def _report(self, m: Module) -> None:
        """Statistics, events, retirement."""
        writer, stats = self._writer, self._statistics
        m.d.comb += [
            stats.report.eq(writer.report), stats.row.eq(writer.row), stats.mask.eq(writer.mask), self.done.eq(stats.done),
            *(getattr(self, name).eq(getattr(stats, name)) for name in ("rows", "zeros", "min", "max")),
        ]
        event, events = stats.event, self.events
        m.d.comb += [
            events.fuse_points.eq(event.valid), events.fuse_results.eq(event.valid & event.emit),
            self.out_events.fuse_saturations.eq(Mux(event.valid, event.changed, 0)),
            events.fuse_scaled.eq(event.valid & event.scaled), events.fuse_tables.eq(event.valid & event.table),
            events.fuse_residuals.eq(event.valid & event.residual), events.fuse_reduced.eq(event.valid & event.reduced),
            events.fuse_stall_bank.eq(self._issue.refused | writer.refused),
        ]

