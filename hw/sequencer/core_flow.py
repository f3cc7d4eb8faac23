"""What loops and calls do in the core's execute stage."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, wiring

from hw.isa.enums import Trap
from hw.sequencer.core_layouts import COUNTER_BITS, FRAME_LAYOUT, OUT_BIT, Kind

_CALLEE_LAYOUT = data.StructLayout({"usable": 1, "inside": OUT_BIT, "frame": FRAME_LAYOUT})


def raise_trap(m: Module, stage: wiring.Component, cause: Value | int, address: Value | int = 0) -> None:
    """The instruction traps."""
    m.d.comb += [stage.trap.eq(1), stage.cause.eq(cause), stage.address.eq(address)]


def capture_callee(m: Module, stage: wiring.Component, phase: Value) -> data.View:
    """The segment that a CALLP names, as found in its first cycle."""
    x, info = stage.instruction, stage.segment
    callee = Signal(_CALLEE_LAYOUT)
    with m.If(phase == 0):
        m.d.sync += [
            callee.usable.eq(info.valid & info.pinned),
            callee.inside.eq(info.base + x.imm[: OUT_BIT - 1]),
            callee.frame.base.eq(info.base),
            callee.frame.limit.eq(info.base + info.length),
            callee.frame.segment.eq(x.d),
        ]
    return callee


def choose_target(m: Module, stage: wiring.Component, phase: Value, callee: data.View) -> None:
    """Where the instruction leads if it redirects; whether it does comes later."""
    x, onward = stage.instruction, Signal(COUNTER_BITS)
    m.d.comb += [
        onward.eq(Mux(stage.back, stage.back_start, stage.arrive + 1)),
        stage.target.eq(x.target),
    ]
    with m.Switch(x.kind):
        with m.Case(Kind.LOOP):
            m.d.comb += stage.target.eq(Mux(phase != 0, onward, x.following))
        with m.Case(Kind.CALLP):
            m.d.comb += stage.target.eq(Cat(callee.inside, x.target[OUT_BIT]))
        with m.Case(Kind.RET):
            m.d.comb += stage.target.eq(onward)


def loop_cases(m: Module, stage: wiring.Component, phase: Value, total: Value, leaves: Signal) -> None:
    """LOOP and BREAK. A loop without trips leaves a cycle later than others enter: what follows it depends on the
    loops around it, and that on nothing the adder has still to find.
    """
    with m.Case(Kind.LOOP):
        none = Signal(name="no_trips")
        m.d.comb += none.eq(total.as_signed() <= 0)
        with m.If(phase != 0):
            m.d.comb += [leaves.eq(1), stage.redirect.eq(1), stage.step.eq(1)]
        with m.Elif(stage.instruction.backward | (~none & stage.loops_full)):
            raise_trap(m, stage, Trap.LOOP_STACK)
        with m.Elif(~none):
            m.d.comb += [leaves.eq(1), stage.redirect.eq(1), stage.push_loop.eq(1)]
    with m.Case(Kind.BREAK):
        with m.If(stage.loops_empty):
            raise_trap(m, stage, Trap.LOOP_STACK)
        with m.Else():
            m.d.comb += [leaves.eq(1), stage.redirect.eq(1), stage.pop_loop.eq(1)]


def call_cases(m: Module, stage: wiring.Component, phase: Value, usable: Value, leaves: Signal) -> None:
    """CALL, CALLP and RET."""
    with m.Case(Kind.CALL):
        with m.If(stage.calls_full):
            raise_trap(m, stage, Trap.CALL_STACK)
        with m.Else():
            m.d.comb += [leaves.eq(1), stage.redirect.eq(1), stage.call.eq(1)]
    with m.Case(Kind.CALLP):
        with m.If((phase != 0) & ~usable):
            raise_trap(m, stage, Trap.SEGMENT_INVALID)
        with m.Elif((phase != 0) & stage.calls_full):
            raise_trap(m, stage, Trap.CALL_STACK)
        with m.Elif(phase != 0):
            m.d.comb += [leaves.eq(1), stage.redirect.eq(1), stage.call.eq(1), stage.enter.eq(1)]
    with m.Case(Kind.RET):
        with m.If(stage.calls_empty):
            raise_trap(m, stage, Trap.CALL_STACK)
        with m.Elif(phase == 0):
            m.d.comb += stage.return_loops.eq(1)
        with m.Else():
            m.d.comb += [leaves.eq(1), stage.redirect.eq(1), stage.ret.eq(1), stage.step.eq(1)]
