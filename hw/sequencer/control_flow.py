"""When the core's execute stage moves on, and what loops and calls do in it."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, wiring

from hw.isa.enums import Trap
from hw.lib.pipeline import register
from hw.sequencer.alu import Alu
from hw.sequencer.stage_layouts import COUNTER_BITS, FRAME_LAYOUT, OUT_BIT, Kind

_CALLEE_LAYOUT = data.StructLayout({"usable": 1, "inside": OUT_BIT, "frame": FRAME_LAYOUT})


def advance(m: Module, stage: wiring.Component, present: Value) -> tuple[Value, Value]:
    """Whether there is something to execute, and whether the next instruction may move up: with `pipelined` in the
    cycle after the one that passes.
    """
    if not stage.config.pipelined:
        return present, stage.passes
    spent = Signal()
    m.d.sync += spent.eq(stage.passes)
    return present & ~spent, spent


def redirection(m: Module, stage: wiring.Component, clear: Value) -> tuple[Signal, Signal]:
    """Where execution goes on, a cycle after the instruction that said so: what that one computed and the
    address of the next fetch would make too long a path together.
    """
    redirect, target = Signal(), Signal.like(stage.target)
    m.d.sync += [redirect.eq(stage.redirect & ~clear), target.eq(stage.target)]
    if stage.config.pipelined:  # and what it does to the loops has another
        return register(m, "redirect_held", redirect & ~clear), register(m, "target_held", target)
    return redirect, target


def settled(m: Module, stage: wiring.Component) -> tuple[Value, Value]:
    """The instruction may go on, from its third cycle on with `pipelined`; and it does not any more from the next one
    on, or with `pipelined` in this one.
    """
    if not stage.config.pipelined:
        return stage.valid, stage.finish
    here, stood, ended = Signal(), Signal(), Signal()
    stays = stage.valid & ~ended
    m.d.sync += [here.eq(stays), stood.eq(here & stays & ~stage.finish), ended.eq(stage.finish)]
    return stage.valid & stood, ended


def results(m: Module, stage: wiring.Component, alu: Alu) -> list[Value]:
    """Result, sum, whether a branch is taken and whether a loop has no trips; registers with `pipelined`."""
    none = alu.sum.as_signed() <= 0
    values: list[Value] = [alu.result, alu.sum, alu.taken]
    if not stage.config.pipelined:
        return [*values, none]
    held = [register(m, f"alu_{i}", value) for i, value in enumerate(values)]
    return [*held, register(m, "alu_none", held[1].as_signed() <= 0)]


def raise_trap(m: Module, stage: wiring.Component, cause: Value | int, address: Value | int = 0) -> None:
    """The instruction traps."""
    m.d.comb += [stage.trap.eq(1), stage.cause.eq(cause), stage.address.eq(address)]


def wait_ahead(m: Module, stage: wiring.Component, phase: Signal, waited: Signal) -> None:
    """With `pipelined`: whether an instruction that waits may complete, a cycle before it does; what it waits for
    stays.
    """
    x, may = stage.instruction, Signal()
    conditions = {
        Kind.MUL: phase[1],
        Kind.TAG: ~stage.tag_hold,
        Kind.WAIT: stage.tokens.bit_select(x.d[:4], 1),
        Kind.FENCE: ~(x.d[:4] & ~stage.idle).any(),
        Kind.ISSUE: stage.issued,
    }
    with m.Switch(x.kind):
        for kind, condition in conditions.items():
            with m.Case(kind):
                m.d.comb += may.eq(condition)
    m.d.sync += waited.eq(may)


def wait_late(m: Module, stage: wiring.Component, phase: Signal, waited: Signal) -> None:
    """With `pipelined`: what instructions that wait do when they complete, and while they do not."""
    d = stage.instruction.d[:4]
    with m.Case(Kind.TAG):
        m.d.comb += stage.set_tag.eq(waited)
    with m.Case(Kind.WAIT):
        m.d.comb += [stage.syncing.eq(~waited), stage.take.eq(waited << d)]
    with m.Case(Kind.FENCE):
        m.d.comb += stage.syncing.eq(~waited)
    with m.Case(Kind.ISSUE):
        m.d.comb += stage.start_issue.eq(phase == 0)
        with m.If(stage.issue_trap):
            raise_trap(m, stage, stage.issue_cause, stage.issue_address)


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


def loop_cases(m: Module, stage: wiring.Component, phase: Value, empty: Value, leaves: Signal) -> None:
    """LOOP and BREAK. A loop without trips leaves a cycle later than others enter: what follows it depends on the
    loops around it, and that on nothing the adder has still to find.
    """
    with m.Case(Kind.LOOP):
        none = Signal(name="no_trips")
        m.d.comb += none.eq(empty)
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
        # What follows the call is known when the loops of its frame are back, with `pipelined` two cycles later.
        with m.Elif(phase == 3) if stage.config.pipelined else m.Else():
            m.d.comb += [leaves.eq(1), stage.redirect.eq(1), stage.ret.eq(1), stage.step.eq(1)]
