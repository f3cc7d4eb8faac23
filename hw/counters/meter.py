"""Gathers what the machine reports into the events of the counters."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.counters.causes import STATE_LAYOUT, Classifier
from hw.counters.collector import Collector
from hw.isa.enums import Unit
from hw.layouts import event_layout

#: What a command queue and its unit show the meter.
UNIT_LAYOUT = data.StructLayout({
    "active": 1,  # the unit has a command
    "tag": 6,  # of the unit's events
    "queued": 1,  # commands wait in the queue
    "idle": 1,  # nothing queued or started
    "retired": 1,
    "retired_tag": 6,
})
#: Groups whose events follow the tag of a unit.
UNIT_GROUPS = tuple(unit.name.lower() for unit in Unit)


class Meter(wiring.Component):
    """All counters, and the events that need a view of the whole machine: causes, queues, overlaps.

    Parameters
    ----------
    config : MlaConfig
        `tags`.

    Members
    -------
    units : In
        UNIT_LAYOUT for each unit.
    state : In
        What the cause of the cycle is found from.
    {unit}_events, fuse_out_events, seq_events : In
        Events that come ready made.
    seq_tag : In
        Current tag of the sequencer.
    counting : In
        Cycles, their causes, and busy and stalled cycles count.
    settled : Out(5)
        A bit for each unit and the sequencer: its counters can take another tag now.
    select, read, done, value
        The host's counter window; `select` as register COUNTER_SELECT.
    ready : Out
        Counting.
    """

    def __init__(self, config: MlaConfig):
        self._config = config
        super().__init__({
            "units": In(data.ArrayLayout(UNIT_LAYOUT, len(Unit))), "state": In(STATE_LAYOUT),
            **{f"{name}_events": In(event_layout(name)) for name in (*UNIT_GROUPS, "fuse_out", "seq")},
            "seq_tag": In(6), "counting": In(1), "settled": Out(len(Unit) + 1),
            "select": In(32), "read": In(1), "done": Out(1), "value": Out(64), "ready": Out(1),
        })

    def elaborate(self, platform) -> Elaboratable:
        m = Module()
        m.submodules.collector = collector = Collector(self._config)
        m.submodules.causes = causes = Classifier()
        m.d.comb += [
            causes.state.eq(self.state), collector.select_counter.eq(self.select[:16]),
            collector.select_tag.eq(self.select[16:]), collector.read.eq(self.read), self.done.eq(collector.read_done),
            self.value.eq(collector.value), self.ready.eq(collector.ready),
        ]
        for unit in Unit:
            self._unit(m, collector, unit)
        for name in causes.cause.shape().members:
            m.d.comb += collector.matrix_events[f"cause_{name}"].eq(causes.cause[name] & self.counting)
        m.d.comb += [
            collector.fuse_out_events.eq(self.fuse_out_events), collector.fuse_out_tag.eq(self.units[Unit.FUSE].tag),
            collector.seq_events.eq(self.seq_events), collector.seq_tag.eq(self.seq_tag),
            self.settled[-1].eq(~collector.seq_busy),
        ]
        self._overlaps(m, collector)
        return m

    def _unit(self, m: Module, collector: Collector, unit: Unit) -> None:
        """Events of a unit and its queue, and the tag they go to: the sequencer's while the unit has no command."""
        name, state = unit.name.lower(), self.units[unit]
        events, source = getattr(collector, f"{name}_events"), getattr(self, f"{name}_events")
        tag = Signal(6, name=f"{name}_tag")
        m.d.comb += [
            tag.eq(Mux(state.active, state.tag, self.seq_tag)), getattr(collector, f"{name}_tag").eq(tag), events.eq(source),
            events[f"{name}_busy"].eq(state.active & self.counting),
            events[f"{name}_stall_empty"].eq(~state.active & ~state.queued & self.counting),
            events[f"{name}_stall_semaphore"].eq(~state.active & state.queued & self.counting),
            getattr(collector, f"{name}_done_events")[f"{name}_commands"].eq(state.retired),
            getattr(collector, f"{name}_done_tag").eq(state.retired_tag),
            self.settled[unit].eq(~getattr(collector, f"{name}_busy")),
        ]

    def _overlaps(self, m: Module, collector: Collector) -> None:
        load, matrix, store = (self.units[unit].active for unit in (Unit.LOAD, Unit.MATRIX, Unit.STORE))
        m.d.comb += [
            collector.seq_events.overlap_load_matrix.eq(load & matrix),
            collector.seq_events.overlap_matrix_store.eq(matrix & store),
            collector.seq_events.overlap_all.eq(load & matrix & store),
            collector.seq_events.cycles.eq(self.counting),
        ]
