"""Local counters: the sums of one group with a snapshot register, counters with one sum per tag, and the readout
multiplexer.
"""

from amaranth.hdl import Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.counters.collection_schedule import group_counters, group_sum_width
from hw.isa.counters import COUNTERS
from hw.layouts import event_layout
from hw.lib.pipeline import enable_register
from hw.lib.ram import Ram
from hw.lib.trees import select_tree


class CounterGroup(wiring.Component):
    """Counts the events of one group modulo a power of two, and holds a copy of the sums.

    The sums are never cleared; the collector adds the difference between a sum and the value that it collected last.
    The sums are copied when the tag changes and on request; a copy includes all events before the cycle of the copy,
    but not the events in this cycle.

    Parameters
    ----------
    group : str
        Name of the group (hw.isa.counters.GROUPS).

    Members
    -------
    events : In
        Increments of the group's counters in this cycle.
    tag : In
        Tag of the increments; must not change while `busy` is high.
    busy : Out
        High if the sums of the previous tag have not been collected yet.
    cur_tag, old_tag : Out
        Tag of the current events, and tag of the events before the copy.
    copy : In
        Copy the sums; ignored while `busy` is high.
    finish_old : In
        High if all sums of the old tag have been collected.
    sum_{counter} : Out
        Copy of the sum of each counter of the group.
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
        """Return the copy of the named counter's sum."""
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
            with m.If(self.events[name].any()):  # the condition lets a simulator skip the addition
                m.d.sync += cur.eq(cur + self.events[name])
            with m.If(copy):
                m.d.sync += self.sum(name).eq(cur)
        return m


class DirectCounter(wiring.Component):
    """Counter with one sum for each tag, modulo a power of two, in a small memory whose words are updated in one cycle.

    Parameters
    ----------
    width : int
        Width of the increment in bits.
    sum_width : int
        Width of a sum in bits.
    tag_bits : int
        Width of a tag in bits.

    Members
    -------
    increment, tag : In
        Increment of this cycle, and its tag.
    clear, clear_tag : In
        Set the sum of tag `clear_tag` to the increment of this cycle, regardless of the increment's tag.
    read_tag : In, value : Out
        Tag to read; its sum, read combinationally.
    """

    def __init__(self, *, width: int, sum_width: int, tag_bits: int):
        self.tag_bits, self.sum_width = tag_bits, sum_width
        super().__init__(
            {
                "increment": In(width),
                "tag": In(6),
                "clear": In(1),
                "clear_tag": In(tag_bits),
                "read_tag": In(tag_bits),
                "value": Out(sum_width),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.mem = mem = Ram(width=self.sum_width, depth=1 << self.tag_bits, reads=2, comb=True)
        m.d.comb += [
            mem.r0_addr.eq(self.tag),
            mem.r1_addr.eq(self.read_tag),
            self.value.eq(mem.r1_data),
            mem.w_addr.eq(Mux(self.clear, self.clear_tag, self.tag[: self.tag_bits])),
            mem.w_data.eq(Mux(self.clear, 0, mem.r0_data) + self.increment),
            mem.w_en.eq(self.clear | (self.increment != 0)),
        ]
        return m


#: With `late`, number of low bits of a counter's index by which sums are selected before the register.
_FIRST_BITS = 4


def sampled_sum(
    m: Module, counter: Value, sums: dict[int, Value], width: int, sample: Signal, late: int
) -> Value:
    """Sample the sum of the selected counter while `sample` is high and return the sampled value, which is available
    from the next cycle until the next `sample`.

    Parameters
    ----------
    m : Module
        Module that the registers are added to.
    counter : Value
        Index of the counter to select.
    sums : dict of int to Value
        Sum of each counter, by index.
    width : int
        Width in bits of the widest sum.
    sample : Signal
        High in the cycle in which the sum is sampled.
    late : int
        1 if the sum is selected in two stages, before and after the register; 0 if it is selected before the register.
    """
    first, rest = (counter[:_FIRST_BITS], counter[_FIRST_BITS:]) if late else (counter, None)
    blocks: dict[int, dict[int, Value]] = {}
    for i, value in sums.items():
        block, index = divmod(i, 1 << len(first))
        blocks.setdefault(block, {})[index] = value
    found: dict[int, Value] = {}
    for block, values in blocks.items():
        found[block] = sampled = Signal(width, name=f"sampled_{block}")
        with m.If(sample):
            m.d.sync += sampled.eq(select_tree(m, f"sum_{block}" if late else "sum", first, values))
    return (
        found[0]
        if rest is None
        else select_tree(m, "sampled", enable_register(m, "block", rest, sample), found)
    )
