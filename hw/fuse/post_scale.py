"""FUSE step 5, third part: the post-scale; also the saturation of step 6."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.fuse.control_store import fetch
from hw.fuse.layouts import BEAT, control_write, lanes, lanes_of, part_of, post_control
from hw.fuse.reduce import COUNT_BITS
from hw.fuse.requant import COUNT_BITS as CHANGED_BITS
from hw.fuse.requant_scale import CLIP_LATENCY, SCALE_LATENCY, ScaleControl, ScaleLane, add_zero_point, clip
from hw.isa.enums import Rounding
from hw.lib.pipeline import pipeline_delay, pipeline_register, pipeline_struct
from hw.lib.trees import tree_sum

_SCALED = 2 + SCALE_LATENCY
_CLIPPED = _SCALED + CLIP_LATENCY
#: Cycles from the reduced value to the element.
LATENCY = _CLIPPED + 2
#: Number of cycles before the result at which the number of lanes changed by step 2 is added.
CHANGED_BEFORE = 1
#: Width of a sum of changed lanes in bits.
SUM_BITS = CHANGED_BITS + 1
#: Limit of a value before it is divided by the count.
COUNT_LIMIT = (1 << 23) - 1


def divider(count: int) -> tuple[int, int]:
    """Return the multiplier and exponent with which `scale` divides by a count; the rounded quotient is exact for
    values up to COUNT_LIMIT.

    The multiplier exceeds 2**s / count by so little that no rounded quotient changes except for ties, which are rounded
    away from zero.
    """
    if count == 0:
        return 0, 0
    shift = 24 + (count - 1).bit_length()
    return (1 << shift) // count + 1, 31 - shift


class PostScale(wiring.Component):
    """Computes value + bias, scaled by a multiplier or divided by the count, plus the zero point; clips the result and
    saturates it to the element type.

    For the reciprocal root of a variance, the scaled square of the row's sum is subtracted from the result.

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
    value : In(lanes), count : In
        Reduced value of each lane, and the number of points that contributed.
    bias : In(lanes)
        Bias of the slot, valid in the cycle of the value.
    mult, exponent : In(lanes)
        Multiplier and exponent of the slot, valid one cycle after the value.
    row_mult, row_exponent : In
        Multiplier (or sum) and exponent of the row, valid one cycle after the value.
    changed : In
        Number of lanes of the beat's point that step 2 changed, valid CHANGED_BEFORE cycles before the result.
    o : Out(lanes), o_changed : Out
        Elements of the result, and the number of lanes changed by step 2 and by the saturation.
    o_pair, o_root : Out(1)
        High if the result in the first lane is the operand of a reciprocal, and if its root is needed first.
    o_emit : Out(1)
        High if the beat's point completes a result.
    """

    def __init__(self, config: MlaConfig):
        self._n, self._lanes = config.n, lanes_of(config)
        self._control = post_control(config.n)
        super().__init__(
            {
                "controls": In(control_write(self._control)),
                "beat": In(BEAT),
                "o_beat": Out(BEAT),
                "value": In(lanes(self._lanes)),
                "count": In(COUNT_BITS),
                "bias": In(lanes(self._lanes)),
                "mult": In(lanes(self._lanes)),
                "exponent": In(lanes(self._lanes, 8)),
                "row_mult": In(signed(32)),
                "row_exponent": In(signed(8)),
                "changed": In(CHANGED_BITS),
                "o": Out(lanes(self._lanes)),
                "o_changed": Out(SUM_BITS),
                "o_pair": Out(1),
                "o_root": Out(1),
                "o_emit": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        beats = pipeline_struct(m, "beat", self.beat, LATENCY)
        m.d.comb += self.o_beat.eq(beats[-1])
        before = fetch(m, "before", self.controls, ("bias", "slot"), beats[0].cmd)
        offset = fetch(m, "offset", self.controls, ("zp",), beats[_SCALED].cmd)
        limits = fetch(m, "limits", self.controls, ("lo", "hi"), beats[_SCALED + 1].cmd)
        element = fetch(
            m,
            "element",
            self.controls,
            ("low", "high", "scalar", "emit_all", "mask", "mask_tail"),
            beats[_CLIPPED].cmd,
        )
        select, shared = self._shared_factor(m, beats)
        squares = self._squares(m, beats, select)
        result = fetch(m, "result", self.controls, ("variance",), beats[_CLIPPED + 1].cmd)
        last = fetch(m, "last", self.controls, ("pair", "root", "emit_all"), beats[-1].cmd)
        m.d.comb += [
            self.o_pair.eq(last.pair & self.o_emit),
            self.o_emit.eq(last.emit_all | beats[-1].last),
            self.o_root.eq(last.root),
        ]
        changed = Signal(self._lanes)
        for lane in range(self._lanes):
            added = Mux(before.slot, self.bias[lane], before.bias)
            biased = pipeline_register(m, f"biased_{lane}", self.value[lane] + added, signed(32))
            limited, _ = clip(m, f"count_{lane}", biased, -COUNT_LIMIT, COUNT_LIMIT)
            m.submodules[f"scale_{lane}"] = scale = ScaleLane()
            m.submodules[f"control_{lane}"] = control = ScaleControl()
            m.d.comb += scale.x.eq(pipeline_register(m, f"x_{lane}", Mux(select.count, limited, biased)))
            mult = Mux(select.slot, self.mult[lane], shared.mult)
            exponent = Mux(select.slot, self.exponent[lane], shared.exponent)
            m.d.comb += [
                scale.mult.eq(pipeline_register(m, f"mult_{lane}", mult, signed(32))),
                scale.steps.eq(control.steps),
                control.exponent.eq(pipeline_register(m, f"exponent_{lane}", exponent, signed(8))),
                control.rounding.eq(pipeline_register(m, f"rounding_{lane}", shared.rounding)),
            ]
            total = add_zero_point(m, f"lane_{lane}", scale.o, offset.zp)
            placed = pipeline_register(
                m, f"placed_{lane}", clip(m, f"lane_{lane}", total, limits.lo, limits.hi)[0]
            )
            saturated, differs = clip(m, f"element_{lane}", placed, element.low, element.high)
            element_1 = pipeline_register(m, f"element_{lane}_1", saturated)
            if lane == 0:
                element_1 = Mux(result.variance, (element_1 - squares)[:32].as_signed(), element_1)
            m.d.comb += [
                self.o[lane].eq(pipeline_register(m, f"element_{lane}_2", element_1, signed(32))),
                changed[lane].eq(differs),
            ]
        counted = pipeline_register(m, "counted", changed & self._written(m, beats[_CLIPPED], element))
        total_changed = tree_sum(m, "changed_count", list(counted)) + self.changed
        m.d.comb += self.o_changed.eq(pipeline_register(m, "total_changed", total_changed))
        return m

    def _shared_factor(self, m: Module, beats: list[data.View]) -> tuple[data.View, data.View]:
        """Return what all lanes share, in the cycle after the value: controls that select the factor, and the factor
        of results without a slot.
        """
        select = fetch(
            m,
            "factor",
            self.controls,
            ("count", "row", "slot", "mult", "exponent", "square_exponent", "rounding"),
            beats[1].cmd,
        )
        table = [divider(count) for count in range(1 << COUNT_BITS)]
        layout = data.StructLayout({"mult": signed(32), "exponent": signed(8)})
        init = [layout.const({"mult": mult, "exponent": exponent}).as_bits() for mult, exponent in table]
        m.submodules.reciprocals = rom = memory.Memory(
            shape=unsigned(layout.size), depth=len(init), init=init
        )
        port = rom.read_port()
        m.d.comb += port.addr.eq(self.count)
        entry = data.View(layout, port.data)
        shared = Signal(
            data.StructLayout({"mult": signed(32), "exponent": signed(8), "rounding": 2}),
            name="shared_factor",
        )
        m.d.comb += [
            shared.mult.eq(Mux(select.row, self.row_mult, select.mult)),
            shared.exponent.eq(Mux(select.row, self.row_exponent, select.exponent)),
            shared.rounding.eq(Mux(select.count, Rounding.SINGLE, select.rounding)),
        ]
        with m.If(select.count):
            m.d.comb += [shared.mult.eq(entry.mult), shared.exponent.eq(entry.exponent)]
        return select, shared

    def _squares(self, m: Module, beats: list[data.View], select: data.View) -> Value:
        """Return the scaled square of the row's sum, valid one cycle before the result."""
        m.submodules.square = square = ScaleLane()
        m.submodules.square_control = control = ScaleControl()
        total = pipeline_register(m, "row_sum", self.row_mult)
        m.d.comb += [
            square.x.eq(total),
            square.mult.eq(total),
            square.steps.eq(control.steps),
            control.exponent.eq(pipeline_register(m, "square_exponent", select.square_exponent, signed(8))),
            control.rounding.eq(Rounding.SINGLE),
        ]
        return pipeline_delay(m, "square", square.o, _CLIPPED + 1 - _SCALED)

    def _written(self, m: Module, beat: data.View, element: data.View) -> Value:
        """Return the mask of the beat's lanes that are elements of a result."""
        mask = Signal(self._n, name="mask")
        m.d.comb += mask.eq(Mux(beat.tail, element.mask_tail, element.mask))
        lanes_here = Cat(part_of(mask, beat.part, self._lanes))
        last = beat.part == self._n // self._lanes - 1
        here = Mux(element.scalar, last, lanes_here)
        return here & (element.emit_all | beat.last).replicate(self._lanes)
