"""Scalar arithmetic with few logic cells: an ALU with a latency of one cycle, and a multiplier for MUL."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.isa.micro_instruction import MicroOp
from hw.lib.pipeline import pipeline_register
from hw.sequencer.alu import Alu

_SUBTRACTS = (MicroOp.SUB, MicroOp.MIN, MicroOp.MAX, MicroOp.SLT, MicroOp.SLTU, MicroOp.SEQ)
_BITWISE = (MicroOp.AND, MicroOp.OR, MicroOp.XOR)
_CHOICES = (MicroOp.MIN, MicroOp.MAX)
_SHIFTS = (MicroOp.SHL, MicroOp.SHR, MicroOp.SAR)
_FLAGS = (MicroOp.SLT, MicroOp.SLTU, MicroOp.SEQ)


class SerialAlu(Alu):
    """`Alu` with one adder for sums and differences, and a register in the middle of every path to `result`.

    Latency: combinational except for `result`, which takes 1 cycle; the operands must not change during this cycle.
    Throughput: one operation every two cycles. Members are the same as for `Alu`, except that `sum` is a - (b + imm)
    for operations that subtract.
    """

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        sum_of_two, total = Signal(32), Signal(32)
        subtracts, low, high = Signal(), Signal(32), Signal(33)
        turned = subtracts.replicate(32)
        b, imm = self.b ^ turned, self.imm ^ turned
        m.d.comb += [
            sum_of_two.eq(self.b + self.imm),
            self.second.eq(sum_of_two),
            subtracts.eq(self._does(*_SUBTRACTS)),
            # The three words are reduced to two. The complement of both operands leaves their exclusive or unchanged,
            # and the sum is too small by two.
            low.eq(self.a ^ self.b ^ self.imm),
            high.eq(Cat(subtracts, (self.a & b) | (self.a & imm) | (b & imm))),
            total.eq((Cat(subtracts, low) + Cat(subtracts, high))[1:33]),
            self.sum.eq(total),
        ]
        # If the operands are equal, the sum before the final + 1 is -1.
        equal = pipeline_register(m, "equal", (low ^ high[:32]).all())
        second, total = (
            pipeline_register(m, "second_held", sum_of_two),
            pipeline_register(m, "total_held", total),
        )
        differ, less, flag = self.a[31] ^ second[31], Signal(), Signal()
        m.d.comb += [
            less.eq(Mux(differ, Mux(self._does(MicroOp.SLTU), second[31], self.a[31]), total[31])),
            flag.eq(Mux(self._does(MicroOp.SEQ), equal, less)),
        ]
        # A four-way selection by a bit of each operand implements bitwise operations and choices between the operands.
        first = Signal()
        m.d.comb += first.eq(less ^ self._does(MicroOp.MAX))
        either = self._does(MicroOp.OR, MicroOp.XOR), self._does(MicroOp.OR, MicroOp.AND)
        choice, bits = Mux(first, self.a, second), Signal(32)
        m.d.comb += bits.eq(
            ((self.a ^ second) & either[0].replicate(32)) | (self.a & second & either[1].replicate(32))
        )
        result = bits | self._only(total, *(op for op in MicroOp if op not in _OTHERS))
        for ops, value in (
            (_CHOICES, choice),
            (_SHIFTS, self._shifted(m)),
            ((MicroOp.MUL,), self.product),
            (_FLAGS, flag),
        ):
            result = result | self._only(value, *ops)
        m.d.comb += self.result.eq(result)
        self._branch(m)
        return m

    def _does(self, *ops: MicroOp) -> Value:
        return self.op.matches(*(int(op) for op in ops))

    def _only(self, value: Value, *ops: MicroOp) -> Value:
        """Return `value` if the operation is one of `ops`, else 0."""
        return value & self._does(*ops).replicate(len(value))

    def _shifted(self, m: Module) -> Signal:
        """Return operand a shifted by b + imm.

        The operand is shifted to the right, first by whole bytes and one cycle later by the remaining bits; for a left
        shift, the bits are reversed before and after.
        """
        left, fill, amount = Signal(), Signal(), Signal(5)
        word, result = Signal(32), Signal(32)
        m.d.comb += [
            left.eq(self._does(MicroOp.SHL)),
            fill.eq(self._does(MicroOp.SAR) & self.a[31]),
            amount.eq(self.b[:5] + self.imm[:5]),
            word.eq(Mux(left, self.a[::-1], self.a)),
        ]
        coarse = pipeline_register(m, "coarse", _right(word, fill, amount[3:], 8))
        fine = _right(coarse, fill, pipeline_register(m, "amount_held", amount[:3]), 1)
        m.d.comb += result.eq(Mux(left, fine[::-1], fine))
        return result


_OTHERS = (*_BITWISE, *_CHOICES, *_SHIFTS, MicroOp.MUL, *_FLAGS)


def _right(word: Value, fill: Value, amount: Value, unit: int) -> Value:
    """Return a word shifted to the right by `amount` * `unit` bits."""
    for i in range(len(amount)):
        distance = unit << i
        word = Mux(amount[i], Cat(word[distance:32], fill.replicate(distance)), word)
    return word


class ScalarMultiply(wiring.Component):
    """Multiplier for the low half of a product of 32-bit operands, computed from three products of their halves.

    Latency: 2 cycles. Throughput: one product per cycle.

    Members
    -------
    mul : In
        Sample new operands; while `mul` is low, the product of the previous operands remains valid.
    mul_a, mul_b : In
        Operands of the product, 32 bits.
    mul_product : Out
        Low half of the product.
    """

    mul: In(1)
    mul_a: In(32)
    mul_b: In(32)
    mul_product: Out(32)

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        halves = {name: (word[:16], word[16:]) for name, word in (("a", self.mul_a), ("b", self.mul_b))}
        products = []
        for i, (high_a, high_b) in enumerate(((0, 0), (0, 1), (1, 0))):
            x, y = Signal(16, name=f"x_{i}"), Signal(16, name=f"y_{i}")
            product = Signal(32, name=f"p_{i}")
            with m.If(self.mul):
                m.d.sync += [x.eq(halves["a"][high_a]), y.eq(halves["b"][high_b])]
            m.d.sync += product.eq(x * y)
            products.append(product)
        cross = Signal(16)
        m.d.comb += [
            cross.eq(products[1][:16] + products[2][:16]),
            self.mul_product.eq(products[0] + (cross << 16)),
        ]
        return m
