"""Statistics of a command's results, events for its counters, and its retirement."""

from collections.abc import Callable

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.fuse.layouts import lanes, lanes_of, part_of
from hw.fuse.post_scale import SUM_BITS
from hw.lib.pipeline import pipeline_register, pipeline_struct
from hw.lib.trees import registered_tree, tree_latency

_MIN, _MAX = -(1 << 31), (1 << 31) - 1

#: Properties of a finished point that are counted, in addition to its elements.
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

#: Registers of one stage for a beat of a point's row; `report.valid` is set for the last beat.
_STEP = data.StructLayout({"valid": 1, "report": REPORT})


class Statistics(wiring.Component):
    """Computes events and statistics of finished points for the counters and the sequencer, all with the same latency.

    Latency: tree_latency(n) + 2 cycles from a point to its events and to `done`. Throughput: one point per cycle.

    With a fuse_rate above 1, a row is processed in fuse_rate steps: the latency is fuse_rate +
    tree_latency(lanes_of(config)) + 2, and more for a point that arrives fewer than fuse_rate cycles after its
    predecessor. The throughput is one point every fuse_rate cycles. The writer loads rows at this distance, but may
    finish a row as late as in the cycle in which it loads the next row, for instance after refused writes. Therefore,
    two rows are stored.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    report : In(REPORT)
        Point whose writes, if any, have been granted.
    row : In(lanes), mask : In
        Elements of the point's result, and mask of the lanes with an element.
    event : Out(REPORT)
        Properties of the point, valid in the cycle in which they are counted.
    done : Out(1)
        High if the command of `event` has finished.
    rows, zeros, min, max : Out(32)
        Number of results of the last finished command; number of zeros, minimum and maximum among its elements.
    """

    def __init__(self, config: MlaConfig):
        self._n, self._lanes, self._rate = config.n, lanes_of(config), config.fuse_rate
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
        step, row, mask = self._whole_row(m) if self._rate == 1 else self._split_row(m)
        end = pipeline_struct(m, "step", step, 1 + tree_latency(self._lanes))[-1]
        arrived = end.report
        least = self._extreme(m, "least", row, mask, _MAX, lambda a, b: a < b)
        most = self._extreme(m, "most", row, mask, _MIN, lambda a, b: a > b)
        zeros = self._zeros(m, row, mask)
        running = {name: Signal(32, name=f"running_{name}") for name in ("rows", "zeros", "min", "max")}
        total = {name: Signal(32, name=f"total_{name}") for name in running}
        empty = Signal(init=1)
        keep_min, keep_max = Signal(), Signal()
        m.d.comb += [
            keep_min.eq(~empty & (running["min"].as_signed() < least)),
            keep_max.eq(~empty & (running["max"].as_signed() > most)),
            total["rows"].eq(Mux(empty, 0, running["rows"]) + (arrived.valid & arrived.emit)),
            total["zeros"].eq(Mux(empty, 0, running["zeros"]) + Mux(arrived.emit, zeros, 0)),
            total["min"].eq(Mux(keep_min, running["min"], least)),
            total["max"].eq(Mux(keep_max, running["max"], most)),
        ]
        m.d.sync += [self.event.eq(arrived), self.done.eq(arrived.valid & arrived.final)]
        with m.If(end.valid & arrived.emit):
            m.d.sync += [
                empty.eq(arrived.valid & arrived.final),
                *(running[name].eq(total[name]) for name in running),
            ]
        with m.If(arrived.valid & arrived.final):
            m.d.sync += [getattr(self, name).eq(total[name]) for name in running]
        return m

    def _whole_row(self, m: Module) -> tuple[data.View, list[Value], list[Value]]:
        """Process the row in one step, and return the step, its lanes and their mask."""
        step = Signal(_STEP)
        m.d.comb += [step.valid.eq(self.report.valid), step.report.eq(self.report)]
        return step, [self.row[lane] for lane in range(self._n)], list(self.mask)

    def _split_row(self, m: Module) -> tuple[data.View, list[Value], list[Value]]:
        """Split the row into steps, and return the step of this cycle, its lanes and their mask. The two stored rows
        alternate.
        """
        rows = [Signal(lanes(self._n), name=f"row_{i}", reset_less=True) for i in range(2)]
        masks = [Signal(self._n, name=f"mask_{i}", reset_less=True) for i in range(2)]
        reports = [Signal(REPORT, name=f"report_{i}") for i in range(2)]
        full, filling, scanning = Signal(2), Signal(), Signal()
        part, step = Signal(range(self._rate)), Signal(_STEP)
        last = part == self._rate - 1
        for i in range(2):
            with m.If(step.report.valid & (scanning == i)):
                m.d.sync += full[i].eq(0)
            with m.If(self.report.valid & (filling == i)):
                m.d.sync += [rows[i].eq(self.row), masks[i].eq(self.mask), reports[i].eq(self.report)]
                m.d.sync += full[i].eq(1)
        m.d.comb += [
            step.valid.eq(full.bit_select(scanning, 1)),
            step.report.as_value().eq(Mux(scanning, reports[1].as_value(), reports[0].as_value())),
            step.report.valid.eq(step.valid & last),
        ]
        m.d.sync += [
            filling.eq(filling ^ self.report.valid),
            scanning.eq(scanning ^ step.report.valid),
            part.eq(part + step.valid),
        ]
        choice = Cat(part, scanning)
        row = part_of([stored[lane] for stored in rows for lane in range(self._n)], choice, self._lanes)
        return step, row, part_of([bit for mask in masks for bit in mask], choice, self._lanes)

    def _extreme(
        self,
        m: Module,
        name: str,
        row: list[Value],
        mask: list[Value],
        neutral: int,
        better: Callable[[Value, Value], Value],
    ) -> Value:
        """Return the minimum or the maximum of the elements of a step, depending on `better`."""
        filled = [
            pipeline_register(m, f"{name}_in_{lane}", Mux(present, value, neutral), signed(32))
            for lane, (value, present) in enumerate(zip(row, mask, strict=True))
        ]

        def node(name: str, stage: int, a: Value, b: Value) -> Signal:
            chosen = Signal(signed(32), name=name)
            m.d.comb += chosen.eq(Mux(better(a, b), a, b))
            return chosen

        return registered_tree(m, name, filled, node)

    def _zeros(self, m: Module, row: list[Value], mask: list[Value]) -> Value:
        """Return the number of zeros among the elements of a step."""
        flags = [
            pipeline_register(m, f"zero_{lane}", present & (value == 0))
            for lane, (value, present) in enumerate(zip(row, mask, strict=True))
        ]

        def node(name: str, stage: int, a: Value, b: Value) -> Signal:
            count = Signal(unsigned(max(len(a), len(b)) + 1), name=name)
            m.d.comb += count.eq(a + b)
            return count

        return registered_tree(m, "zeros", flags, node)
