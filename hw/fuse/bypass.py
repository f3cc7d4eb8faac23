"""Bypass of the steps after step 3 of FUSE's pipeline, for commands without these steps."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.fuse.control_store import fetch
from hw.fuse.layouts import BEAT, bypass_control, control_write, lanes, lanes_of, part_of
from hw.fuse.post_scale import SUM_BITS
from hw.fuse.requant import COUNT_BITS
from hw.fuse.requant_scale import clip
from hw.lib.pipeline import pipeline_delay, pipeline_register, pipeline_struct
from hw.lib.trees import tree_sum

#: Cycles from the value of step 3 to the element.
LATENCY = 2


class Bypass(wiring.Component):
    """Saturates the values of commands that end with step 3 to the element type, as `PostScale` does after all steps,
    and removes their beats from the pipeline; the beats of other commands pass.

    Latency: LATENCY. Throughput: one beat per cycle.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    controls : In
        Controls of a command that enters the pipeline.
    beat : In(BEAT), value : In(lanes)
        Control data of the beat after step 3, and value of each lane.
    changed : In(COUNT_BITS)
        Number of lanes of the beat that step 2 changed, valid one cycle before the beat.
    o_beat : Out(BEAT), o : Out(lanes)
        The inputs in the same cycle; `valid` is low if the beat leaves.
    early_beat : Out(BEAT), early : Out(lanes), early_changed : Out(SUM_BITS)
        Beat that leaves, its elements, and the number of lanes changed by step 2 and by the saturation.
    """

    def __init__(self, config: MlaConfig):
        self._n, self._lanes = config.n, lanes_of(config)
        row = lanes(self._lanes)
        super().__init__(
            {
                "controls": In(control_write(bypass_control(config.n))),
                "beat": In(BEAT),
                "value": In(row),
                "changed": In(COUNT_BITS),
                "o_beat": Out(BEAT),
                "o": Out(row),
                "early_beat": Out(BEAT),
                "early": Out(row),
                "early_changed": Out(SUM_BITS),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        beat, mask = self.beat, Signal(self._n, name="mask")
        element = fetch(m, "element", self.controls, ("early", "low", "high", "mask", "mask_tail"), beat.cmd)
        leaving = Signal(BEAT)
        m.d.comb += [
            self.o_beat.eq(beat),
            self.o_beat.valid.eq(beat.valid & ~element.early),
            self.o.eq(self.value),
            leaving.eq(beat),
            leaving.valid.eq(beat.valid & element.early),
            self.early_beat.eq(pipeline_struct(m, "beat", leaving, LATENCY)[-1]),
            mask.eq(Mux(beat.tail, element.mask_tail, element.mask)),
        ]
        differs = Signal(self._lanes)
        for lane in range(self._lanes):
            saturated, differs_here = clip(m, f"element_{lane}", self.value[lane], element.low, element.high)
            m.d.comb += [
                differs[lane].eq(differs_here),
                self.early[lane].eq(pipeline_delay(m, f"element_{lane}_saturated", saturated, LATENCY)),
            ]
        counted = pipeline_register(m, "counted", differs & Cat(part_of(mask, beat.part, self._lanes)))
        total = tree_sum(m, "changed_count", list(counted)) + pipeline_delay(m, "changed", self.changed, 2)
        m.d.comb += self.early_changed.eq(pipeline_register(m, "total_changed", total))
        return m
