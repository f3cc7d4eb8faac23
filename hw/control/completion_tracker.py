"""Which macro-instructions have had all their commands of one unit retired."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.control.layouts import IN_FLIGHT
from hw.lib.ram import Ram

#: A unit has far fewer than half of 2**_COUNT_BITS commands issued and not retired.
_COUNT_BITS = 8
_INDEX_BITS = (IN_FLIGHT - 1).bit_length()


class RetireTracker(wiring.Component):
    """Counts one unit's commands and follows its retirements through the macro-instructions in flight.

    At a program's halt the number of commands issued so far is noted; when that many have retired, the unit
    has passed the macro-instruction. Commands of one unit retire in order, so it passes them in order.

    Latency: `passed` comes 1 cycle after the last retirement, at the earliest 1 cycle after the halt.
    Throughput: one event of each kind per cycle, one macro-instruction passed per cycle.

    Members
    -------
    issued, retired : In
        A command was issued; one was retired.
    halt : In
        The oldest macro-instruction without a noted end has issued its last command (at the latest in this
        cycle).
    flush : In
        Commands issued and not retired are gone.
    spared : Out
        With `halt`: the macro-instruction has no commands of this unit.
    passed, index : Out
        All commands of the macro-instruction `index`, which has some, have retired. One cycle.
    """

    issued: In(1)
    retired: In(1)
    halt: In(1)
    flush: In(1)
    spared: Out(1)
    passed: Out(1)
    index: Out(_INDEX_BITS)

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.ends = ends = Ram(width=_COUNT_BITS + 1, depth=IN_FLIGHT, comb=True)
        issues, issues_next = Signal(_COUNT_BITS), Signal(_COUNT_BITS)
        retires, some = Signal(_COUNT_BITS), Signal()
        halts, passes = Signal(_INDEX_BITS + 1), Signal(_INDEX_BITS + 1)
        ahead, over = Signal(_COUNT_BITS), Signal()
        m.d.comb += [
            issues_next.eq(issues + self.issued),
            ends.w_addr.eq(halts),
            ends.w_en.eq(self.halt),
            ends.w_data[:_COUNT_BITS].eq(issues_next),
            ends.w_data[_COUNT_BITS].eq(~self.spared),
            # Not told from the counts: they are the same again after a whole turn of them.
            self.spared.eq(~(some | self.issued)),
            ends.r0_addr.eq(passes),
            ahead.eq(retires - ends.r0_data[:_COUNT_BITS]),
            self.index.eq(passes),
            over.eq((passes != halts) & ~ahead[-1]),
            self.passed.eq(over & ends.r0_data[_COUNT_BITS]),
        ]
        m.d.sync += [
            issues.eq(issues_next),
            retires.eq(Mux(self.flush, issues_next, retires + self.retired)),
            halts.eq(halts + self.halt),
            passes.eq(passes + over),
        ]
        with m.If(self.halt):
            m.d.sync += some.eq(0)
        with m.Elif(self.issued):
            m.d.sync += some.eq(1)
        return m
