"""What loops and calls do in the core's execute stage."""

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import data, wiring

from hw.isa.enums import Trap
from hw.isa.micro import MicroOp
from hw.sequencer.core_layouts import COUNTER_BITS, OUT_BIT


def raise_trap(m: Module, stage: wiring.Component, cause: Value | int, address: Value | int = 0) -> None:
    """The instruction traps."""
    m.d.comb += [stage.trap.eq(1), stage.cause.eq(cause), stage.address.eq(address)]


def loop_cases(m: Module, stage: wiring.Component, phase: Value, total: Value, onward: Value) -> None:
    """LOOP and BREAK. A loop without trips leaves a cycle later than others enter: what follows it depends on the
    loops around it, and that on nothing the adder has still to find.
    """
    x = stage.instruction
    with m.Case(int(MicroOp.LOOP)):
        none, next_pc = Signal(name="no_trips"), Signal(COUNTER_BITS)
        m.d.comb += [none.eq(total.as_signed() <= 0), next_pc.eq(x.pc + 1)]
        with m.If(phase != 0):
            m.d.comb += [
                stage.finish.eq(1),
                stage.redirect.eq(1),
                stage.step.eq(1),
                stage.arrive.eq(x.target - 1),
                stage.target.eq(onward),
            ]
        with m.Elif((x.target <= next_pc) | (~none & stage.loops_full)):
            raise_trap(m, stage, Trap.LOOP_STACK)
        with m.Elif(~none):
            m.d.comb += [
                stage.finish.eq(1),
                stage.redirect.eq(1),
                stage.push_loop.eq(1),
                stage.target.eq(next_pc),
            ]
    with m.Case(int(MicroOp.BREAK)):
        with m.If(stage.loops_empty):
            raise_trap(m, stage, Trap.LOOP_STACK)
        with m.Else():
            m.d.comb += [stage.finish.eq(1), stage.redirect.eq(1), stage.pop_loop.eq(1)]


def call_cases(m: Module, stage: wiring.Component, phase: Value, info: data.View, onward: Value) -> None:
    """CALL, CALLP and RET."""
    x = stage.instruction
    with m.Case(int(MicroOp.CALL)):
        with m.If(stage.calls_full):
            raise_trap(m, stage, Trap.CALL_STACK)
        with m.Else():
            m.d.comb += [stage.finish.eq(1), stage.redirect.eq(1), stage.call.eq(1)]
    with m.Case(int(MicroOp.CALLP)):
        inside = (info.base + x.imm[: OUT_BIT - 1])[:OUT_BIT]
        with m.If((phase != 0) & ~(info.valid & info.pinned)):
            raise_trap(m, stage, Trap.SEGMENT_INVALID)
        with m.Elif((phase != 0) & stage.calls_full):
            raise_trap(m, stage, Trap.CALL_STACK)
        with m.Elif(phase != 0):
            m.d.comb += [
                stage.finish.eq(1),
                stage.redirect.eq(1),
                stage.call.eq(1),
                stage.enter.eq(1),
                stage.target.eq(Cat(inside, x.target[OUT_BIT])),
            ]
    with m.Case(int(MicroOp.RET)):
        with m.If(stage.calls_empty):
            raise_trap(m, stage, Trap.CALL_STACK)
        with m.Elif(phase == 0):
            m.d.comb += stage.return_loops.eq(1)
        with m.Else():
            m.d.comb += [
                stage.finish.eq(1),
                stage.redirect.eq(1),
                stage.ret.eq(1),
                stage.step.eq(1),
                stage.arrive.eq(stage.return_pc),
                stage.target.eq(onward),
            ]
