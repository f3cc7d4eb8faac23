"""FUSE step 4: residual addition with the arithmetic of TFLite's ADD."""

from amaranth.hdl import Elaboratable, EnableInserter, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.fuse.control_store import fetch
from hw.fuse.layouts import BEAT, RESIDUAL_CONTROL, control_write, lanes, lanes_of
from hw.fuse.requant_scale import CLIP_LATENCY, SCALE_LATENCY, ScaleControl, ScaleLane, add_zero_point, clip
from hw.lib.delay_line import DelayLine
from hw.lib.pipeline import pipeline_register, pipeline_struct

_SCALED = 1 + SCALE_LATENCY
_SUM = _SCALED + 1
_OUT = _SUM + SCALE_LATENCY
#: Cycles from the value to the result.
LATENCY = _OUT + CLIP_LATENCY
#: Width of an element minus its zero point in bits.
_ELEMENT = 17


class Residual(wiring.Component):
    """Scales both inputs to a common scale, adds them and scales the sum to the result's scale; passes the value on
    unchanged if the command adds no residual.

    Latency: LATENCY. Throughput: one beat per cycle.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    controls : In
        Controls of a command that enters the pipeline.
    adding : In(1)
        High if a command in the pipeline adds a residual; otherwise the multipliers are disabled.
    beat : In(BEAT), o_beat : Out(BEAT)
        Control data of the beat at the input and at the output.
    value : In(lanes), r : In(lanes of 16 bits)
        Values of the lanes, and elements of the residual.
    o : Out(lanes)
        Requantized sum of each lane.
    """

    def __init__(self, config: MlaConfig):
        self._lanes = lanes_of(config)
        row = lanes(self._lanes)
        super().__init__(
            {
                "controls": In(control_write(RESIDUAL_CONTROL)),
                "adding": In(1),
                "beat": In(BEAT),
                "o_beat": Out(BEAT),
                "value": In(row),
                "r": In(lanes(self._lanes, 16)),
                "o": Out(row),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        beats = pipeline_struct(m, "beat", self.beat, LATENCY)
        m.d.comb += self.o_beat.eq(beats[-1])
        offsets = fetch(m, "offsets", self.controls, ("x_zp", "r_zp"), beats[0].cmd)
        inputs = fetch(
            m,
            "inputs",
            self.controls,
            ("x_mult", "r_mult", "x_exponent", "r_exponent", "ls", "raw", "rounding"),
            beats[1].cmd,
        )
        added = fetch(m, "added", self.controls, ("bias",), beats[_SCALED].cmd)
        output = fetch(m, "output", self.controls, ("o_mult", "o_exponent", "rounding"), beats[_SUM].cmd)
        offset = fetch(m, "offset", self.controls, ("zp",), beats[_OUT].cmd)
        limits = fetch(m, "limits", self.controls, ("enable", "lo", "hi"), beats[_OUT + 1].cmd)
        steps = self._steps(m, inputs, output)
        m.submodules.bypass = bypass = DelayLine(width=32 * self._lanes, cycles=LATENCY - 1)
        m.d.comb += bypass.i.eq(self.value.as_value())
        kept = data.View(lanes(self._lanes), bypass.o)
        for lane in range(self._lanes):
            x = pipeline_register(
                m, f"x_{lane}", self.value[lane][:16].as_signed() - offsets.x_zp, signed(_ELEMENT)
            )
            r = pipeline_register(m, f"r_{lane}", self.r[lane] - offsets.r_zp, signed(_ELEMENT))
            scaled_x = self._scale(m, f"scale_x_{lane}", x, inputs.x_mult, steps[0])
            scaled_r = self._scale(m, f"scale_r_{lane}", r, inputs.r_mult, steps[1])
            total = pipeline_register(m, f"sum_{lane}", scaled_x + scaled_r + added.bias, signed(32))
            scaled_o = self._scale(m, f"scale_o_{lane}", total, output.o_mult, steps[2])
            placed = add_zero_point(m, f"lane_{lane}", scaled_o, offset.zp)
            limited, _ = clip(m, f"lane_{lane}", placed, limits.lo, limits.hi)
            m.d.comb += self.o[lane].eq(
                pipeline_register(m, f"o_{lane}", Mux(limits.enable, limited, kept[lane]))
            )
        return m

    def _steps(self, m: Module, inputs: data.View, output: data.View) -> list[data.View]:
        """Return the controls of the three scalings (both inputs and the sum), which all lanes share."""
        m.submodules.control_x = x = ScaleControl(x_width=_ELEMENT)
        m.submodules.control_r = r = ScaleControl(x_width=_ELEMENT)
        m.submodules.control_o = o = ScaleControl()
        for control, exponent in ((x, inputs.x_exponent), (r, inputs.r_exponent)):
            m.d.comb += [
                control.exponent.eq(exponent),
                control.ls.eq(inputs.ls),
                control.raw.eq(inputs.raw),
                control.rounding.eq(inputs.rounding),
            ]
        m.d.comb += [o.exponent.eq(output.o_exponent), o.rounding.eq(output.rounding)]
        return [x.steps, r.steps, o.steps]

    def _scale(self, m: Module, name: str, value: Signal, mult: Value, steps: data.View) -> Value:
        scale = ScaleLane(x_width=len(value))
        m.submodules[name] = EnableInserter(self.adding)(scale)
        m.d.comb += [scale.x.eq(value), scale.mult.eq(mult), scale.steps.eq(steps)]
        return scale.o
