"""Third stage of the sequencer core in machines with `pipelined`."""

from contextlib import AbstractContextManager

from amaranth.hdl import Const, Module, Signal, Value
from amaranth.lib import data

from hw.lib.pipeline import pipeline_register
from hw.sequencer.alu import Alu
from hw.sequencer.alu_serial import SerialAlu
from hw.sequencer.execute import Execute, raise_trap
from hw.sequencer.layouts import InstructionKind


class PipelinedExecute(Execute):
    """`Execute` with registers after the ALU, after the redirection, and for all conditions that instructions wait for.

    Latency: two cycles more than `Execute`, in which the results of an instruction are registered; RET takes another
    two cycles. Throughput: one instruction at a time, each of which may advance in the cycle after its predecessor
    passes. Members are the same as for `Execute`.
    """

    def advance(self, m: Module, present: Value) -> tuple[Value, Value]:
        """Return the same values as `Execute.advance`, except that the next instruction advances one cycle later."""
        spent = Signal()
        m.d.sync += spent.eq(self.passes)
        return present & ~spent, spent

    def register_redirect(self, m: Module, clear: Value) -> tuple[Signal, Signal]:
        """Return the signals of `Execute.register_redirect` one cycle later, because loop updates are also one cycle
        later.
        """
        redirect, target = super().register_redirect(m, clear)
        return pipeline_register(m, "redirect_held", redirect & ~clear), pipeline_register(
            m, "target_held", target
        )

    def forwards(self, ahead: data.View) -> Value:
        """Return 0, because a result is always in the register file before the next instruction reads it."""
        return Const(0)

    def return_ready(self, m: Module, phase: Value) -> AbstractContextManager[None]:
        """Return a context that is entered two cycles later than that of `Execute.return_ready`."""
        return m.Elif(phase == 3)

    def _make_alu(self) -> Alu:
        return SerialAlu()

    def _settle(self, m: Module) -> tuple[Value, Value]:
        """Return two values: high if the instruction can proceed (from its third cycle), and high if it has ended."""
        here, stood, ended = Signal(), Signal(), Signal()
        stays = self.valid & ~ended
        m.d.sync += [here.eq(stays), stood.eq(here & stays & ~self.finish), ended.eq(self.finish)]
        return self.valid & stood, ended

    def _results(self, m: Module, alu: Alu) -> list[Value]:
        values: list[Value] = [alu.result, alu.sum, alu.taken]
        held = [pipeline_register(m, f"alu_{i}", value) for i, value in enumerate(values)]
        return [*held, pipeline_register(m, "alu_none", held[1].as_signed() <= 0)]

    def _may_pass(self, go: Value, waited: Value) -> Value:
        return go & (self.instruction.plain | waited)

    def _prepare_wait(self, m: Module, phase: Signal, waited: Signal) -> None:
        """Register the condition under which a waiting instruction completes in the next cycle.

        The register is permitted because the condition, once true, remains true.
        """
        x, may = self.instruction, Signal()
        conditions = {
            InstructionKind.MUL: phase[1],
            InstructionKind.TAG: ~self.tag_hold,
            InstructionKind.WAIT: self.tokens.bit_select(x.d[:4], 1),
            InstructionKind.FENCE: ~(x.d[:4] & ~self.idle).any(),
            InstructionKind.ISSUE: self.issued,
        }
        with m.Switch(x.kind):
            for kind, condition in conditions.items():
                with m.Case(kind):
                    m.d.comb += may.eq(condition)
        m.d.sync += waited.eq(may)

    def _wait_cases(self, m: Module, phase: Signal, waited: Signal) -> None:
        """Add the effects of waiting instructions, while they wait and when they complete."""
        d = self.instruction.d[:4]
        with m.Case(InstructionKind.TAG):
            m.d.comb += self.set_tag.eq(waited)
        with m.Case(InstructionKind.WAIT):
            m.d.comb += [self.syncing.eq(~waited), self.take.eq(waited << d)]
        with m.Case(InstructionKind.FENCE):
            m.d.comb += self.syncing.eq(~waited)
        with m.Case(InstructionKind.ISSUE):
            m.d.comb += self.start_issue.eq(phase == 0)
            with m.If(self.issue_trap):
                raise_trap(m, self, self.issue_cause, self.issue_address)
