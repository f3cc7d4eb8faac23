"""The counters of one group close to where they happen: they run freely, and a copy of them stands still."""

from amaranth.hdl import Elaboratable, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.counters.collection_schedule import group_counters, group_sum_width
from hw.isa.counters import COUNTERS
from hw.layouts import event_layout


class CounterGroup(wiring.Component):
    """Sums of one group's events modulo a power of two, as they were when they were last copied.

    The sums never restart: whoever collects them adds the difference from what it saw last. They are copied when the
    tag changes, and when asked to; a copy holds all events before its cycle, none of that cycle.

    Parameters
    ----------
    group : str
        Name of the group (hw.isa.counters.GROUPS).

    Members
    -------
    events : In
        Increments of this cycle.
    tag : In
        Tag they belong to. It must not change while `busy`.
    busy : Out
        What belongs to the tag before is not collected yet.
    cur_tag, old_tag : Out
        Tag of the events now, and of those before the copy.
    copy : In
        Copy the sums; ignored while `busy`.
    finish_old : In
        Everything of the old tag has been collected.
    sum_{counter} : Out
        For each counter of the group: the copy of its sum.
    """

    def __init__(self, group: str):
        indices = group_counters(group)
        self.widths = {COUNTERS[i].name: group_sum_width(i) for i in indices}
        super().__init__(
            {
                "events": In(event_layout(group)),
                "tag": In(6),
                "busy": Out(1),
                "cur_tag": Out(6),
                "old_tag": Out(6),
                "copy": In(1),
                "finish_old": In(1),
                **{f"sum_{name}": Out(width) for name, width in self.widths.items()},
            }
        )

    def sum(self, name: str) -> Signal:
        """The copy of the named counter's sum."""
        return getattr(self, f"sum_{name}")

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        switch, copy = Signal(), Signal()
        m.d.comb += [switch.eq(self.tag != self.cur_tag), copy.eq(switch | (self.copy & ~self.busy))]
        with m.If(self.finish_old):
            m.d.sync += self.busy.eq(0)
        with m.If(switch):
            m.d.sync += [self.cur_tag.eq(self.tag), self.busy.eq(1)]
        with m.If(copy):
            m.d.sync += self.old_tag.eq(self.cur_tag)
        for name, width in self.widths.items():
            cur = Signal(width, name=f"cur_{name}")
            with m.If(self.events[name].any()):  # a simulator passes by what stands still
                m.d.sync += cur.eq(cur + self.events[name])
            with m.If(copy):
                m.d.sync += self.sum(name).eq(cur)
        return m
