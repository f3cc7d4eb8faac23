"""FUSE step 5, first two parts: the reduction over the points of a window, and the reduction across the lanes."""

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.fuse.control_store import fetch
from hw.fuse.layouts import BEAT, control_write, lanes, lanes_of, part_of, reduce_control
from hw.isa.enums import Reduce
from hw.lib.pipeline import pipeline_delay, pipeline_register, pipeline_struct
from hw.lib.trees import registered_tree, tree_latency

#: Cycles from a window's last point to its result.
WINDOW_LATENCY = 1
COUNT_BITS = 8


class WindowReduce(wiring.Component):
    """Computes the sum, maximum or minimum of each lane over the points of a window; every beat outputs the partial
    reduction.

    Latency: WINDOW_LATENCY. Throughput: one beat per cycle.

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
        Value of each lane.
    o : Out(lanes), any : Out
        Partial reduction, and mask of the lanes that have contributed to it (other lanes are undefined).
    count : Out(COUNT_BITS)
        Number of points that have contributed.
    """

    def __init__(self, config: MlaConfig):
        self._n, self._lanes, self._rate = config.n, lanes_of(config), config.fuse_rate
        super().__init__(
            {
                "controls": In(control_write(reduce_control(config.n))),
                "beat": In(BEAT),
                "o_beat": Out(BEAT),
                "value": In(lanes(self._lanes)),
                "o": Out(lanes(self._lanes)),
                "any": Out(self._lanes),
                "count": Out(COUNT_BITS),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        beats = pipeline_struct(m, "beat", self.beat, WINDOW_LATENCY)
        m.d.comb += self.o_beat.eq(beats[-1])
        control = fetch(m, "reduce", self.controls, ("reduce", "mask", "mask_tail"), self.beat.cmd)
        beat = self.beat
        alone, fresh = Signal(), Signal()
        mask, contributes = Signal(self._n), Signal(self._lanes)
        m.d.comb += [
            alone.eq(control.reduce == Reduce.NONE),
            fresh.eq(beat.first | alone),
            mask.eq(Mux(beat.tail, control.mask_tail, control.mask)),
            contributes.eq(
                Cat(part_of(mask, beat.part, self._lanes)) & (beat.live | alone).replicate(self._lanes)
            ),
        ]
        with m.If(beat.valid & (beat.part == 0)):
            m.d.sync += self.count.eq(Mux(fresh, 0, self.count) + beat.live)
        self._accumulate(m, control.reduce, fresh, contributes)
        return m

    def _accumulate(self, m: Module, reduce: Value, fresh: Value, contributes: Value) -> None:
        beat = self.beat
        layout = data.StructLayout({"value": lanes(self._lanes), "any": self._lanes})
        # The states form a ring with one state for each part of a row; parts arrive in turn, and the state just updated
        # is the output.
        states = [Signal(layout, name=f"state_{part}", reset_less=True) for part in range(self._rate)]
        before, after = Signal(layout), Signal(layout)
        m.d.comb += [before.eq(states[-1]), self.o.eq(states[0].value), self.any.eq(states[0].any)]
        with m.If(beat.valid):
            m.d.sync += [new.eq(old) for new, old in zip(states, [after, *states], strict=False)]
        m.d.comb += after.any.eq(contributes | Mux(fresh, 0, before.any))
        for lane in range(self._lanes):
            old, new = before.value[lane], self.value[lane]
            merged = combine(m, f"merged_{lane}", reduce, old, new)
            use_old, use_new = Signal(name=f"use_old_{lane}"), contributes[lane]
            m.d.comb += use_old.eq(before.any[lane] & ~fresh)
            m.d.comb += after.value[lane].eq(Mux(use_new, Mux(use_old, merged, new), old))


def combine(m: Module, name: str, reduce: Value, a: Value, b: Value) -> Signal:
    """Return the sum (wrapping), maximum or minimum of two values; the result is undefined if `reduce` is NONE."""
    merged, less = Signal(signed(32), name=name), Signal(name=f"{name}_less")
    m.d.comb += [
        less.eq(a < b),
        merged.eq(Mux(reduce == Reduce.SUM, a + b, Mux(less == (reduce == Reduce.MAX), b, a))),
    ]
    return merged


_MIN, _MAX = -(1 << 31), (1 << 31) - 1


def lane_reduce_latency(config: MlaConfig) -> int:
    """Return the latency of the lane reduction in cycles, from a window's result to the reduced lane."""
    return 2 + tree_latency(lanes_of(config)) + (config.fuse_rate > 1)


class LaneReduce(wiring.Component):
    """Replaces lane 0 of a row's last beat by the sum, maximum or minimum of the lanes that contributed, if the command
    reduces lanes.

    Latency: lane_reduce_latency(config). Throughput: one beat per cycle.

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
    value : In(lanes), any : In
        Results of the windows, and the mask of lanes that contributed.
    count : In, o_count : Out
        Number of points of the window, at the input and at the output.
    o : Out(lanes)
        Result; if the command does not reduce lanes, lanes that did not contribute are 0.
    """

    def __init__(self, config: MlaConfig):
        self._config, self._lanes = config, lanes_of(config)
        row = lanes(self._lanes)
        super().__init__(
            {
                "controls": In(control_write(reduce_control(config.n))),
                "beat": In(BEAT),
                "o_beat": Out(BEAT),
                "value": In(row),
                "any": In(self._lanes),
                "count": In(COUNT_BITS),
                "o_count": Out(COUNT_BITS),
                "o": Out(row),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        total, levels = lane_reduce_latency(self._config), tree_latency(self._lanes)
        beats = pipeline_struct(m, "beat", self.beat, total)
        m.d.comb += [
            self.o_beat.eq(beats[-1]),
            self.o_count.eq(pipeline_delay(m, "count", self.count, total)),
        ]
        control = fetch(m, "identity", self.controls, ("lane_reduce",), beats[0].cmd)
        identity = Signal(signed(32))
        m.d.comb += identity.eq(
            Mux(
                control.lane_reduce == Reduce.MAX,
                Const(_MIN, signed(32)),
                Mux(control.lane_reduce == Reduce.MIN, Const(_MAX, signed(32)), 0),
            )
        )
        filled = [
            pipeline_register(m, f"filled_{lane}", Mux(self.any[lane], self.value[lane], identity))
            for lane in range(self._lanes)
        ]
        any_ = pipeline_register(m, "any_lane", self.any.any())
        kinds = [
            fetch(m, f"tree_{i}", self.controls, ("lane_reduce",), beats[1 + i].cmd).lane_reduce
            for i in range(levels)
        ]

        def node(name: str, stage: int, a: Value, b: Value) -> Signal:
            return combine(m, name, kinds[stage], a, b)

        scalar = registered_tree(m, "tree", filled, node)
        rows = [pipeline_delay(m, f"row_{lane}", f, levels) for lane, f in enumerate(filled)]
        found = pipeline_delay(m, "any", any_, levels)
        at = 1 + levels
        if self._config.fuse_rate > 1:
            scalar, found, rows = self._combine_beats(m, beats[at], scalar, found, rows)
            at += 1
        last = fetch(m, "result", self.controls, ("lane_reduce",), beats[at].cmd)
        one = Mux(found, scalar, 0)
        rows[0] = Mux(last.lane_reduce == Reduce.NONE, rows[0], one)
        m.d.comb += [self.o[lane].eq(pipeline_register(m, f"o_{lane}", row)) for lane, row in enumerate(rows)]
        return m

    def _combine_beats(
        self, m: Module, beat: data.View, scalar: Value, found: Value, rows: list[Value]
    ) -> tuple[Value, Value, list[Value]]:
        """Combine the beats of a row; the last beat carries the result."""
        kind = fetch(m, "parts", self.controls, ("lane_reduce",), beat.cmd).lane_reduce
        so_far, any_so_far = Signal(signed(32), reset_less=True), Signal(reset_less=True)
        fresh = beat.part == 0
        m.d.sync += [
            so_far.eq(Mux(fresh, scalar, combine(m, "joined", kind, so_far, scalar))),
            any_so_far.eq(found | (any_so_far & ~fresh)),
        ]
        return (
            so_far,
            any_so_far,
            [pipeline_delay(m, f"joined_row_{lane}", row, 1) for lane, row in enumerate(rows)],
        )
