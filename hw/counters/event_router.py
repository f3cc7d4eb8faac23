"""Routing of the machine's events to the counters, and control of tag changes."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.counters.collector import Collector
from hw.counters.stall_cause import STATE_LAYOUT, StallCause
from hw.isa.enums import Unit
from hw.layouts import event_layout
from hw.lib.pipeline import pipeline_delay

#: State of a unit and its command queue.
UNIT_LAYOUT = data.StructLayout(
    {
        "active": 1,  # high if the unit has a command
        "tagged": 1,  # high if `tag` is that of this cycle's events
        "tag": 6,
        "queued": 1,  # high if commands wait in the queue
        "started": 1,  # high if the head of the queue starts
        "next_tag": 6,  # tag of the command at the head of the queue
        "retired": 1,
        "retired_tag": 6,
    }
)
#: Groups whose events have the tag of a unit.
UNIT_GROUPS = tuple(unit.name.lower() for unit in Unit)


class EventRouter(wiring.Component):
    """Contains all counters, and derives the events that depend on several components: causes, queues, overlaps.

    A group of counters can change its tag only when the sums of the previous tag have been collected, about 30 cycles
    after the last change, or 150 if all groups change. So that the counts of each tag are exact, commands and programs
    with another tag wait until then (`may_start`, `seq_hold`); LOAD and STORE wait internally (`dma_busy`).

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses `tags`.

    Members
    -------
    units : In
        State of each unit and its command queue (UNIT_LAYOUT).
    state : In
        State of the array from which the stall cause is derived.
    {unit}_events, fuse_out_events, seq_events, trap_events : In
        Events that are counted without further processing.
    seq_tag, trap_tag : In
        Current tag of the sequencer; tag of a trap.
    counting : In
        High if cycles, their causes, busy cycles and stalled cycles are counted.
    may_start : Out(4)
        One bit for each unit, high if the head of its queue may start.
    seq_hold : Out
        High if the sequencer must not change its tag.
    dma_busy : Out(2)
        High if LOAD (bit 0) or STORE (bit 1) must not change its tag.
    select, read, done, value
        Counter window of the host; `select` has the layout of register COUNTER_SELECT.
    ready : Out
        High if the counters have been cleared, so that programs may start.
    """

    def __init__(self, config: MlaConfig):
        self._config = config
        super().__init__(
            {
                "units": In(data.ArrayLayout(UNIT_LAYOUT, len(Unit))),
                "state": In(STATE_LAYOUT),
                **{
                    f"{name}_events": In(event_layout(name))
                    for name in (*UNIT_GROUPS, "fuse_out", "seq", "trap")
                },
                "seq_tag": In(6),
                "trap_tag": In(6),
                "counting": In(1),
                "may_start": Out(len(Unit)),
                "seq_hold": Out(1),
                "dma_busy": Out(2),
                "select": In(32),
                "read": In(1),
                "done": Out(1),
                "value": Out(64),
                "ready": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.collector = collector = Collector(self._config)
        m.submodules.causes = causes = StallCause()
        seq_tag = pipeline_delay(m, "seq_tag", self.seq_tag, 2 * self._config.pipelined)
        m.d.comb += [
            collector.seq_events.eq(self._seq_events(m)),
            collector.seq_tag.eq(seq_tag),
            causes.state.eq(self.state),
            collector.select_counter.eq(self.select[:16]),
            collector.select_tag.eq(self.select[16:]),
            collector.read.eq(self.read),
            self.done.eq(collector.read_done),
            self.value.eq(collector.value),
            self.ready.eq(collector.ready),
            collector.trap_events.eq(self.trap_events),
            collector.trap_tag.eq(self.trap_tag),
            collector.fuse_out_events.eq(self.fuse_out_events),
            collector.fuse_out_tag.eq(collector.fuse_tag),
            self.seq_hold.eq(collector.seq_busy | (collector.seq_cur != seq_tag)),
            self.dma_busy.eq(collector.load_busy | collector.store_busy << 1),
        ]
        for unit in Unit:
            self._events(m, collector, unit)
        for name in causes.cause.shape().members:
            m.d.comb += collector.matrix_events[f"cause_{name}"].eq(causes.cause[name] & self.counting)
        self._matrix_tag(m, collector)
        self._fuse_tag(m, collector)
        m.d.comb += [
            collector.load_tag.eq(self.units[Unit.LOAD].tag),
            collector.store_tag.eq(self.units[Unit.STORE].tag),
            self.may_start[Unit.LOAD].eq(1),
            self.may_start[Unit.STORE].eq(1),
        ]
        return m

    def _events(self, m: Module, collector: Collector, unit: Unit) -> None:
        """Connect the events of a unit and its queue."""
        name, state = unit.name.lower(), self.units[unit]
        events = getattr(collector, f"{name}_events")
        m.d.comb += [
            events.eq(getattr(self, f"{name}_events")),
            events[f"{name}_busy"].eq(state.active & self.counting),
            events[f"{name}_stall_empty"].eq(~state.active & ~state.queued & self.counting),
            events[f"{name}_stall_semaphore"].eq(~state.active & state.queued & self.counting),
            getattr(collector, f"{name}_done_events")[f"{name}_commands"].eq(state.retired),
            getattr(collector, f"{name}_done_tag").eq(state.retired_tag),
        ]

    def _last(self, m: Module, unit: Unit) -> Signal:
        """Return the tag of the unit's command that started last."""
        last = Signal(6, name=f"{unit.name.lower()}_last")
        with m.If(self.units[unit].started):
            m.d.sync += last.eq(self.units[unit].next_tag)
        return last

    def _matrix_tag(self, m: Module, collector: Collector) -> None:
        """Drive the tag to which the array's cycles are attributed.

        This is the tag of the array's last events. While no command is active, it is the tag of the queued command, or
        the sequencer's tag if no command is queued.
        """
        state, held, tag = (
            self.units[Unit.MATRIX],
            Signal(6, name="matrix_held"),
            Signal(6, name="matrix_tag"),
        )
        last, cur, busy = self._last(m, Unit.MATRIX), collector.matrix_cur, collector.matrix_busy
        waiting = Mux(state.queued, state.next_tag, self.seq_tag)
        m.d.comb += tag.eq(Mux(state.active, Mux(state.tagged, state.tag, held), waiting))
        m.d.sync += held.eq(tag)
        steady, quiet = Signal(), Signal()
        m.d.comb += [
            collector.matrix_tag.eq(tag),
            steady.eq((state.next_tag == last) | (~busy & (cur == last) & (tag == last))),
            # Without a command, `tag` is that of the next command; `held` is the value of `tag` when the first
            # command started.
            quiet.eq((cur == tag) & (~busy | (cur == state.next_tag))),
            self.may_start[Unit.MATRIX].eq(Mux(state.active, steady, quiet)),
        ]

    def _fuse_tag(self, m: Module, collector: Collector) -> None:
        """Drive the tag of FUSE; all commands in its pipeline have the same tag, because the pipeline must be empty
        before a command with another tag starts.
        """
        state, tag = self.units[Unit.FUSE], Signal(6, name="fuse_tag")
        last = self._last(m, Unit.FUSE)
        m.d.comb += [
            tag.eq(last),
            collector.fuse_tag.eq(tag),
            self.may_start[Unit.FUSE].eq((state.next_tag == last) | (~state.active & ~collector.fuse_busy)),
        ]

    def _seq_events(self, m: Module) -> data.View:
        """Return the sequencer's events, including the overlaps of units. With `pipelined`, the events and their tag
        arrive two cycles later, through one register at their source and one at the counters.
        """
        load, matrix, store = (self.units[unit].active for unit in (Unit.LOAD, Unit.MATRIX, Unit.STORE))
        events = Signal(event_layout("seq"), name="seq_events_0")
        m.d.comb += [
            events.eq(self.seq_events),
            events.overlap_load_matrix.eq(load & matrix),
            events.overlap_matrix_store.eq(matrix & store),
            events.overlap_all.eq(load & matrix & store),
            events.cycles.eq(self.counting),
        ]
        for i in range(2 * self._config.pipelined):
            happened, events = events, Signal(event_layout("seq"), name=f"seq_events_{i + 1}")
            m.d.sync += events.eq(happened)
        return events
