"""FUSE step 1, second half: the operator that combines A and B; also the addition of the bias of step 2."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.fuse.control_store import fetch
from hw.fuse.layouts import BEAT, OP_CONTROL, control_write, lanes, lanes_of
from hw.lib.pipeline import pipeline_struct

#: Cycles from the operands to the biased value.
LATENCY = 3
#: Number of cycles from the operands to the cycle in which the slot's bias is needed.
BIAS_AT = 2


class BinaryOperator(wiring.Component):
    """Computes (A op B) + bias, wrapping; a product is formed from the low 18 bits of A and B and shifted right.

    The bias is not added to A * factor - B.

    Latency: LATENCY. Throughput: one beat per cycle.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    controls : In
        Controls of a command that enters the pipeline.
    beat : In(BEAT), o_beat : Out(BEAT)
        Control data of the beat at the input and at the output.
    a, b : In(lanes)
        Operands of each lane.
    bias : In(lanes)
        The slot's bias, BIAS_AT cycles after the operands.
    bias_en : Out(1)
        High if step 2 or the post-scale of the beat at the input needs the bias of a slot.
    value : Out(lanes)
        Result of each lane.
    """

    def __init__(self, config: MlaConfig):
        self._lanes = lanes_of(config)
        row = lanes(self._lanes)
        super().__init__(
            {
                "controls": In(control_write(OP_CONTROL)),
                "beat": In(BEAT),
                "o_beat": Out(BEAT),
                "a": In(row),
                "b": In(row),
                "bias": In(row),
                "bias_en": Out(1),
                "value": Out(row),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        beats = pipeline_struct(m, "beat", self.beat, LATENCY)
        m.d.comb += self.o_beat.eq(beats[-1])
        start = fetch(
            m,
            "start",
            self.controls,
            ("add", "sub", "square", "mul_sub", "factor", "reads_bias"),
            beats[0].cmd,
        )
        shift = fetch(m, "shift", self.controls, ("shift",), beats[1].cmd)
        end = fetch(m, "end", self.controls, ("product", "mul_sub", "bias_slot", "bias"), beats[2].cmd)
        m.d.comb += self.bias_en.eq(self.beat.valid & start.reads_bias)
        for lane in range(self._lanes):
            a, b = self.a[lane], self.b[lane]
            sum_1, sum_2 = (Signal(signed(32), name=f"sum_{i}_{lane}", reset_less=True) for i in (1, 2))
            value = Signal(signed(32), name=f"value_{lane}", reset_less=True)
            factor = Signal(signed(18), name=f"factor_{lane}")
            product = Signal(signed(36), name=f"product_{lane}", reset_less=True)
            shifted = Signal(signed(32), name=f"shifted_{lane}", reset_less=True)
            bias = Signal(signed(32), name=f"bias_{lane}")
            minuend = Signal(signed(32), name=f"minuend_{lane}")
            m.d.comb += [
                self.value[lane].eq(value),
                minuend.eq(Mux(start.mul_sub, 0, a)),
                factor.eq(Mux(start.mul_sub, start.factor, Mux(start.square, a, b)[:18].as_signed())),
                bias.eq(Mux(end.mul_sub, sum_2, Mux(end.bias_slot, self.bias[lane], end.bias))),
            ]
            m.d.sync += [
                sum_1.eq(Mux(start.add, a + b, Mux(start.sub | start.mul_sub, minuend - b, a))),
                sum_2.eq(sum_1),
                product.eq(a[:18].as_signed() * factor),
                shifted.eq(product >> shift.shift),
                value.eq(Mux(end.product, shifted, sum_2) + bias),
            ]
        return m
