"""Third stage of the sequencer core: execution and control flow."""

from contextlib import AbstractContextManager

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.isa.enums import Trap
from hw.layouts import SEGMENT_LAYOUT
from hw.sequencer.alu import Alu
from hw.sequencer.layouts import COUNTER_BITS, EXECUTE_LAYOUT, FRAME_LAYOUT, OUT_BIT, Fault, InstructionKind

_CALLEE_LAYOUT = data.StructLayout({"usable": 1, "inside": OUT_BIT, "frame": FRAME_LAYOUT})


def raise_trap(m: Module, stage: wiring.Component, cause: Value | int, address: Value | int = 0) -> None:
    """Drive the stage's outputs such that the current instruction traps."""
    m.d.comb += [stage.trap.eq(1), stage.cause.eq(cause), stage.address.eq(address)]


def capture_callee(m: Module, stage: wiring.Component, phase: Value) -> data.View:
    """Return a register with the segment that a CALLP calls, which is looked up in the first cycle of the CALLP."""
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
    """Drive `target`, the next address if the instruction redirects; `redirect` is valid later in the cycle."""
    x, onward = stage.instruction, Signal(COUNTER_BITS)
    m.d.comb += [
        onward.eq(Mux(stage.back, stage.back_start, stage.arrive + 1)),
        stage.target.eq(x.target),
    ]
    with m.Switch(x.kind):
        with m.Case(InstructionKind.LOOP):
            m.d.comb += stage.target.eq(Mux(phase != 0, onward, x.following))
        with m.Case(InstructionKind.CALLP):
            m.d.comb += stage.target.eq(Cat(callee.inside, x.target[OUT_BIT]))
        with m.Case(InstructionKind.RET):
            m.d.comb += stage.target.eq(onward)


def loop_cases(m: Module, stage: wiring.Component, phase: Value, empty: Value, leaves: Signal) -> None:
    """Add the switch cases for LOOP and BREAK.

    Skipping a loop without iterations takes one cycle more than entering a loop: the successor depends on the outer
    loops, and this decision must not follow the adder in the same cycle.
    """
    with m.Case(InstructionKind.LOOP):
        none = Signal(name="no_trips")
        m.d.comb += none.eq(empty)
        with m.If(phase != 0):
            m.d.comb += [leaves.eq(1), stage.redirect.eq(1), stage.step.eq(1)]
        with m.Elif(stage.instruction.backward | (~none & stage.loops_full)):
            raise_trap(m, stage, Trap.LOOP_STACK)
        with m.Elif(~none):
            m.d.comb += [leaves.eq(1), stage.redirect.eq(1), stage.push_loop.eq(1)]
    with m.Case(InstructionKind.BREAK):
        with m.If(stage.loops_empty):
            raise_trap(m, stage, Trap.LOOP_STACK)
        with m.Else():
            m.d.comb += [leaves.eq(1), stage.redirect.eq(1), stage.pop_loop.eq(1)]


def call_cases(m: Module, stage: "Execute", phase: Value, usable: Value, leaves: Signal) -> None:
    """Add the switch cases for CALL, CALLP and RET."""
    with m.Case(InstructionKind.CALL):
        with m.If(stage.calls_full):
            raise_trap(m, stage, Trap.CALL_STACK)
        with m.Else():
            m.d.comb += [leaves.eq(1), stage.redirect.eq(1), stage.call.eq(1)]
    with m.Case(InstructionKind.CALLP):
        with m.If((phase != 0) & ~usable):
            raise_trap(m, stage, Trap.SEGMENT_INVALID)
        with m.Elif((phase != 0) & stage.calls_full):
            raise_trap(m, stage, Trap.CALL_STACK)
        with m.Elif(phase != 0):
            m.d.comb += [leaves.eq(1), stage.redirect.eq(1), stage.call.eq(1), stage.enter.eq(1)]
    with m.Case(InstructionKind.RET):
        with m.If(stage.calls_empty):
            raise_trap(m, stage, Trap.CALL_STACK)
        with m.Elif(phase == 0):
            m.d.comb += stage.return_loops.eq(1)
        with stage.return_ready(m, phase):
            m.d.comb += [leaves.eq(1), stage.redirect.eq(1), stage.ret.eq(1), stage.step.eq(1)]


class Execute(wiring.Component):
    """Execute stage, which decides the effect of the current instruction in each cycle.

    All state that an instruction changes is in other components.

    Latency: one cycle for most instructions; 3 for MUL; 2 for CALLP, RET and a LOOP without iterations. ISSUE takes as
    long as the issue block; WAIT and FENCE take until their condition is met. Throughput: one instruction at a time.

    Members
    -------
    active : In
        High if a program runs and is not stopped.
    valid, instruction : In
        `valid` is high if `instruction`, the decoded instruction to execute, is valid.
    limit_hit : In
        High if the program has executed the maximum number of instructions.
    tokens, idle : In
        Masks of the sequencer's semaphores that hold a token, and of the units without queued or running commands.
    issued, issue_trap, issue_cause, issue_address : In
        Outcome of the command's issue.
    product : In
        Product of the shared multipliers.
    loops_full, loops_empty, calls_full, calls_empty : In
        State of the stacks.
    return_pc : In
        Address of the call instruction after which RET continues.
    back, back_start : In
        `back` is high if the successor of `arrive` is the start of a loop; `back_start` is the address of this start.
    segment : In
        Segment that a CALLP calls.
    finish : Out
        High if the instruction completes in this cycle.
    passes : Out
        Equal to `finish`, but low for instructions that always redirect (LOOP, BREAK, calls, RET). The instruction
        fetched after such an instruction is discarded and need not advance, so `finish` may be valid later in the
        cycle.
    finish_{scalar,config,issue,control,sync} : Out
        High if an instruction of this class completes in this cycle.
    trap, cause, address : Out
        `trap` is high if the instruction traps in this cycle; `cause` and `address` describe the trap.
    redirect, target : Out
        High if the next instruction is at `target`, which is valid only while `redirect` is high.
    step, arrive : Out
        `step` is high if the instruction falls through to the successor of `arrive`. `arrive` is the address of the
        instruction; for LOOP, of the last word of the loop; for RET, of the call.
    result, total : Out
        Value for the destination register, and the sum a + b + imm.
    multiply, second : Out
        `multiply` requests the product of a and `second`; it may be high before the instruction can execute.
    start_issue : Out
        Begin the issue of a command.
    take : Out
        Mask of the sequencer's semaphores from which a token is taken in this cycle.
    push_loop, pop_loop, call, return_loops, ret, enter, halt, set_field, clear_fields, set_tag : Out
        High if the instruction completes and has this effect. `enter` is a call to the frame `callee`. `return_loops`
        is high one cycle before `ret`.
    callee : Out
        Frame of the program that a CALLP calls.
    syncing : Out
        High while the program is blocked in WAIT or FENCE.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        outputs = (
            "finish",
            "passes",
            "finish_scalar",
            "finish_config",
            "finish_issue",
            "finish_control",
            "finish_sync",
            "trap",
            "redirect",
            "multiply",
            "start_issue",
            "push_loop",
            "pop_loop",
            "call",
            "return_loops",
            "ret",
            "enter",
            "halt",
            "set_field",
            "clear_fields",
            "set_tag",
            "syncing",
            "step",
        )
        inputs = (
            "active",
            "valid",
            "limit_hit",
            "issued",
            "issue_trap",
            "loops_full",
            "loops_empty",
            "calls_full",
            "calls_empty",
            "back",
            "tag_hold",
        )
        super().__init__(
            {
                **{name: In(1) for name in inputs},
                **{name: Out(1) for name in outputs},
                "instruction": In(EXECUTE_LAYOUT),
                "tokens": In(16),
                "idle": In(4),
                "issue_cause": In(5),
                "issue_address": In(32),
                "product": In(32),
                "return_pc": In(COUNTER_BITS),
                "back_start": In(COUNTER_BITS),
                "arrive": Out(COUNTER_BITS),
                "segment": In(SEGMENT_LAYOUT),
                "cause": Out(5),
                "address": Out(32),
                "target": Out(COUNTER_BITS),
                "result": Out(32),
                "total": Out(32),
                "second": Out(32),
                "take": Out(16),
                "callee": Out(FRAME_LAYOUT),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.alu = alu = self._make_alu()
        x = self.instruction
        go, faulty, waited, leaves = Signal(), Signal(), Signal(), Signal()
        present, ended = self._settle(m)
        phase = Signal(2)  # number of cycles so far of an instruction that takes several cycles
        callee = capture_callee(m, self, phase)
        result, total, taken, empty = self._results(m, alu)
        m.d.comb += [
            alu.op.eq(x.op),
            alu.a.eq(x.a),
            alu.b.eq(x.b),
            alu.imm.eq(x.imm),
            alu.product.eq(self.product),
            self.result.eq(result),
            self.total.eq(total),
            self.second.eq(alu.second),
            faulty.eq((x.fault != Fault.NONE) | self.limit_hit),
            go.eq(self.active & present & ~faulty),
            self.multiply.eq(x.kind == InstructionKind.MUL),
            self.passes.eq(self._may_pass(go, waited)),
            self.finish.eq(self.passes | leaves),
            self.arrive.eq(Mux(x.kind == InstructionKind.RET, self.return_pc, x.arrive)),
            self.step.eq(self.passes & ~self.redirect & ~self.halt),
            self.callee.eq(callee.frame),
        ]
        choose_target(m, self, phase, callee)
        self._prepare_wait(m, phase, waited)
        with m.If(~self.valid | ended | ~self.active):
            m.d.sync += phase.eq(0)
        with m.Elif(go & ~phase.all()):
            m.d.sync += phase.eq(phase + 1)
        with m.If(self.active & present & faulty):
            raise_trap(
                m,
                self,
                self._fault_cause(),
                Mux((x.fault == Fault.BAD_OPERAND) & ~self.limit_hit, x.selector, 0),
            )
        with m.Elif(go), m.Switch(x.kind):
            self._wait_cases(m, phase, waited)
            loop_cases(m, self, phase, empty, leaves)
            call_cases(m, self, phase, callee.usable, leaves)
            self._simple(m, taken)
        scalar, config, issue, sync = (
            self.passes & x[name] for name in ("scalar", "config", "issue", "sync")
        )
        control = self.finish & ~(x.scalar | x.config | x.issue | x.sync)
        m.d.comb += [
            self.finish_scalar.eq(scalar),
            self.finish_config.eq(config),
            self.finish_issue.eq(issue),
            self.finish_sync.eq(sync),
            self.finish_control.eq(control),
        ]
        return m

    def _fault_cause(self) -> Value:
        fault = self.instruction.fault
        return Mux(
            fault == Fault.PC_RANGE,
            Trap.PC_RANGE,
            Mux(
                self.limit_hit,
                Trap.STEP_LIMIT,
                Mux(fault == Fault.ILLEGAL, Trap.ILLEGAL_INSTRUCTION, Trap.BAD_OPERAND),
            ),
        )

    def _simple(self, m: Module, taken: Value) -> None:
        """Add the effects of instructions that complete immediately (`plain`), and of TRAP."""
        with m.Case(InstructionKind.BRANCH):
            m.d.comb += self.redirect.eq(taken)
        for kind, output in (
            (InstructionKind.SET, self.set_field),
            (InstructionKind.CLEAR, self.clear_fields),
            (InstructionKind.HALT, self.halt),
        ):
            with m.Case(kind):
                m.d.comb += output.eq(1)
        with m.Case(InstructionKind.TRAP):
            raise_trap(m, self, Trap.SOFTWARE, self.instruction.imm)

    def advance(self, m: Module, present: Value) -> tuple[Value, Value]:
        """Return two values: high if an instruction can be executed, and high if the next instruction may advance.

        Logic that they need is added to the core.

        Parameters
        ----------
        m : Module
            Module of the core.
        present : Value
            High if the decoded instruction is valid.
        """
        return present, self.passes

    def register_redirect(self, m: Module, clear: Value) -> tuple[Signal, Signal]:
        """Add registers for the redirection and its target to the core, and return them.

        A redirection takes effect one cycle after the instruction, because the path from its computation to the address
        of the next fetch would be too long for one cycle.
        """
        redirect, target = Signal(), Signal.like(self.target)
        m.d.sync += [redirect.eq(self.redirect & ~clear), target.eq(self.target)]
        return redirect, target

    def forwards(self, ahead: data.View) -> Value:
        """Return a value that is high if the result of the executing instruction `ahead` bypasses the register file."""
        return self.valid & ahead.scalar

    def return_ready(self, m: Module, phase: Value) -> AbstractContextManager[None]:
        """Return the context (`m.If` block) in which a RET completes.

        The loops of the caller have then been restored, so that the successor of the call is known.
        """
        return m.Else()

    def _make_alu(self) -> Alu:
        return Alu()

    def _settle(self, m: Module) -> tuple[Value, Value]:
        """Return two values: high if the instruction can proceed, and high if it leaves the stage after this cycle."""
        return self.valid, self.finish

    def _results(self, m: Module, alu: Alu) -> list[Value]:
        """Return the result, the sum, and two flags: a branch is taken, and a loop has no iterations."""
        none = alu.sum.as_signed() <= 0
        return [alu.result, alu.sum, alu.taken, none]

    def _may_pass(self, go: Value, waited: Value) -> Value:
        """Return the value of the output `passes`."""
        return (go & self.instruction.plain) | waited

    def _prepare_wait(self, m: Module, phase: Signal, waited: Signal) -> None:
        """Add logic that prepares the decision whether a waiting instruction completes; none in this variant."""

    def _wait_cases(self, m: Module, phase: Signal, waited: Signal) -> None:
        """Add the switch cases for instructions that may take more than one cycle."""
        x = self.instruction
        with m.Case(InstructionKind.MUL):
            m.d.comb += waited.eq(phase == 2)
        with m.Case(InstructionKind.TAG):
            m.d.comb += [waited.eq(~self.tag_hold), self.set_tag.eq(~self.tag_hold)]
        with m.Case(InstructionKind.WAIT):
            token = self.tokens.bit_select(x.d[:4], 1)
            m.d.comb += [waited.eq(token), self.syncing.eq(~token), self.take.eq(token << x.d[:4])]
        with m.Case(InstructionKind.FENCE):
            busy = (x.d[:4] & ~self.idle).any()
            m.d.comb += [waited.eq(~busy), self.syncing.eq(busy)]
        with m.Case(InstructionKind.ISSUE):
            m.d.comb += [self.start_issue.eq(phase == 0), waited.eq(self.issued)]
            with m.If(self.issue_trap):
                raise_trap(m, self, self.issue_cause, self.issue_address)
