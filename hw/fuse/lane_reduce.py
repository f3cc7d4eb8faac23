"""FUSE step 5, second part: reduction across the lanes."""

from amaranth.hdl import Const, Elaboratable, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.fuse.control_store import fetch
from hw.fuse.layouts import BEAT, control_write, lanes, lanes_of, reduce_control
from hw.fuse.reduce import COUNT_BITS, combine
from hw.isa.enums import Reduce
from hw.lib.pipeline import delay, follow, register
from hw.lib.registered_tree import registered_tree, tree_latency

_MIN, _MAX = -(1 << 31), (1 << 31) - 1


def latency(config: MlaConfig) -> int:
    """Cycles from the windows' results to the lanes' or their scalar."""
    return 2 + tree_latency(lanes_of(config)) + (config.fuse_rate > 1)


class LaneReduce(wiring.Component):
    """Replaces lane 0 of a row's last beat by the sum, maximum or minimum of the lanes that contributed, if
    asked.

    Latency: latency(config). Throughput: one beat in each cycle.

    Parameters
    ----------
    config : MlaConfig
        The machine.

    Members
    -------
    controls : In
        Controls of a command that enters.
    beat : In(BEAT), o_beat : Out(BEAT)
        Beat going in and coming out.
    value : In(lanes), any : In
        Results of the windows and the lanes that contributed.
    count : In, o_count : Out
        Points of the window, passed on.
    o : Out(lanes)
        Result; lanes without contribution are 0.
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
        total, levels = latency(self._config), tree_latency(self._lanes)
        beats = follow(m, "beat", self.beat, total)
        m.d.comb += [self.o_beat.eq(beats[-1]), self.o_count.eq(delay(m, "count", self.count, total))]
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
            register(m, f"filled_{lane}", Mux(self.any[lane], self.value[lane], identity))
            for lane in range(self._lanes)
        ]
        any_ = register(m, "any_lane", self.any.any())
        kinds = [
            fetch(m, f"tree_{i}", self.controls, ("lane_reduce",), beats[1 + i].cmd).lane_reduce
            for i in range(levels)
        ]

        def node(name: str, stage: int, a: Value, b: Value) -> Signal:
            return combine(m, name, kinds[stage], a, b)

        scalar = registered_tree(m, "tree", filled, node)
        rows = [delay(m, f"row_{lane}", f, levels) for lane, f in enumerate(filled)]
        found = delay(m, "any", any_, levels)
        at = 1 + levels
        if self._config.fuse_rate > 1:
            scalar, found, rows = self._parts(m, beats[at], scalar, found, rows)
            at += 1
        last = fetch(m, "result", self.controls, ("lane_reduce",), beats[at].cmd)
        one = Mux(found, scalar, 0)
        rows[0] = Mux(last.lane_reduce == Reduce.NONE, rows[0], one)
        m.d.comb += [self.o[lane].eq(register(m, f"o_{lane}", row)) for lane, row in enumerate(rows)]
        return m

    def _parts(
        self, m: Module, beat: data.View, scalar: Value, found: Value, rows: list[Value]
    ) -> tuple[Value, Value, list[Value]]:
        """Join the parts of a row; the last one carries the result."""
        kind = fetch(m, "parts", self.controls, ("lane_reduce",), beat.cmd).lane_reduce
        so_far, any_so_far = Signal(signed(32), reset_less=True), Signal(reset_less=True)
        fresh = beat.part == 0
        m.d.sync += [
            so_far.eq(Mux(fresh, scalar, combine(m, "joined", kind, so_far, scalar))),
            any_so_far.eq(found | (any_so_far & ~fresh)),
        ]
        return so_far, any_so_far, [delay(m, f"joined_row_{lane}", row, 1) for lane, row in enumerate(rows)]
