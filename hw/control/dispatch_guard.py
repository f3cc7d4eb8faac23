"""Evaluation of the guard of a dispatch candidate."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.isa.enums import Compare
from hw.isa.micro_instruction import MAX_OPERANDS, OPERAND_BASE, STATISTIC_BASE, Statistic
from hw.layouts import STATISTICS_LAYOUT
from hw.lib.pipeline import pipeline_domain


class DispatchGuard(wiring.Component):
    """Compares an operand of the macro-instruction or a statistic with the guard value of a candidate.

    Latency: `selector` is sampled in cycle 0 and `operand_data` in cycle 1; `holds` is valid in cycle 2 (with
    `pipelined`, in cycle 3) for the values of `compare` and `value` in cycle 2. Throughput: one guard per cycle.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses `n`, which is a statistic, and `pipelined`.

    Members
    -------
    selector : In
        Selector of an operand or a statistic; with any other selector the guard does not hold, regardless of
        `compare`.
    operands, tag : In
        Number of operands of the macro-instruction, and its tag.
    operand_addr : Out, operand_data : In
        Read port of the operand buffer.
    statistics : In
        Statistics, latched for the look-up.
    compare, value : In
        Comparison and its right-hand side.
    holds : Out
        High if the guard holds, that is, if its comparison is true.
    """

    def __init__(self, config: MlaConfig):
        self.n, self._late = config.n, config.pipelined
        super().__init__(
            {
                "selector": In(8),
                "operands": In(6),
                "tag": In(6),
                "operand_addr": Out(6),
                "operand_data": In(32),
                "statistics": In(STATISTICS_LAYOUT),
                "compare": In(3),
                "value": In(32),
                "holds": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        statistic, is_operand, defined = Signal(32), Signal(), Signal()
        subject, known = Signal(32), Signal()
        m.d.comb += self.operand_addr.eq(self.selector - OPERAND_BASE)
        offset = self.operand_addr
        m.d.sync += is_operand.eq(self.selector[7] == 0)
        with m.If(self.selector < STATISTIC_BASE):
            m.d.sync += defined.eq(
                (self.selector >= OPERAND_BASE)
                & (self.selector < OPERAND_BASE + MAX_OPERANDS)
                & (offset < self.operands)
            )
        with m.Else():
            m.d.sync += defined.eq(self.selector - STATISTIC_BASE < len(Statistic))
        values: dict[Statistic, Value | int] = {
            Statistic[name.upper()]: self.statistics[name] for name in STATISTICS_LAYOUT.members
        } | {Statistic.N: self.n, Statistic.OPERANDS: self.operands, Statistic.TAG: self.tag}
        with m.Switch(self.selector[:4]):
            for number, value in values.items():
                with m.Case(int(number)):
                    m.d.sync += statistic.eq(value)
        m.d.sync += [subject.eq(Mux(is_operand, self.operand_data, statistic)), known.eq(defined)]
        self._compare(m, subject, known)
        return m

    def _compare(self, m: Module, subject: Signal, known: Signal) -> None:
        equal, less, below = Signal(), Signal(), Signal()
        outcome = Signal()
        m.d.comb += [
            equal.eq(subject == self.value),
            below.eq(subject < self.value),
            less.eq(below ^ subject[31] ^ self.value[31]),
        ]
        domain = pipeline_domain(m, self._late)
        domain += self.holds.eq(outcome & known)
        with m.Switch(self.compare):
            for compare, result in (
                (Compare.EQ, equal),
                (Compare.NE, ~equal),
                (Compare.LT, less),
                (Compare.GE, ~less),
                (Compare.LTU, below),
                (Compare.GEU, ~below),
            ):
                with m.Case(int(compare)):
                    m.d.comb += outcome.eq(result)
