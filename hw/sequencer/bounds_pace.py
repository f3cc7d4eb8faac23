"""The bounds checker's slower way, with `pipelined`: a step takes cycles of less logic each."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data

from hw.sequencer.bounds_select import OperandSelect
from hw.sequencer.bounds_steps import LANES
from hw.sequencer.bounds_verdict import SUM_BITS

#: Cycles of a step: two for the operands, two for the products, four for the box.
STEP_CYCLES = 8


def pace(m: Module, select: OperandSelect, begin: Value, clear: Value) -> Value:
    """Runs the steps from `begin` on; returns in which cycle the operands of one are taken, two after its first."""
    running, cycle = Signal(), Signal(range(STEP_CYCLES))
    m.d.sync += cycle.eq(cycle + 1)
    with m.If(clear):
        m.d.sync += running.eq(0)
    with m.Elif(begin):
        m.d.sync += [running.eq(1), cycle.eq(0), select.step.eq(select.first)]
    with m.Elif(cycle == STEP_CYCLES - 1):
        m.d.sync += [running.eq(running & select.more), select.step.eq(select.next)]
    return running & (cycle == 2)


def ripe(m: Module, valid: Value, clear: Value) -> Value:
    """`valid` when the box has taken up all products, and what the verdict compares is in its registers."""
    for i in range(LANES + 1):
        later = Signal(name=f"ripe{i}")
        m.d.sync += later.eq(valid & ~clear)
        valid = later
    return valid


def serial_box(m: Module, control: data.View, products: list[Value]) -> tuple[Signal, Signal]:
    """Ends of the box of the stream so far, a product a cycle, from the cycle of `control.valid` on; products and
    `control` stand that long.
    """
    turn, running = Signal(range(LANES)), Signal()
    now, part, grows = Signal(), Signal(signed(SUM_BITS)), Signal(2)
    m.d.comb += now.eq(control.valid | running)
    with m.If(now):
        m.d.sync += [turn.eq(turn + 1), running.eq(turn != LANES - 1)]
    with m.Switch(turn):
        for i, product in enumerate(products):
            scaled = Mux(control.dram, product << 16, product) if i % 2 else product
            with m.Case(i):
                m.d.comb += [part.eq(scaled), grows.eq(Cat(control.to_low[i], control.to_high[i]))]
    ends = []
    for name, grow, base in (("low", grows[0], control.base), ("high", grows[1], control.end)):
        end = Signal(signed(SUM_BITS), name=name)
        with m.If(now):
            origin = Mux(control.first & (turn == 0), base, end)
            m.d.sync += end.eq(origin + Mux(grow, part, 0))
        ends.append(end)
    return ends[0], ends[1]
