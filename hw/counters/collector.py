"""All performance counters: one 64-bit memory word for each (tag, counter), fed by the groups' small sums."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.counters.group import CounterGroup, group_counters
from hw.isa.counters import COUNTERS, GROUPS
from hw.layouts import event_layout
from hw.memory.ram import Ram


class Collector(wiring.Component):
    """Moves the groups' sums to memory, one every two cycles, and answers the host.

    A read first collects the selected counter, so the value is exact for the cycle in which it is taken. Sums of a tag that a
    group has just left go first. After reset the memory is cleared: `ready` rises after 2 * tags * 128 cycles at most.

    Parameters
    ----------
    config : MlaConfig
        `tags` sizes the memory.

    Members
    -------
    {group}_events, {group}_tag : In, {group}_busy : Out
        See CounterGroup, for each of hw.isa.counters.GROUPS.
    select_counter, select_tag : In
        What the host looks at.
    read : In
        Ask for it; held until `read_done`.
    read_done : Out
        One cycle: `value` is there.
    value : Out
        64 bits.
    ready : Out
        The memory is clear and counting has begun.
    """

    def __init__(self, config: MlaConfig):
        self.tag_bits = (config.tags - 1).bit_length()
        self.counter_bits = (len(COUNTERS) - 1).bit_length()
        ports: dict = {}
        for group in GROUPS:
            ports |= {f"{group}_events": In(event_layout(group)), f"{group}_tag": In(6), f"{group}_busy": Out(1)}
        super().__init__(ports | {
            "select_counter": In(16), "select_tag": In(16), "read": In(1), "read_done": Out(1), "value": Out(64),
            "ready": Out(1),
        })

    def elaborate(self, platform) -> Elaboratable:
        m = Module()
        m.submodules.mem = mem = Ram(width=64, depth=1 << (self.tag_bits + self.counter_bits))
        groups = self._groups(m)
        state = self._schedule(m, groups)
        self._accumulate(m, mem, groups, state)
        return m

    def _groups(self, m: Module) -> dict[str, CounterGroup]:
        groups = {}
        for name in GROUPS:
            m.submodules[name] = groups[name] = group = CounterGroup(name)
            m.d.comb += [
                group.events.eq(Mux(self.ready, getattr(self, f"{name}_events").as_value(), 0)),
                group.tag.eq(getattr(self, f"{name}_tag")), getattr(self, f"{name}_busy").eq(group.busy),
            ]
        return groups

    def _schedule(self, m: Module, groups: dict[str, CounterGroup]) -> dict[str, Signal]:
        """Which counter is collected in this two-cycle step: the host's, an old one, or the next in turn."""
        s = {
            "phase": Signal(), "counter": Signal(self.counter_bits), "old": Signal(), "host": Signal(),
            "turn": Signal(self.counter_bits), "old_turn": Signal(self.counter_bits), "old_group": Signal(range(len(GROUPS))),
        }
        with m.If(self.ready):
            m.d.sync += s["phase"].eq(~s["phase"])
        any_old, next_group, first = Signal(), Signal(range(len(GROUPS))), Signal(self.counter_bits)
        for i in reversed(range(len(GROUPS))):
            with m.If(groups[GROUPS[i]].busy):
                m.d.comb += [any_old.eq(1), next_group.eq(i), first.eq(group_counters(GROUPS[i])[0])]
        flushing, last = Signal(), Signal()
        for i, name in enumerate(GROUPS):
            with m.If(s["old_group"] == i):
                m.d.comb += last.eq(s["old_turn"] == group_counters(name)[-1])
            m.d.comb += groups[name].finish_old.eq(s["phase"] & s["old"] & last & (s["old_group"] == i))
        m.d.comb += s["old"].eq(flushing)
        m.d.comb += s["host"].eq(~flushing & self.read & ~self.read_done)
        m.d.comb += s["counter"].eq(Mux(flushing, s["old_turn"], Mux(s["host"], self.select_counter, s["turn"])))
        with m.If(s["phase"]):
            with m.If(flushing):
                m.d.sync += s["old_turn"].eq(s["old_turn"] + 1)
                with m.If(last):
                    m.d.sync += flushing.eq(0)
            with m.Else():
                with m.If(~s["host"]):
                    m.d.sync += s["turn"].eq(Mux(s["turn"] == len(COUNTERS) - 1, 0, s["turn"] + 1))
                with m.If(any_old):
                    m.d.sync += [flushing.eq(1), s["old_group"].eq(next_group), s["old_turn"].eq(first)]
        return s

    def _accumulate(self, m: Module, mem: Ram, groups: dict[str, CounterGroup], s: dict[str, Signal]) -> None:
        """Phase 0 reads the word, phase 1 adds the sum and writes it back."""
        tag, amount = Signal(self.tag_bits), Signal(max(g.sum_width for g in groups.values()))
        cur_tag = Signal(self.tag_bits)
        for name, group in groups.items():
            numbers = group_counters(name)
            inside = Signal(name=f"in_{name}")
            m.d.comb += [
                inside.eq((s["counter"] >= numbers[0]) & (s["counter"] <= numbers[-1])),
                group.select.eq(s["counter"] - numbers[0]),
                group.take_cur.eq(inside & s["phase"] & ~s["old"]),
                group.take_old.eq(inside & s["phase"] & s["old"]),
            ]
            with m.If(inside):
                m.d.comb += [
                    cur_tag.eq(group.cur_tag), tag.eq(Mux(s["old"], group.old_tag, group.cur_tag)),
                    amount.eq(Mux(s["old"], group.old_sum, group.cur_sum)),
                ]
        self._memory(m, mem, s, tag, amount)

    def _memory(self, m: Module, mem: Ram, s: dict[str, Signal], tag: Signal, amount: Signal) -> None:
        address, total, clear = Signal(len(mem.r0_addr)), Signal(64), Signal(len(mem.r0_addr) + 1)
        held_tag, own = Signal(self.tag_bits), Signal()
        # The tag of phase 0 decides where the sum goes: a group that changes its tag between the phases keeps its sum as old.
        m.d.comb += own.eq(tag == held_tag)
        m.d.comb += address.eq((Mux(s["host"], self.select_tag, tag) << self.counter_bits) | s["counter"])
        with m.If(~s["phase"]):
            m.d.sync += held_tag.eq(tag)
        m.d.comb += [mem.r0_addr.eq(address), mem.r0_en.eq(~s["phase"])]
        mine = Signal()
        m.d.comb += [
            mine.eq(~s["host"] | (self.select_tag == tag)),
            total.eq(mem.r0_data + Mux(mine & own, amount, 0)),
        ]
        m.d.sync += self.read_done.eq(s["phase"] & s["host"])
        with m.If(s["phase"] & s["host"]):
            m.d.sync += self.value.eq(total)
        m.d.comb += [mem.w_addr.eq(address), mem.w_data.eq(total), mem.w_en.eq(s["phase"] & mine & own)]
        with m.If(~self.ready):
            m.d.comb += [mem.w_addr.eq(clear), mem.w_data.eq(0), mem.w_en.eq(1)]
            m.d.sync += [clear.eq(clear + 1), self.ready.eq(clear == (1 << len(mem.r0_addr)) - 1)]
