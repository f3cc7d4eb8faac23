"""Statistics of a command's results, its counters' events, and its retirement."""

from collections.abc import Callable

from amaranth.hdl import Elaboratable, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.fuse.layouts import follow, lanes, register
from hw.fuse.post import SUM_BITS
from hw.fuse.tree import registered_tree, tree_latency

_MIN, _MAX = -(1 << 31), (1 << 31) - 1

#: What is counted of a finished point, beside its elements.
REPORT = data.StructLayout(
    {
        "valid": 1,
        "final": 1,
        "emit": 1,
        "changed": SUM_BITS,
        "scaled": 1,
        "table": 1,
        "residual": 1,
        "reduced": 1,
    }
)


class Statistics(wiring.Component):
    """Follows finished points and tells counters and sequencer about them, a few cycles later and all at
    the same moment.

    Latency: 1 + tree_latency(n) + 1 cycles from a point to its events and to `done`. Throughput: one point
    in each cycle.

    Parameters
    ----------
    config : MlaConfig
        The machine.

    Members
    -------
    report : In(REPORT)
        A point whose writes, if it has any, have been granted.
    row : In(lanes), mask : In
        Elements of its result, and which lanes hold one.
    event : Out(REPORT)
        The report, when it counts.
    done : Out(1)
        The command of `event` is finished.
    rows, zeros, min, max : Out(32)
        Results, and zeros, minimum and maximum of the elements, of the last finished command.
    """

    def __init__(self, config: MlaConfig):
        self._n = config.n
        super().__init__(
            {
                "report": In(REPORT),
                "row": In(lanes(config.n)),
                "mask": In(config.n),
                "event": Out(REPORT),
                "done": Out(1),
                "rows": Out(32),
                "zeros": Out(32),
                "min": Out(32),
                "max": Out(32),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        levels = tree_latency(self._n)
        arrived = follow(m, "report", self.report, 1 + levels)[-1]
        least = self._extreme(m, "least", _MAX, lambda a, b: a < b)
        most = self._extreme(m, "most", _MIN, lambda a, b: a > b)
        zeros = self._zeros(m)
        running = {name: Signal(32, name=f"running_{name}") for name in ("rows", "zeros", "min", "max")}
        total = {name: Signal(32, name=f"total_{name}") for name in running}
        empty = Signal(init=1)
        keep_min, keep_max = Signal(), Signal()
        m.d.comb += [
            keep_min.eq(~empty & (running["min"].as_signed() < least)),
            keep_max.eq(~empty & (running["max"].as_signed() > most)),
            total["rows"].eq(Mux(empty, 0, running["rows"]) + arrived.emit),
            total["zeros"].eq(Mux(empty, 0, running["zeros"]) + Mux(arrived.emit, zeros, 0)),
            total["min"].eq(Mux(keep_min, running["min"], least)),
            total["max"].eq(Mux(keep_max, running["max"], most)),
        ]
        m.d.sync += [self.event.eq(arrived), self.done.eq(arrived.valid & arrived.final)]
        with m.If(arrived.valid & arrived.emit):
            m.d.sync += [empty.eq(arrived.final), *(running[name].eq(total[name]) for name in running)]
        with m.If(arrived.valid & arrived.final):
            m.d.sync += [getattr(self, name).eq(total[name]) for name in running]
        return m

    def _extreme(self, m: Module, name: str, neutral: int, better: Callable[[Value, Value], Value]) -> Value:
        """Minimum or maximum of the row's elements."""
        filled = [
            register(m, f"{name}_in_{lane}", Mux(self.mask[lane], self.row[lane], neutral), signed(32))
            for lane in range(self._n)
        ]

        def node(name: str, stage: int, a: Value, b: Value) -> Signal:
            chosen = Signal(signed(32), name=name)
            m.d.comb += chosen.eq(Mux(better(a, b), a, b))
            return chosen

        return registered_tree(m, name, filled, node)

    def _zeros(self, m: Module) -> Value:
        """Zeros among the row's elements."""
        flags = [
            register(m, f"zero_{lane}", self.mask[lane] & (self.row[lane] == 0)) for lane in range(self._n)
        ]

        def node(name: str, stage: int, a: Value, b: Value) -> Signal:
            count = Signal(unsigned(max(len(a), len(b)) + 1), name=name)
            m.d.comb += count.eq(a + b)
            return count

        return registered_tree(m, "zeros", flags, node)
