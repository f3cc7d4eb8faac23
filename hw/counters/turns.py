"""Which counter is collected next, and how many bits a sum needs so that it is collected before it comes round."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.isa.counters import COUNTERS, GROUPS

COUNTER_BITS = (len(COUNTERS) - 1).bit_length()
#: Cycles from one choice to the next.
STEP_CYCLES = 3


def group_counters(group: str) -> list[int]:
    """Numbers of the group's counters, ascending and contiguous."""
    return [i for i, c in enumerate(COUNTERS) if c.group == group]


#: Groups of one counter keep it by tag themselves: their tags may change at any time.
SINGLES = tuple(name for name in GROUPS if len(group_counters(name)) == 1)
#: The others hold the sums of the tag before until they are flushed.
FLUSHED = tuple(name for name in GROUPS if name not in SINGLES)


def round_cycles() -> int:
    """Longest time from one turn of a counter in the round to its next: one step in four is the round's.

    Every other step is a flush's at most, and every other one of the rest the host's.
    """
    return len(COUNTERS) * 4 * STEP_CYCLES


def flush_cycles() -> int:
    """Longest time for which a group is busy: every other group goes first, once, and every other step flushes.

    The two steps more are the one under way when the tag changes and the one in which the flush is chosen.
    """
    return (2 * sum(len(group_counters(name)) for name in FLUSHED) + 2) * STEP_CYCLES


def longest_gap() -> int:
    """Most cycles between the moments of a group's sum that are collected one after the other.

    The first is a change of tag, where a flush begins, or reset, where the first words are cleared; the second comes
    with the round, or the next change of tag before that.
    """
    return max(flush_cycles(), 1 << COUNTER_BITS) + round_cycles()


def group_sum_width(index: int) -> int:
    """Bits of the sum of counter number `index`, of a group that is flushed."""
    return COUNTERS[index].width + (longest_gap() - 1).bit_length()


def single_sum_width(index: int, tags: int) -> int:
    """Bits of the sums of counter number `index`, of a group of its own: each round collects one of its tags."""
    return COUNTERS[index].width + (longest_gap() + tags * round_cycles() - 1).bit_length()


class Turns(wiring.Component):
    """Chooses the next step: a sum of a tag that was left, what the host wants, or the next counter in turn.

    Flushes take every other step, whatever else is wanted, so that a host's reads change no cycle of the machine;
    groups are flushed in a circle, the host and the round alternate, so that nobody waits forever.

    Parameters
    ----------
    tag_bits : int
        Bits of a tag.

    Members
    -------
    go : In
        Choose: the other outputs are those of the next step from the next cycle on.
    busy : In
        A bit for each of FLUSHED.
    read, select_counter : In
        The host wants this counter.
    all_tags : In
        Rounds go through the tags; else they stay at tag 0.
    counter : Out
        Number of the counter of this step.
    old : Out
        Its group is being flushed.
    host : Out
        It is the host's.
    tag : Out
        Tag whose single counters the round collects.
    """

    def __init__(self, tag_bits: int):
        super().__init__(
            {
                "go": In(1),
                "busy": In(len(FLUSHED)),
                "read": In(1),
                "select_counter": In(COUNTER_BITS),
                "all_tags": In(1),
                "counter": Out(COUNTER_BITS),
                "old": Out(1),
                "host": Out(1),
                "tag": Out(tag_bits),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        turn, hosted = Signal(COUNTER_BITS), Signal()  # the last step that was no flush was the host's
        flushing, flush, flush_turn, last = Signal(), Signal(), Signal(COUNTER_BITS), Signal(COUNTER_BITS)
        m.d.comb += flush.eq(flushing & ~self.old)
        with m.If(self.go):
            m.d.sync += [self.old.eq(flush), self.host.eq(0)]
            with m.If(flush):
                m.d.sync += [
                    self.counter.eq(flush_turn),
                    flush_turn.eq(flush_turn + 1),
                    flushing.eq(flush_turn != last),
                ]
            with m.Elif(self.read & ~hosted):
                m.d.sync += [self.counter.eq(self.select_counter), self.host.eq(1), hosted.eq(1)]
            with m.Else():
                final = turn == len(COUNTERS) - 1
                m.d.sync += [
                    self.counter.eq(turn),
                    turn.eq(Mux(final, 0, turn + 1)),
                    self.tag.eq(self.tag + (final & self.all_tags)),
                    hosted.eq(0),
                ]
            with m.If(~flushing):
                self._next_flush(m, flushing, flush_turn, last)
        return m

    def _next_flush(self, m: Module, flushing: Signal, flush_turn: Signal, last: Signal) -> None:
        """The first busy group after the one flushed last, else the first of all."""
        passed = Signal(len(FLUSHED))  # up to and with the one flushed last
        m.d.sync += flushing.eq(self.busy.any())
        later = Signal(len(FLUSHED))
        m.d.comb += later.eq(self.busy & ~passed)
        for candidates in (self.busy, later):
            for i, name in reversed(list(enumerate(FLUSHED))):
                with m.If(candidates[i]):
                    m.d.sync += [
                        flush_turn.eq(group_counters(name)[0]),
                        last.eq(group_counters(name)[-1]),
                        passed.eq((2 << i) - 1),
                    ]
