"""FUSE step 2: requantization, zero point, clip."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.fuse.control_store import fetch
from hw.fuse.floats import EXPONENT_BITS, pack
from hw.fuse.layouts import BEAT, control_write, lanes, lanes_of, part_of, requant_control
from hw.fuse.requant_scale import (
    CLIP_LATENCY,
    EXPONENT_SUM_BITS,
    ROUNDED,
    SCALE_LATENCY,
    ScaleControl,
    ScaleLane,
    add_zero_point,
    clip,
)
from hw.lib.delay_line import DelayLine
from hw.lib.pipeline import pipeline_register, pipeline_struct
from hw.lib.trees import tree_sum

_SCALED = 1 + SCALE_LATENCY
#: Cycles from the biased value to the result; the count of changed lanes is valid one cycle after the result.
LATENCY = _SCALED + CLIP_LATENCY
#: Exponent with which a product is shifted by the maximum amount.
_LEAST_EXPONENT = -128
#: Width of a count of changed lanes in bits.
COUNT_BITS = 6


class Requantizer(wiring.Component):
    """Computes `scale` of each value with the lane's, the row's or the command's multiplier and exponent, adds the
    zero point and clips.

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
    value : In(lanes)
        Biased value of each lane.
    mult, exponent, neg_mult, neg_exponent : In(lanes)
        Parameters of the slot, valid in the cycle of the value.
    row_mult, row_exponent : In
        Parameters of the row, valid in the cycle of the value.
    a_exponent : In(lanes of EXPONENT_BITS)
        Summand added to each lane's exponent, valid in the cycle of the value.
    o : Out(lanes)
        Requantized value of each lane.
    changed : Out(COUNT_BITS)
        Number of counted lanes that clipping changed, valid one cycle after the result.
    """

    def __init__(self, config: MlaConfig):
        self._n, self._lanes = config.n, lanes_of(config)
        self._control = requant_control(config.n)
        row, narrow = lanes(self._lanes), lanes(self._lanes, 8)
        super().__init__(
            {
                "controls": In(control_write(self._control)),
                "beat": In(BEAT),
                "o_beat": Out(BEAT),
                "value": In(row),
                "mult": In(row),
                "exponent": In(narrow),
                "neg_mult": In(row),
                "neg_exponent": In(narrow),
                "row_mult": In(signed(32)),
                "row_exponent": In(signed(8)),
                "a_exponent": In(lanes(self._lanes, EXPONENT_BITS)),
                "o": Out(row),
                "changed": Out(COUNT_BITS),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        beats = pipeline_struct(m, "beat", self.beat, LATENCY)
        m.d.comb += self.o_beat.eq(beats[-1])
        factors = fetch(
            m,
            "factors",
            self.controls,
            ("slot", "row", "neg_en", "mult", "exponent", "neg_mult", "neg_exponent"),
            beats[0].cmd,
        )
        mode = fetch(m, "mode", self.controls, ("rounding", "to_float"), beats[1].cmd)
        offset = fetch(m, "offset", self.controls, ("zp",), beats[_SCALED].cmd)
        limits = fetch(
            m,
            "limits",
            self.controls,
            ("lo", "hi", "count_all", "to_float", "mask", "mask_tail"),
            beats[_SCALED + 1].cmd,
        )
        m.submodules.exponents = exponents = DelayLine(width=EXPONENT_SUM_BITS * self._lanes, cycles=ROUNDED)
        changed = Signal(self._lanes)
        for lane in range(self._lanes):
            m.submodules[f"scale_{lane}"] = scale = ScaleLane()
            m.submodules[f"control_{lane}"] = control = ScaleControl()
            m.d.comb += scale.x.eq(pipeline_register(m, f"x_{lane}", self.value[lane]))
            exponent = self._factors(m, lane, factors, scale)
            bits = slice(EXPONENT_SUM_BITS * lane, EXPONENT_SUM_BITS * (lane + 1))
            m.d.comb += [
                # A float32 result is rounded only once, to the bits of its significand, regardless of its magnitude.
                control.exponent.eq(Mux(mode.to_float, _LEAST_EXPONENT, exponent)),
                control.rounding.eq(mode.rounding),
                scale.steps.eq(control.steps),
                exponents.i[bits].eq(exponent),
            ]
            number = pack(m, lane, scale.rounded, scale.dropped, exponents.o[bits].as_signed())
            total = add_zero_point(m, f"lane_{lane}", scale.o, offset.zp)
            limited, differs = clip(m, f"lane_{lane}", total, limits.lo, limits.hi)
            result = Mux(limits.to_float, number, limited)
            m.d.comb += self.o[lane].eq(pipeline_register(m, f"o_{lane}", result))
            m.d.comb += changed[lane].eq(differs)
        counted = pipeline_register(m, "counted", changed & self._counting(m, beats[_SCALED + 1], limits))
        m.d.comb += self.changed.eq(
            pipeline_register(m, "population", tree_sum(m, "changed_count", list(counted)))
        )
        return m

    def _factors(self, m: Module, lane: int, factors: data.View, scale: ScaleLane) -> Signal:
        """Connect the multiplier of a lane, and return the lane's exponent."""
        second = Signal(name=f"second_{lane}")
        mult, exponent = Signal(signed(32), name=f"mult_{lane}"), Signal(signed(8), name=f"exponent_{lane}")
        m.d.comb += second.eq(factors.neg_en & self.value[lane][-1])
        with m.If(factors.slot):
            m.d.comb += [
                mult.eq(Mux(second, self.neg_mult[lane], self.mult[lane])),
                exponent.eq(Mux(second, self.neg_exponent[lane], self.exponent[lane])),
            ]
        with m.Elif(second):
            m.d.comb += [mult.eq(factors.neg_mult), exponent.eq(factors.neg_exponent)]
        with m.Elif(factors.row):
            m.d.comb += [mult.eq(self.row_mult), exponent.eq(self.row_exponent)]
        with m.Else():
            m.d.comb += [mult.eq(factors.mult), exponent.eq(factors.exponent)]
        m.d.comb += scale.mult.eq(pipeline_register(m, f"mult_{lane}_1", mult))
        total = exponent + self.a_exponent[lane]
        return pipeline_register(m, f"exponent_{lane}_1", total, signed(EXPONENT_SUM_BITS))

    def _counting(self, m: Module, beat: data.View, limits: data.View) -> Value:
        """Return the mask of the beat's lanes in which clipping is counted."""
        mask = Signal(self._n, name="mask")
        m.d.comb += mask.eq(Mux(beat.tail, limits.mask_tail, limits.mask))
        here = Cat(part_of(mask, beat.part, self._lanes))
        return here & (limits.count_all | beat.live).replicate(self._lanes)
