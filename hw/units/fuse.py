"""FUSE: the unit that drains the sums of the array and serves as a vector engine."""

from amaranth.hdl import Elaboratable, EnableInserter, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.fuse import pipeline
from hw.fuse.address_generator import PipelinedPointWalker, PointWalker
from hw.fuse.decoder import Decoder
from hw.fuse.in_flight import InFlightCommands
from hw.fuse.layouts import CREDITS, control_write, controls
from hw.fuse.pipeline import STAGES, Pipeline
from hw.fuse.point_issue import PipelinedPointIssue, PointIssue
from hw.fuse.statistics import Statistics
from hw.fuse.writer import PipelinedWriter, Writer
from hw.isa.enums import Unit
from hw.layouts import command_stream, event_layout
from hw.lib.pipeline import pipeline_domain
from hw.memory.ports import AccReadPort, AccWritePort, SlotWritePort, SpReadPort, SpWritePort


class FuseUnit(wiring.Component):
    """FUSE unit, which reads operands, performs the six steps described in docs/machine.md, and writes results.

    The pipeline has no flow control: a point is issued only when the queue before the writer has room for it, so no
    stage ever stalls. Up to COMMANDS commands are in the pipeline at the same time; each beat carries the index of its
    command.

    Latency: pipeline.latency(config), or pipeline.early_latency() for a command without later steps, plus about eight
    cycles from a command to its first write. Throughput: one row every fuse_rate cycles, or fewer rows if the
    scratchpad reads, the accumulator reads or the writes of a row take longer.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    cmd : In(stream)
        Commands whose semaphore tokens have been taken.
    visible : Out(1)
        High if the last write of a command is accepted; all its writes are visible to reads two cycles later.
    done : Out(1)
        High if the oldest command has finished, including its statistics.
    rows, zeros, min, max : Out(32)
        Statistics of the last finished command.
    sp_read, sp_write, acc_read, acc_write : Out
        Read and write ports of the scratchpad and the accumulator.
    slot_write : In
        Writes of parameter slots and tables.
    events, out_events : Out
        Increments of the counters of groups `fuse` and `fuse_out`, for tag `active_tag`. The increments of the command
        queue's counters are 0.
    active : Out(1), active_tag : Out(6)
        `active` is high if at least one command is in the unit; `active_tag` is the tag of the oldest command.
    """

    def __init__(self, config: MlaConfig):
        self._config = config
        if pipeline.latency(config) + 6 > CREDITS:
            raise ValueError(
                f"{CREDITS} credits do not cover a pipeline of {pipeline.latency(config)} cycles"
            )
        super().__init__(
            {
                "cmd": In(command_stream(Unit.FUSE)),
                "visible": Out(1),
                "done": Out(1),
                **{name: Out(32) for name in ("rows", "zeros", "min", "max")},
                "sp_read": Out(SpReadPort(config)),
                "sp_write": Out(SpWritePort(config)),
                "acc_read": Out(AccReadPort(config)),
                "acc_write": Out(AccWritePort(config)),
                "slot_write": In(SlotWritePort(config)),
                "events": Out(event_layout("fuse")),
                "out_events": Out(event_layout("fuse_out")),
                "active": Out(1),
                "active_tag": Out(6),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        config = self._config
        m.submodules.walker = self._walker = config.variant(PointWalker, PipelinedPointWalker)(config)
        m.submodules.issue = self._issue = config.variant(PointIssue, PipelinedPointIssue)(config)
        self._pipeline = Pipeline(config)
        self._moving = Signal()
        m.submodules.pipeline = EnableInserter(self._moving)(self._pipeline)
        m.submodules.writer = self._writer = config.variant(Writer, PipelinedWriter)(config)
        m.submodules.statistics = self._statistics = Statistics(config)
        self._commands(m)
        self._points(m)
        self._report(m)
        return m

    def _commands(self, m: Module) -> None:
        """Accept commands, and send the decoded controls to every stage."""
        walker = self._walker
        m.submodules.decoder = decoder = Decoder(self._config)
        m.submodules.inside = inside = InFlightCommands()
        wiring.connect(m, wiring.flipped(self.cmd), walker.cmd)
        m.d.comb += [
            decoder.cmd.eq(self.cmd.payload),
            walker.read.eq(decoder.read),
            decoder.may_leave.eq(inside.may_leave),
        ]
        layouts = controls(self._config.n)
        targets = [(getattr(self._pipeline, f"controls_{stage}"), kind) for stage, kind in STAGES.items()]
        for target, kind in (*targets, (self._writer.controls, "writer")):
            held = Signal(control_write(layouts[kind]), name=f"{kind}_controls")
            # One register separates the decoder from the stores; no stage needs the controls earlier.
            m.d.sync += [
                held.write.eq(walker.load),
                held.index.eq(walker.index),
                held.control.eq(getattr(decoder, kind)),
            ]
            m.d.comb += target.eq(held)
        # The pipeline is disabled while it contains no command, which saves energy (and simulation time). Writes of
        # slots use its stages at any time, so they also enable it.
        m.d.sync += self._moving.eq(walker.load | inside.active | self.slot_write.valid)
        report, written, adding = self._writer.report, Signal(), Signal()
        m.d.comb += written.eq(report.valid & report.final)
        late = pipeline_domain(m, self._config.pipelined)
        late += self.visible.eq(written)
        m.d.comb += self._pipeline.adding.eq(adding)
        with m.If(walker.load & decoder.residual.enable):
            m.d.sync += adding.eq(1)
        with m.Elif(~inside.active):
            m.d.sync += adding.eq(0)
        m.d.comb += [
            inside.load.eq(walker.load),
            inside.index.eq(walker.index),
            inside.tag.eq(self.cmd.payload.meta.tag),
            inside.early.eq(decoder.bypass.early),
            inside.written.eq(written),
            inside.done.eq(self.done),
            walker.room.eq(inside.room),
            self.active.eq(inside.active),
            self.active_tag.eq(inside.active_tag),
        ]

    def _points(self, m: Module) -> None:
        """Connect the issue of points with the memory reads, the pipeline and the writer."""
        issue, flow, writer = self._issue, self._pipeline, self._writer
        wiring.connect(m, self._walker.points, issue.points)
        wiring.connect(m, issue.sp_read, wiring.flipped(self.sp_read))
        wiring.connect(m, issue.acc_read, wiring.flipped(self.acc_read))
        m.d.sync += [
            getattr(flow.slot_write, name).eq(getattr(self.slot_write, name))
            for name in self.slot_write.signature.members
        ]
        m.d.comb += [
            flow.sp_data.eq(issue.sp_read.data),
            flow.acc_data.eq(issue.acc_read.data),
            flow.sp_load.eq(issue.sp_load),
            flow.acc_load.eq(issue.acc_load),
            flow.beat.eq(issue.beat),
            writer.beat.eq(flow.o_beat.valid),
            writer.value.eq(flow.o),
            writer.changed.eq(flow.o_changed),
            writer.pair.eq(flow.o_pair),
            writer.root.eq(flow.o_root),
            writer.emit.eq(flow.o_emit),
            writer.push.eq(issue.push),
            writer.descriptor.eq(issue.descriptor),
            issue.free.eq(writer.report.valid),
        ]
        wiring.connect(m, writer.sp_write, wiring.flipped(self.sp_write))
        wiring.connect(m, writer.acc_write, wiring.flipped(self.acc_write))

    def _report(self, m: Module) -> None:
        """Drive the outputs for statistics, events and retirement."""
        writer, stats = self._writer, self._statistics
        m.d.comb += [
            stats.report.eq(writer.report),
            stats.row.eq(writer.row),
            stats.mask.eq(writer.mask),
            self.done.eq(stats.done),
            *(getattr(self, name).eq(getattr(stats, name)) for name in ("rows", "zeros", "min", "max")),
        ]
        event, events = stats.event, self.events
        m.d.comb += [
            events.fuse_points.eq(event.valid),
            events.fuse_results.eq(event.valid & event.emit),
            self.out_events.fuse_saturations.eq(Mux(event.valid, event.changed, 0)),
            events.fuse_scaled.eq(event.valid & event.scaled),
            events.fuse_tables.eq(event.valid & event.table),
            events.fuse_residuals.eq(event.valid & event.residual),
            events.fuse_reduced.eq(event.valid & event.reduced),
            events.fuse_stall_bank.eq(self._issue.refused | writer.refused),
        ]
