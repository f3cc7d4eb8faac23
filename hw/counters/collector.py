"""All performance counters: one 64-bit memory word for each pair of tag and counter, updated from the groups' small
sums.
"""

from dataclasses import dataclass
from itertools import pairwise

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.counters.collection_schedule import (
    APART,
    APART_LATE,
    COUNTER_BITS,
    FLUSHED,
    SINGLES,
    CollectionSchedule,
    group_counters,
    group_sum_width,
    single_sum_width,
)
from hw.counters.counter_bank import CounterGroup, DirectCounter, sampled_sum
from hw.isa.counters import COUNTERS, GROUPS
from hw.layouts import event_layout
from hw.lib.pipeline import enable_register, pipeline_delay
from hw.lib.ram import Ram


@dataclass(frozen=True)
class _Submodules:
    """Submodules of the collector."""

    mem: Ram  # the 64-bit sums, by tag and counter
    seen: Ram  # values of the groups' sums when they were last collected, by counter
    turns: CollectionSchedule
    groups: dict[str, CounterGroup]
    singles: dict[str, DirectCounter]


class Collector(wiring.Component):
    """Adds the increases of the groups' sums to memory, one counter per cycle, and serves the host's reads.

    CollectionSchedule chooses the counter of each step. A step first makes the counter's group copy its sums (`copy`),
    then samples the counter's sum and reads the memory word (`sample`), then subtracts the previously collected sum
    (`compare`), and finally adds the difference to the word (`add`). With `pipelined`, `compare` is one cycle later,
    because block RAM is slow. A busy group holds the copy of the previous tag's sums, and a step collects from this
    copy. A read of the current tag by the host waits until the group is no longer busy, so its value is exact for the
    cycle of the copy.

    After reset, the words of tag 0 are cleared first; the other words are cleared while sums are already being
    collected. Events count from the first cycle on; events before `ready` must have tag 0.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses `tags` and `pipelined`.

    Members
    -------
    {group}_events, {group}_tag : In, {group}_busy, {group}_cur : Out
        Ports of each group in `hw.isa.counters.GROUPS`. While a group of several counters is busy, its tag input is
        ignored and events count for the current tag of the group, `cur`. The counts of each tag are exact if the tag
        changes only while the group is not busy.
    select_counter, select_tag : In
        Counter and tag that the host reads.
    read : In
        Request for a read by the host; must be held until `read_done`.
    read_done : Out
        One-cycle pulse when `value` is valid.
    value : Out
        Value of the selected counter, 64 bits.
    ready : Out
        High if the memory has been cleared; then tags other than 0 are allowed, and reads are served.
    """

    def __init__(self, config: MlaConfig):
        self.tag_bits, self._late = (config.tags - 1).bit_length(), config.pipelined
        self.widths = {
            i: group_sum_width(i) if counter.group in FLUSHED else single_sum_width(i, config.tags)
            for i, counter in enumerate(COUNTERS)
        }
        ports: dict = {}
        for group in GROUPS:
            ports |= {f"{group}_events": In(event_layout(group)), f"{group}_tag": In(6)}
        for group in FLUSHED:
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
        m.submodules.mem = mem = Ram(width=64, depth=1 << (self.tag_bits + COUNTER_BITS), exclusive=True)
        m.submodules.seen = seen = Ram(
            width=max(self.widths.values()), depth=1 << COUNTER_BITS, exclusive=True
        )
        m.submodules.turns = turns = CollectionSchedule(self.tag_bits, APART_LATE if self._late else APART)
        blocks = _Submodules(mem, seen, turns, self._groups(m), self._singles(m))
        store = Signal()
        m.d.comb += [
            turns.go.eq(~self._clear(m, blocks, store)),
            turns.busy.eq(Cat(group.busy for group in blocks.groups.values())),
            turns.read.eq(self.read & self.ready),
            turns.select_counter.eq(self.select_counter),
            turns.all_tags.eq(self.ready),
        ]
        self._step(m, blocks, store)
        return m

    def _step(self, m: Module, blocks: _Submodules, store: Signal) -> None:
        mem, seen = blocks.mem, blocks.seen
        sample, counter = Signal(), Signal(COUNTER_BITS)
        compare, compared = Signal(), Signal(COUNTER_BITS)
        m.d.sync += [sample.eq(blocks.turns.valid), counter.eq(blocks.turns.counter)]
        m.d.sync += [compare.eq(sample), compared.eq(counter)]
        tag, word_tag, single, answer = self._source(m, blocks, sample, counter)
        sampled = sampled_sum(m, counter, self._sums(blocks), seen.width, sample, self._late)
        mine, amount, word = Signal(), Signal(seen.width), Signal(64)
        before, total = Signal(seen.width), Signal(64)
        m.d.comb += [
            mem.r0_addr.eq(Cat(counter, word_tag)),
            mem.r0_en.eq(sample),
            seen.r0_addr.eq(counter),
            seen.r0_en.eq(sample),
            before.eq(Mux(enable_register(m, "single", single, sample), mem.r0_data, seen.r0_data)),
        ]
        # If the sum and the word belong to different tags, the sum is not collected, and the host only reads the word.
        m.d.sync += mine.eq(sample & (tag == word_tag))
        address = pipeline_delay(m, "address", mem.r0_addr, 2 + self._late)
        with m.If(mine):
            m.d.comb += [seen.w_addr.eq(compared), seen.w_data.eq(sampled), seen.w_en.eq(1)]
        read = pipeline_delay(m, "read_word", mem.r0_data, self._late)
        now, then = (
            pipeline_delay(m, name, each, self._late) for name, each in (("now", sampled), ("then", before))
        )
        modulus = self._modulus(m, pipeline_delay(m, "compared_late", compared, self._late))
        with m.If(pipeline_delay(m, "compare_late", compare, self._late)):
            m.d.sync += word.eq(read)
        m.d.sync += amount.eq(
            Mux(pipeline_delay(m, "mine_late", mine, self._late), (now - then) & modulus, 0)
        )
        m.d.comb += [total.eq(word + amount), store.eq(amount.any())]
        m.d.sync += [self.read_done.eq(answer), self.value.eq(total)]
        with m.If(store):
            m.d.comb += [mem.w_addr.eq(address), mem.w_data.eq(total), mem.w_en.eq(1)]

    def _groups(self, m: Module) -> dict[str, CounterGroup]:
        groups = {}
        for name in FLUSHED:
            m.submodules[name] = groups[name] = group = CounterGroup(name)
            m.d.comb += [
                group.events.eq(getattr(self, f"{name}_events")),
                group.tag.eq(Mux(group.busy, group.cur_tag, getattr(self, f"{name}_tag"))),
                getattr(self, f"{name}_busy").eq(group.busy),
                getattr(self, f"{name}_cur").eq(group.cur_tag),
            ]
        return groups

    def _singles(self, m: Module) -> dict[str, DirectCounter]:
        singles = {}
        for name in SINGLES:
            (index,) = group_counters(name)
            m.submodules[name] = singles[name] = single = DirectCounter(
                width=COUNTERS[index].width, sum_width=self.widths[index], tag_bits=self.tag_bits
            )
            m.d.comb += [
                single.increment.eq(getattr(self, f"{name}_events").as_value()),
                single.tag.eq(getattr(self, f"{name}_tag")),
            ]
        return singles

    def _clear(self, m: Module, blocks: _Submodules, store: Signal) -> Signal:
        """Clear all memories, and return a signal that is high while collection is not yet possible.

        The words of `mem` are cleared only in cycles without `store`.
        """
        mem, seen, singles = blocks.mem, blocks.seen, blocks.singles.values()
        cleared = Signal(len(mem.w_addr) + 1)  # number of cleared words; the top bit is set at the end
        swept = Signal(self.tag_bits + 1)  # number of cleared tags of the single counters; likewise
        starting, sweep = Signal(), Signal()
        m.d.comb += starting.eq(cleared[COUNTER_BITS:] == 0)
        with m.If(~cleared[-1] & ~store):
            m.d.comb += [mem.w_addr.eq(cleared), mem.w_en.eq(1)]
            m.d.sync += cleared.eq(cleared + 1)
        with m.If(starting):
            m.d.comb += [seen.w_addr.eq(cleared), seen.w_en.eq(1)]
        # The single counters have one write port: tag 0, the tag of all events in this phase, is cleared in the first
        # cycle, and the other tags in cycles without an event.
        quiet = ~Cat(single.increment for single in singles).any()
        m.d.comb += sweep.eq(~swept[-1] & (quiet | (swept == 0)))
        m.d.sync += [swept.eq(swept + sweep), self.ready.eq(cleared[-1] & swept[-1])]
        for single in singles:
            m.d.comb += [single.clear.eq(sweep), single.clear_tag.eq(swept)]
        return starting

    def _source(
        self, m: Module, blocks: _Submodules, sample: Signal, counter: Signal
    ) -> tuple[Signal, Signal, Signal, Signal]:
        """Return properties of the step whose sum is sampled.

        These are the tag of the sum, the tag of the word that is read, a flag that is high for the counter of a
        single-counter group, and a flag that is high if the step answers the host. The last flag is valid in the last
        cycle of the step; the answer then includes all events before the copy.
        """
        tag, word_tag, single = Signal(self.tag_bits), Signal(self.tag_bits), Signal()
        turns, exact, host, last, answers = blocks.turns, Signal(), Signal(), Signal(), Signal(2 + self._late)
        m.d.sync += [exact.eq(1), host.eq(turns.host), last.eq(turns.last)]
        for name, group in blocks.groups.items():
            numbers = group_counters(name)
            with m.If((turns.counter >= numbers[0]) & (turns.counter <= numbers[-1])):
                m.d.comb += group.copy.eq(turns.valid)
                # A busy group has copies of the sums of the previous tag, but not of the current tag.
                m.d.sync += exact.eq(~group.busy | (group.cur_tag != self.select_tag))
            with m.If((counter >= numbers[0]) & (counter <= numbers[-1])):
                m.d.comb += [tag.eq(group.old_tag), group.finish_old.eq(last)]
        collected = Signal(self.tag_bits)
        m.d.sync += collected.eq(Mux(turns.host, self.select_tag, turns.tag))
        for name, counter_of_tag in blocks.singles.items():
            m.d.comb += counter_of_tag.read_tag.eq(collected)
            with m.If(counter == group_counters(name)[0]):
                m.d.comb += [tag.eq(collected), single.eq(1)]
        m.d.comb += word_tag.eq(Mux(host, self.select_tag, tag))
        m.d.sync += answers.eq(Cat(sample & host & exact, answers))
        return tag, word_tag, single, answers[-1]

    def _sums(self, blocks: _Submodules) -> dict[int, Value]:
        """Return the sum of each counter, by index."""
        sums: dict[int, Value] = {}
        for i, counter in enumerate(COUNTERS):
            if counter.group in FLUSHED:
                sums[i] = blocks.groups[counter.group].sum(counter.name)
            else:
                sums[i] = blocks.singles[counter.group].value
        return sums

    def _modulus(self, m: Module, counter: Signal) -> Signal:
        """Return a mask with the width of the sum of counter `counter`."""
        mask = Signal(max(self.widths.values()))
        widths = sorted(set(self.widths.values()))
        m.d.comb += mask[: widths[0]].eq(~0)
        for low, high in pairwise(widths):
            wider = [i for i, width in self.widths.items() if width >= high]
            m.d.comb += mask[low:high].eq(counter.matches(*wider).replicate(high - low))
        return mask
