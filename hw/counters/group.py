"""The counters of one group close to where they happen: small sums that the collector moves to its memory."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.isa.counters import COUNTERS
from hw.layouts import event_layout

#: Bits a small sum has beyond its increment: it overflows after 2**SPARE_BITS cycles. It is collected more often, and
#: the memory is cleared in fewer.
SPARE_BITS = 13


def group_counters(group: str) -> list[int]:
    """Numbers of the group's counters, ascending and contiguous."""
    return [i for i, c in enumerate(COUNTERS) if c.group == group]


class CounterGroup(wiring.Component):
    """Sums of one group's events for its current tag, and for the tag before it until they are collected.

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
        The sums of the tag before are not collected yet.
    cur_tag, old_tag : Out
        Tags of the two sets of sums.
    select : In
        Counter of this group to look at, from 0.
    take_cur, take_old : In
        The selected sum is collected in this cycle: it restarts.
    finish_old : In
        Everything of the old tag has been collected.
    cur_sum, old_sum : Out
        Selected sums.
    """

    def __init__(self, group: str):
        self.counters = [COUNTERS[i] for i in group_counters(group)]
        self.sum_width = max(c.width for c in self.counters) + SPARE_BITS
        super().__init__(
            {
                "events": In(event_layout(group)),
                "tag": In(6),
                "busy": Out(1),
                "cur_tag": Out(6),
                "old_tag": Out(6),
                "select": In(range(max(len(self.counters), 2))),
                "take_cur": In(1),
                "take_old": In(1),
                "finish_old": In(1),
                "cur_sum": Out(self.sum_width),
                "old_sum": Out(self.sum_width),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        switch = Signal()
        m.d.comb += switch.eq(self.tag != self.cur_tag)
        with m.If(switch):
            m.d.sync += [self.old_tag.eq(self.cur_tag), self.cur_tag.eq(self.tag), self.busy.eq(1)]
        with m.Elif(self.finish_old):
            m.d.sync += self.busy.eq(0)
        cur_sums, old_sums = [], []
        for i, counter in enumerate(self.counters):
            width = counter.width + SPARE_BITS
            cur, old = Signal(width, name=f"cur_{counter.name}"), Signal(width, name=f"old_{counter.name}")
            base, chosen = Signal(width, name=f"base_{counter.name}"), Signal(name=f"chosen_{counter.name}")
            m.d.comb += [
                chosen.eq(self.select == i),
                base.eq(Mux(switch | (self.take_cur & chosen), 0, cur)),
            ]
            m.d.sync += cur.eq(base + self.events[counter.name])
            with m.If(
                switch
            ):  # an old sum collected in this very cycle has gone; finish_old came before a switch may
                m.d.sync += old.eq(Mux(self.take_cur & chosen, 0, cur))
            with m.Elif(self.take_old & chosen):
                m.d.sync += old.eq(0)
            cur_sums.append(cur)
            old_sums.append(old)
        m.d.comb += [
            self.cur_sum.eq(_choose(m, "cur", self.select, cur_sums)),
            self.old_sum.eq(_choose(m, "old", self.select, old_sums)),
        ]
        return m


def _choose(m: Module, name: str, select: Signal, values: list[Signal]) -> Signal:
    """values[select] as a tree of two-way choices."""
    level, width = list(values), max(len(v) for v in values)
    for bit in range(len(select)):
        merged = []
        for i in range(0, len(level), 2):
            if i + 1 == len(level):
                merged.append(level[i])
                continue
            node = Signal(width, name=f"{name}_mux{bit}_{i // 2}")
            m.d.comb += node.eq(Mux(select[bit], level[i + 1], level[i]))
            merged.append(node)
        level = merged
    return level[0]
