"""Collection order of the counters, and the sum width that guarantees collection before wrap-around."""

from collections.abc import Callable

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.isa.counters import COUNTERS, GROUPS

COUNTER_BITS = (len(COUNTERS) - 1).bit_length()
#: One step of so many is the host's or the round's, the others are flushes'.
PERIOD = 4
#: Cycles from the choice of a step to that in which its sum is taken.
TAKEN = 2
#: Steps of one counter are more cycles apart than this: the word that the first adds to is in memory again; and with
#: `pipelined`.
APART, APART_LATE = 2, 3


def group_counters(group: str) -> list[int]:
    """Numbers of the group's counters, ascending and contiguous."""
    return [i for i, c in enumerate(COUNTERS) if c.group == group]


#: Groups of one counter keep it by tag themselves: their tags may change at any time.
SINGLES = tuple(name for name in GROUPS if len(group_counters(name)) == 1)
#: The others hold the sums of the tag before until they are flushed.
FLUSHED = tuple(name for name in GROUPS if name not in SINGLES)


def round_cycles() -> int:
    """Longest time from one turn of a counter in the round to its next: every other turn is the host's at most."""
    return len(COUNTERS) * 2 * PERIOD


def flush_cycles(apart: int = APART_LATE) -> int:
    """Longest time for which a group is busy: every other group goes first, once.

    Turns are `PERIOD` - 1 of `PERIOD`; a period passes until a group is chosen, at most, and one was about to be
    when this one changed its tag; the farther steps of a counter are apart, the longer it is. The last sum is taken
    `TAKEN` cycles after its turn.
    """
    turns = sum(len(group_counters(name)) for name in FLUSHED)
    chosen = PERIOD - 1 + apart - APART
    return -(-turns * PERIOD // (PERIOD - 1)) + (len(FLUSHED) + 1) * chosen + TAKEN


def longest_gap() -> int:
    """Most cycles between the moments of a group's sum that are collected one after the other.

    The first is a change of tag, where a flush begins, or reset, where the first words are cleared; the second comes
    with the round, or the next change of tag before that: a flush keeps the round away only from what it collects.
    """
    return max(flush_cycles(), 1 << COUNTER_BITS) + round_cycles()


def group_sum_width(index: int) -> int:
    """Bits of the sum of counter number `index`, of a group that is flushed."""
    return COUNTERS[index].width + (longest_gap() - 1).bit_length()


def single_sum_width(index: int, tags: int) -> int:
    """Bits of the sums of counter number `index`, of a group of its own: each round collects one of its tags."""
    return COUNTERS[index].width + (longest_gap() + tags * round_cycles() - 1).bit_length()


class CollectionSchedule(wiring.Component):
    """Chooses the step of each cycle: a sum of a tag that was left, what the host wants, or the next counter in turn.

    Flushes have turns of their own, so that a host's reads change no cycle of the machine. Groups are flushed in a
    circle, the host and the round alternate, so that nobody waits forever. Two steps that are close take different
    counters: the host and the round keep away from where a flush is, which collects their counter anyway.

    Parameters
    ----------
    tag_bits : int
        Bits of a tag.
    apart : int
        Steps within so many cycles take different counters.

    Members
    -------
    go : In
        Choose: the other outputs are those of the next step in the next cycle.
    busy : In
        A bit for each of FLUSHED, until `TAKEN` cycles after its last step was chosen.
    read, select_counter : In
        The host wants this counter.
    all_tags : In
        Rounds go through the tags; else they stay at tag 0.
    valid : Out
        There is a step.
    counter : Out
        Number of its counter.
    old : Out
        Its group is being flushed.
    last : Out
        The flush ends with it.
    host : Out
        It is the host's.
    tag : Out
        Tag whose single counters the round collects.
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
            with m.Else():  # a flush's first step is far enough from the host's or the round's before it
                m.d.comb += begin.eq(phase >= self._apart - 1)
        return m

    def _near(
        self, m: Module, flushing: Signal, flush_turn: Signal, final: Signal
    ) -> Callable[[Value], Value]:
        """Whether a flush takes a counter within `apart` cycles of this one."""
        places = [(self.old, self.counter)]
        for number in range(1, self._apart):
            old, counter = Signal(name=f"old_{number}"), Signal(COUNTER_BITS, name=f"counter_{number}")
            m.d.sync += [old.eq(places[-1][0]), counter.eq(places[-1][1])]
            places.append((old, counter))
        places += [(flushing & (flush_turn + i <= final), flush_turn + i) for i in range(self._apart)]
        return lambda number: Cat(there & (number == place) for there, place in places).any()

    def _others(self, m: Module, near: Callable[[Value], Value]) -> None:
        """The host's step, or the round's."""
        turn, hosted = Signal(COUNTER_BITS), Signal()  # the last one was the host's
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
        """The first busy group after the one flushed last, else the first of all."""
        passed, chosen = Signal(len(FLUSHED)), Signal(len(FLUSHED))  # up to and with the one flushed last; it
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
