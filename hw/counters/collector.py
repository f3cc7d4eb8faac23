"""All performance counters: one 64-bit memory word for each (tag, counter), fed by the groups' small sums."""

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.counters.direct import DirectCounter
from hw.counters.group import CounterGroup, group_counters
from hw.isa.counters import COUNTERS, GROUPS
from hw.layouts import event_layout
from hw.memory.ram import Ram

_COUNTER_BITS = (len(COUNTERS) - 1).bit_length()
_LAST = {name: group_counters(name)[-1] for name in GROUPS}
#: Groups of one counter keep it by tag themselves: their tags may change at any time.
_DIRECT = tuple(name for name in GROUPS if len(group_counters(name)) == 1)
_COLLECTED = tuple(name for name in GROUPS if name not in _DIRECT)


class Collector(wiring.Component):
    """Moves the groups' sums to memory, one every three cycles, and answers the host.

    Sums of a tag that a group has just left and the round over all counters alternate. A host's read waits for the
    former, then collects the selected counter, so its value is exact for the cycle in which it is taken. After reset
    the memory is cleared, one word a cycle, then `ready` rises; events are kept meanwhile, except those of single
    counters.

    Parameters
    ----------
    config : MlaConfig
        `tags` sizes the memory.

    Members
    -------
    {group}_events, {group}_tag : In, {group}_busy, {group}_cur : Out
        For each of hw.isa.counters.GROUPS. While a group of more than one counter is busy its tag is not looked at:
        events go to the tag it had, `cur`. Whoever needs them exact by tag changes it only when the group is not
        busy.
    select_counter, select_tag : In
        What the host looks at.
    read : In
        Ask for it; held until `read_done`.
    read_done : Out
        One cycle: `value` is there.
    value : Out
        64 bits.
    ready : Out
        The memory is clear.
    """

    def __init__(self, config: MlaConfig):
        self.tag_bits = (config.tags - 1).bit_length()
        ports: dict = {}
        for group in GROUPS:
            ports |= {f"{group}_events": In(event_layout(group)), f"{group}_tag": In(6)}
        for group in _COLLECTED:
            ports |= {f"{group}_busy": Out(1), f"{group}_cur": Out(6)}
        super().__init__(
            ports
            | {
                "select_counter": In(16),
                "select_tag": In(16),
                "read": In(1),
                "read_done": Out(1),
                "value": Out(64),
                "ready": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.mem = mem = Ram(width=64, depth=1 << (self.tag_bits + _COUNTER_BITS))
        self._cleared = Signal(len(mem.w_addr))  # next word to clear
        groups, direct = self._groups(m), self._direct(m)
        counter, old, host = Signal(_COUNTER_BITS), Signal(), Signal()
        look, take = Signal(), Signal()
        taken = Signal()
        wait = self._host_waits(m, groups)
        tag, amount = self._selected(m, groups, counter, old, taken)
        address, held_tag, mine = Signal(len(mem.w_addr)), Signal(self.tag_bits), Signal()
        with m.If(~self.ready):
            self._clear(m, mem)
        with m.Elif(look):
            m.d.comb += [
                mem.r0_addr.eq(Cat(counter, Mux(host, self.select_tag[: self.tag_bits], tag))),
                mem.r0_en.eq(1),
            ]
            m.d.sync += [address.eq(mem.r0_addr), held_tag.eq(tag), look.eq(0), take.eq(1)]
        with m.Elif(take):
            # A sum whose tag is not that of the word stays where it is: the host looks at another tag, or the group
            # moved on.
            m.d.comb += [
                mine.eq((tag == held_tag) & (tag == address[_COUNTER_BITS:])),
                taken.eq(mine),
                mem.w_addr.eq(address),
                mem.w_data.eq(mem.r0_data + Mux(mine, amount, 0)),
                mem.w_en.eq(mine),
            ]
            # A group that has left its tag since the choice holds sums that the host's value would lack: once more.
            m.d.sync += [take.eq(0), self.read_done.eq(host & ~wait), self.value.eq(mem.w_data)]
            for name, single in direct.items():
                with m.If(counter == _LAST[name]):
                    m.d.sync += self.value.eq(single.value)
        with m.Else():
            m.d.sync += [look.eq(1), self.read_done.eq(0)]
            self._choose(m, groups, counter, old, host, wait)
        return m

    def _host_waits(self, m: Module, groups: dict[str, CounterGroup]) -> Signal:
        """The counter that the host looks at has a sum of an older tag under way."""
        wait = Signal()
        for name, group in groups.items():
            first, last = group_counters(name)[0], _LAST[name]
            with m.If((self.select_counter >= first) & (self.select_counter <= last)):
                m.d.comb += wait.eq(group.busy)
        return wait

    def _groups(self, m: Module) -> dict[str, CounterGroup]:
        groups = {}
        for name in _COLLECTED:
            m.submodules[name] = groups[name] = group = CounterGroup(name)
            events = getattr(self, f"{name}_events").as_value()
            m.d.comb += [
                group.events.eq(events),
                group.tag.eq(Mux(group.busy, group.cur_tag, getattr(self, f"{name}_tag"))),
                getattr(self, f"{name}_busy").eq(group.busy),
                getattr(self, f"{name}_cur").eq(group.cur_tag),
            ]
        return groups

    def _direct(self, m: Module) -> dict[str, DirectCounter]:
        counters = {}
        for name in _DIRECT:
            width = COUNTERS[_LAST[name]].width
            m.submodules[name] = counters[name] = single = DirectCounter(width=width, tag_bits=self.tag_bits)
            events = getattr(self, f"{name}_events").as_value()
            m.d.comb += [
                single.increment.eq(Mux(self.ready, events, 0)),
                single.tag.eq(getattr(self, f"{name}_tag")),
                single.read_tag.eq(self.select_tag),
                single.clear.eq(~self.ready),
                single.clear_tag.eq(self._cleared),
            ]
        return counters

    def _clear(self, m: Module, mem: Ram) -> None:
        m.d.comb += [mem.w_addr.eq(self._cleared), mem.w_en.eq(1)]
        m.d.sync += [self._cleared.eq(self._cleared + 1), self.ready.eq(self._cleared.all())]

    def _choose(
        self,
        m: Module,
        groups: dict[str, CounterGroup],
        counter: Signal,
        old: Signal,
        host: Signal,
        wait: Signal,
    ) -> None:
        """Next step: a sum of a tag that was left, what the host wants, or the next counter in turn."""
        turn, old_turn, flushing = (
            Signal(_COUNTER_BITS),
            Signal(_COUNTER_BITS),
            Signal(range(len(_COLLECTED) + 1)),
        )
        m.d.sync += [old.eq(0), host.eq(0)]
        with m.If((flushing != 0) & ~old):
            m.d.sync += [old.eq(1), counter.eq(old_turn), old_turn.eq(old_turn + 1)]
            for i, name in enumerate(_COLLECTED):
                with m.If((flushing == i + 1) & (old_turn == _LAST[name])):
                    m.d.sync += flushing.eq(0)
        with m.Elif(self.read & ~wait & ~self.read_done):
            m.d.sync += [host.eq(1), counter.eq(self.select_counter)]
        with m.Else():
            m.d.sync += [counter.eq(turn), turn.eq(Mux(turn == len(COUNTERS) - 1, 0, turn + 1))]
        with m.If(flushing == 0):
            for i, name in reversed(list(enumerate(_COLLECTED))):
                with m.If(groups[name].busy):
                    m.d.sync += [flushing.eq(i + 1), old_turn.eq(group_counters(name)[0])]

    def _selected(
        self, m: Module, groups: dict[str, CounterGroup], counter: Signal, old: Signal, take: Signal
    ) -> tuple[Signal, Signal]:
        """Tag and amount of the sum that `counter` and `old` name; `take` collects it."""
        tag, amount = Signal(self.tag_bits), Signal(max(g.sum_width for g in groups.values()))
        for name, group in groups.items():
            first, last = group_counters(name)[0], _LAST[name]
            inside = Signal(name=f"in_{name}")
            m.d.comb += [
                inside.eq((counter >= first) & (counter <= last)),
                group.select.eq(counter - Const(first, _COUNTER_BITS)),
                group.take_cur.eq(inside & take & ~old),
                group.take_old.eq(inside & take & old),
                group.finish_old.eq(inside & take & old & (counter == last)),
            ]
            with m.If(inside):
                m.d.comb += [
                    tag.eq(Mux(old, group.old_tag, group.cur_tag)),
                    amount.eq(Mux(old, group.old_sum, group.cur_sum)),
                ]
        return tag, amount
