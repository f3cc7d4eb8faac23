"""Collection order of the counters, and the width that each sum needs to be collected before it wraps around.

A flush collects the sums of a group for the previous tag. The round collects all counters, one after another.
"""

from collections.abc import Callable

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.isa.counters import COUNTERS, GROUPS

COUNTER_BITS = (len(COUNTERS) - 1).bit_length()
#: One of PERIOD consecutive steps is for the host or the round; the others are for flushes.
PERIOD = 4
#: Cycles from the choice of a step to the cycle in which its sum is sampled.
TAKEN = 2
#: Minimum distance in cycles, exclusive, between two steps of one counter, so that the memory word of the first step
#: is written back before the second reads it; the second value applies with `pipelined`.
APART, APART_LATE = 2, 3


def group_counters(group: str) -> list[int]:
    """Return the indices of the group's counters, which are ascending and contiguous."""
    return [i for i, c in enumerate(COUNTERS) if c.group == group]


#: Groups with a single counter, which store its sum by tag: their tags may change at any time.
SINGLES = tuple(name for name in GROUPS if len(group_counters(name)) == 1)
#: Groups with several counters, which hold the sums of the previous tag until they are flushed.
FLUSHED = tuple(name for name in GROUPS if name not in SINGLES)


def round_cycles() -> int:
    """Return the maximum number of cycles between two turns of a counter in the round; the host may use every other
    turn.
    """
    return len(COUNTERS) * 2 * PERIOD


def flush_cycles(apart: int = APART_LATE) -> int:
    """Return the maximum number of cycles for which a group is busy; every other group may be flushed once before it.

    Flushes use `PERIOD` - 1 of `PERIOD` turns. The choice of a group takes at most one period, and another group may
    have been chosen just before this group changes its tag. A larger value of `apart` increases this time. The last sum
    is sampled `TAKEN` cycles after its turn.
    """
    turns = sum(len(group_counters(name)) for name in FLUSHED)
    chosen = PERIOD - 1 + apart - APART
    return -(-turns * PERIOD // (PERIOD - 1)) + (len(FLUSHED) + 1) * chosen + TAKEN


def longest_gap() -> int:
    """Return the maximum number of cycles between two consecutive collections of a group's sum.

    The gap starts when a tag change begins a flush, or at reset, when the memory words of tag 0 are cleared one per
    cycle. It ends when the round or the flush after the next tag change collects the sum. A flush delays the round only
    for the counters that the flush collects.
    """
    return max(flush_cycles(), 1 << COUNTER_BITS) + round_cycles()


def group_sum_width(index: int) -> int:
    """Return the width of the sum of counter `index` in a group that is flushed."""
    return COUNTERS[index].width + (longest_gap() - 1).bit_length()


def single_sum_width(index: int, tags: int) -> int:
    """Return the width of the sums of counter `index` in a group with a single counter; a round collects the sum of one
    tag.
    """
    return COUNTERS[index].width + (longest_gap() + tags * round_cycles() - 1).bit_length()


class CollectionSchedule(wiring.Component):
    """Chooses the step of each cycle: the collection of a sum of the previous tag (flush), of the host's counter, or of
    the round's next counter.

    Flushes have separate turns, so that reads by the host do not affect the timing of the machine. Groups are flushed
    round robin, and the host and the round alternate, so that neither starves. Steps that are at most `apart` cycles
    from each other use different counters; the host and the round skip a counter that the current flush collects at
    about the same time.

    Parameters
    ----------
    tag_bits : int
        Width of a tag in bits.
    apart : int
        Number of cycles within which all steps use different counters.

    Members
    -------
    go : In
        Choose the next step; the outputs describe it in the next cycle.
    busy : In
        One bit for each group of FLUSHED, high if the group is busy; a group remains busy until `TAKEN` cycles after
        its last step was chosen.
    read, select_counter : In
        Request from the host, and the counter to read.
    all_tags : In
        High if rounds cycle through all tags; otherwise they collect tag 0 only.
    valid : Out
        High if a step has been chosen.
    counter : Out
        Index of the step's counter.
    old : Out
        High if the step collects a sum of the previous tag, because its group is being flushed.
    last : Out
        High if the step is the last one of a flush.
    host : Out
        High if the step is the host's read.
    tag : Out
        Tag for which the round collects the counters of single-counter groups.
    """

    def __init__(self, tag_bits: int, apart: int = APART):
        self._apart = apart
        super().__init__(
            {
                "go": In(1),
                "busy": In(len(FLUSHED)),
                "read": In(1),
                "select_counter": In(COUNTER_BITS),
                "all_tags": In(1),
                "valid": Out(1),
                "counter": Out(COUNTER_BITS),
                "old": Out(1),
                "last": Out(1),
                "host": Out(1),
                "tag": Out(tag_bits),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        phase, flushing, begin = Signal(range(PERIOD)), Signal(), Signal()
        flush_turn, final = Signal(COUNTER_BITS), Signal(COUNTER_BITS)
        near = self._near(m, flushing, flush_turn, final)
        self._next_flush(m, begin, flushing, flush_turn, final)
        m.d.sync += [self.valid.eq(0), self.old.eq(0), self.last.eq(0), self.host.eq(0)]
        with m.If(self.go):
            m.d.sync += phase.eq(phase + 1)
            with m.If(phase == PERIOD - 1):
                self._others(m, near)
            with m.Elif(flushing):
                ends = flush_turn == final
                m.d.sync += [
                    *(self.valid.eq(1), self.old.eq(1), self.last.eq(ends)),
                    *(self.counter.eq(flush_turn), flush_turn.eq(flush_turn + 1)),
                    flushing.eq(~ends),
                ]
            with m.Else():  # at least `apart` cycles after a step of the host or the round
                m.d.comb += begin.eq(phase >= self._apart - 1)
        return m

    def _near(
        self, m: Module, flushing: Signal, flush_turn: Signal, final: Signal
    ) -> Callable[[Value], Value]:
        """Return a function whose value is high if a flush collects the given counter within `apart` cycles of this
        cycle.
        """
        steps = [(self.old, self.counter)]
        for number in range(1, self._apart):
            old, counter = Signal(name=f"old_{number}"), Signal(COUNTER_BITS, name=f"counter_{number}")
            m.d.sync += [old.eq(steps[-1][0]), counter.eq(steps[-1][1])]
            steps.append((old, counter))
        steps += [(flushing & (flush_turn + i <= final), flush_turn + i) for i in range(self._apart)]
        return lambda number: Cat(valid & (number == collected) for valid, collected in steps).any()

    def _others(self, m: Module, near: Callable[[Value], Value]) -> None:
        """Choose the step of the host or of the round."""
        turn, hosted = Signal(COUNTER_BITS), Signal()  # high if the last step was the host's
        with m.If(self.read & ~hosted):
            free = ~near(self.select_counter)
            m.d.sync += [self.counter.eq(self.select_counter), self.valid.eq(free), self.host.eq(free)]
            m.d.sync += hosted.eq(1)
        with m.Else():
            last = turn == len(COUNTERS) - 1
            m.d.sync += [self.counter.eq(turn), self.valid.eq(~near(turn)), hosted.eq(0)]
            m.d.sync += [turn.eq(Mux(last, 0, turn + 1)), self.tag.eq(self.tag + (last & self.all_tags))]

    def _next_flush(
        self, m: Module, begin: Signal, flushing: Signal, flush_turn: Signal, final: Signal
    ) -> None:
        """Choose the first busy group after the one flushed last, or the first busy group if there is none after it."""
        passed, chosen = (
            Signal(len(FLUSHED)),
            Signal(len(FLUSHED)),
        )  # groups up to and including the one flushed last; the group to flush
        ended, waiting, later = Signal(), Signal(len(FLUSHED)), Signal(len(FLUSHED))
        m.d.sync += ended.eq(self.last)
        m.d.comb += [
            waiting.eq(self.busy & ~(chosen & (self.last | ended).replicate(len(FLUSHED)))),
            later.eq(waiting & ~passed),
        ]
        with m.If(begin):
            m.d.sync += flushing.eq(waiting.any())
            for candidates in (waiting, later):
                for i, name in reversed(list(enumerate(FLUSHED))):
                    with m.If(candidates[i]):
                        m.d.sync += [
                            flush_turn.eq(group_counters(name)[0]),
                            final.eq(group_counters(name)[-1]),
                            *(passed.eq((2 << i) - 1), chosen.eq(1 << i)),
                        ]
