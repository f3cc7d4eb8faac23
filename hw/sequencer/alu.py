"""Arithmetic and comparisons of scalar micro-instructions."""

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.isa.micro_instruction import MicroOp


class Alu(wiring.Component):
    """Scalar arithmetic: an operation on a and b + imm, the comparison of a and b for branches, and a + b + imm.

    Products are computed outside this component, because the multipliers are shared with the bounds checker.

    Latency: combinational. Throughput: one operation per cycle.

    Members
    -------
    op : In
        Operation to execute, a value of `MicroOp`.
    a, b, imm : In
        Operands of the instruction.
    product : In
        Low half of a * (b + imm), used by MUL.
    second : Out
        Second operand of the operation: b + imm, 32 bits.
    result : Out
        Value for the destination register.
    sum : Out
        Sum a + b + imm, the value that SET and TAG write.
    taken : Out
        High if the branch is taken.
    """

    op: In(6)
    a: In(32)
    b: In(32)
    imm: In(32)
    product: In(32)
    second: Out(32)
    result: Out(32)
    sum: Out(32)
    taken: Out(1)

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        second, total, difference, equal = Signal(32), Signal(32), Signal(32), Signal()
        m.d.comb += [
            second.eq(self.b + self.imm),
            self.second.eq(second),
            total.eq(_sum(*_carry_save(self.a, self.b, self.imm))),
            self.sum.eq(total),
        ]
        # a - (b + imm) does not depend on the sum b + imm: it is the sum of a and both complements, plus two.
        low, high = _carry_save(self.a, ~self.b, ~self.imm)
        m.d.comb += [
            difference.eq(_sum(low, high | 1, 1)),
            equal.eq((low ^ (high | 1)).all()),  # -1 instead of 0, because the final + 1 is missing
        ]
        differ, less, less_unsigned = self.a[31] ^ second[31], Signal(), Signal()
        m.d.comb += [
            less.eq(Mux(differ, self.a[31], difference[31])),
            less_unsigned.eq(Mux(differ, second[31], difference[31])),
        ]
        shifted = self._shift(m, second)
        with m.Switch(self.op):
            for op, value in (
                (MicroOp.SUB, difference),
                (MicroOp.MUL, self.product),
                (MicroOp.MIN, Mux(less, self.a, second)),
                (MicroOp.MAX, Mux(less, second, self.a)),
                (MicroOp.AND, self.a & second),
                (MicroOp.OR, self.a | second),
                (MicroOp.XOR, self.a ^ second),
                (MicroOp.SLT, less),
                (MicroOp.SLTU, less_unsigned),
                (MicroOp.SEQ, equal),
            ):
                with m.Case(int(op)):
                    m.d.comb += self.result.eq(value)
            with m.Case(int(MicroOp.SHL), int(MicroOp.SHR), int(MicroOp.SAR)):
                m.d.comb += self.result.eq(shifted)
            with m.Default():
                m.d.comb += self.result.eq(total)
        self._branch(m)
        return m

    def _branch(self, m: Module) -> None:
        """Drive `taken` for branches by comparing a and b."""
        branch_less, branch_less_unsigned, branch_equal = self._compare(m)
        with m.Switch(self.op):
            for op, value in (
                (MicroOp.BEQ, branch_equal),
                (MicroOp.BNE, ~branch_equal),
                (MicroOp.BLT, branch_less),
                (MicroOp.BGE, ~branch_less),
                (MicroOp.BLTU, branch_less_unsigned),
                (MicroOp.BGEU, ~branch_less_unsigned),
            ):
                with m.Case(int(op)):
                    m.d.comb += self.taken.eq(value)

    def _compare(self, m: Module) -> tuple[Signal, Signal, Signal]:
        """Return three signals that are high if a < b (signed), a < b (unsigned) and a == b."""
        difference, less, less_unsigned, equal = Signal(33), Signal(), Signal(), Signal()
        m.d.comb += [
            difference.eq(self.a - self.b),
            less_unsigned.eq(difference[32]),
            less.eq(Mux(self.a[31] ^ self.b[31], self.a[31], difference[32])),
            equal.eq(self.a == self.b),
        ]
        return less, less_unsigned, equal

    def _shift(self, m: Module, second: Signal) -> Signal:
        """Return operand a shifted by `second`.

        There is only a right shifter; for a left shift, the bits are reversed before and after it.
        """
        left, amount = Signal(), Signal(5)
        reversed_in, reversed_out = Signal(32), Signal(32)
        stage_in, stage_out, result = Signal(signed(33)), Signal(unsigned(32)), Signal(32)
        fill = Signal()
        m.d.comb += [
            left.eq(self.op == MicroOp.SHL),
            amount.eq(second[:5]),
            reversed_in.eq(self.a[::-1]),
            fill.eq((self.op == MicroOp.SAR) & self.a[31]),
            stage_in[:32].eq(Mux(left, reversed_in, self.a)),
            stage_in[32].eq(fill),
            stage_out.eq(stage_in >> amount),
            reversed_out.eq(stage_out[::-1]),
            result.eq(Mux(left, reversed_out, stage_out)),
        ]
        return result


def _carry_save(a: Value, b: Value, c: Value) -> tuple[Value, Value]:
    """Return two words with the same sum as three words, modulo 2**32, computed without a carry chain."""
    return a ^ b ^ c, (((a & b) | (a & c) | (b & c)) << 1)[:32]


def _sum(a: Value, b: Value, carry: int = 0) -> Value:
    """Return the sum of a, b and the carry, computed by one adder."""
    return (Cat(Const(1, 1), a[:32]) + Cat(Const(carry, 1), b[:32]))[1:33]
