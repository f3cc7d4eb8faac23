"""Parallel checker, which computes the bounding boxes of a command's streams and the walk increments."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.checker.arithmetic import LANES, Multipliers
from hw.checker.box_verdict import SUM_BITS
from hw.checker.parallel.coordinate_range import CoordinateRange, DepthwiseRows
from hw.checker.parallel.operand_select import CONTROL_LAYOUT, OperandSelect
from hw.checker.parallel.schedule import STEP_BITS
from hw.checker.parallel.verdict import ParallelVerdict
from hw.checker.values import INCREMENTS_LAYOUT, AddressSpace
from hw.config import MlaConfig
from hw.isa.enums import Post, Unit
from hw.layouts import config_layout, windows_layout


class ParallelChecker(wiring.Component):
    """Checks that each stream of a command stays inside its memory or the DRAM windows, with four products per cycle.

    The check has four stages: operands, product, ends of the box, comparison. The multipliers serve the
    scalar MUL while no check runs.

    Latency from `start` to `done` in cycles: LOAD and STORE 5 (a fill 4), MATRIX 9, a depthwise MATRIX 21 to 32, FUSE
    8, plus 1 for slots, 2 for B and 2 for a residual. Throughput: one command at a time.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    start, unit : In
        `start` begins a check of the command of `unit`; `unit` and the fields must be held until `done`.
    load, matrix, fuse, store : In
        Current fields of each unit.
    windows : In
        Limits and permissions of the DRAM windows.
    clear : In
        Abandon the check in progress.
    done : Out
        One-cycle pulse when the result is valid.
    bad : Out
        High if the command is illegal and must trap with BAD_COMMAND.
    fail, fail_kind, fail_address : Out
        High if a box exceeds its space; kind and address of the first of these boxes in the order of checks. Bits 3..2
        of `fail_kind` select the trap.
    increments : Out
        Derived walk increments, valid from `done` to the next `start`.
    mul, mul_a, mul_b : In
        Request for a scalar multiplication, and its operands; not allowed during a check.
    mul_product : Out
        Low half of the product, valid 2 cycles later.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        super().__init__(
            {
                "start": In(1),
                "unit": In(2),
                **{u.name.lower(): In(config_layout(u)) for u in Unit},
                "windows": In(windows_layout(config)),
                "clear": In(1),
                "done": Out(1),
                "bad": Out(1),
                "fail": Out(1),
                "fail_kind": Out(AddressSpace.BITS),
                "fail_address": Out(32),
                "increments": Out(INCREMENTS_LAYOUT),
                "mul": In(1),
                "mul_a": In(32),
                "mul_b": In(32),
                "mul_product": Out(32),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.select = select = OperandSelect(self.config)
        m.submodules.multipliers = multipliers = Multipliers()
        m.d.comb += select.unit.eq(self.unit)
        for unit in Unit:
            m.d.comb += getattr(select, unit.name.lower()).eq(getattr(self, unit.name.lower()))
        valid = self._control(m, select)
        self._operands(m, select, multipliers, valid)
        stages = [Signal(CONTROL_LAYOUT, name=f"control{i}") for i in range(1, 4)]
        for before, after in zip([select.control, *stages], stages, strict=False):
            with m.If(before.valid):
                m.d.sync += after.eq(before)
            m.d.sync += after.valid.eq(before.valid & ~self.clear)
        m.d.comb += select.control.valid.eq(valid)
        products = [getattr(multipliers, f"p{i}") for i in range(LANES)]
        low, high = self._box(m, stages[1], products)
        self._increments(m, stages[1], products)
        empty, wide = self._ranges(m, stages[1], products, select)
        m.submodules.verdict = verdict = ParallelVerdict(self.config)
        window_points = Signal()
        with m.If(self.start):
            m.d.sync += window_points.eq(0)
        with m.Elif(stages[1].valid & stages[1].slots):
            m.d.sync += window_points.eq(products[2] > 255)
        last = stages[2]
        m.d.comb += [
            verdict.start.eq(self.start),
            verdict.valid.eq(last.valid & last.last & ~(last.activations & empty)),
            verdict.kind.eq(last.kind),
            verdict.order.eq(last.order),
            verdict.low.eq(low),
            verdict.high.eq(high),
            verdict.windows.eq(self.windows),
            self.fail.eq(verdict.fail),
            self.fail_kind.eq(verdict.fail_kind),
            self.fail_address.eq(verdict.fail_address),
            self.bad.eq(
                wide | ((self.unit == Unit.FUSE) & window_points & (self.fuse.stage.post == Post.COUNT))
            ),
        ]
        m.d.sync += self.done.eq(last.valid & last.final & ~self.clear)
        return m

    def _control(self, m: Module, select: OperandSelect) -> Value:
        """Sequence the steps of a check, and return a signal that is high while a check is active."""
        m.submodules.rows = rows = DepthwiseRows()
        depthwise, begin, valid, running = Signal(), Signal(), Signal(), Signal()
        step = Signal(STEP_BITS)
        m.d.comb += [
            depthwise.eq((self.unit == Unit.MATRIX) & self.matrix.word.dw),
            rows.start.eq(self.start & depthwise),
            rows.clear.eq(self.clear),
            rows.length.eq(self.matrix.dw_len),
            rows.lead.eq(self.matrix.dw_lead),
            rows.width.eq(self.matrix.x_count),
            rows.stride.eq(self.matrix.dw_sy),
            select.dw_rows.eq(rows.rows),
            select.dw_out_rows.eq(rows.out_rows),
            begin.eq((self.start & ~depthwise) | rows.done),
            valid.eq(begin | running),
            # The start of a check is known too late in the cycle to select the step; `first` is therefore selected
            # whenever no check runs.
            select.step.eq(Mux(running, step, select.first)),
        ]
        m.d.sync += running.eq(valid & select.more & ~self.clear)
        with m.If(valid):
            m.d.sync += step.eq(select.next)
        return valid

    def _operands(self, m: Module, select: OperandSelect, multipliers: Multipliers, valid: Value) -> None:
        """Drive the multipliers with the operands of a step, or with the halves of the scalar operands."""
        a_low, a_high, b_low, b_high = (
            word[part] for word in (self.mul_a, self.mul_b) for part in (slice(0, 16), slice(16, 32))
        )
        scalar = {"x0": a_low, "y0": b_low, "x1": a_low, "y1": b_high, "x2": a_high, "y2": b_low}
        for name in (f"{side}{i}" for i in range(LANES) for side in "xy"):
            operand = getattr(select, name)
            chosen = Mux(self.mul, scalar[name], operand) if name in scalar else operand
            m.d.comb += getattr(multipliers, name).eq(chosen)
        m.d.comb += multipliers.en.eq(valid | self.mul)
        cross = Signal(16)
        m.d.comb += [
            cross.eq(multipliers.p1[:16] + multipliers.p2[:16]),
            self.mul_product.eq(multipliers.p0 + (cross << 16)),
        ]

    def _box(self, m: Module, control: data.View, products: list[Value]) -> tuple[Signal, Signal]:
        """Accumulate the low and the high end of the stream's bounding box, and return them."""
        ends = []
        for name, enables, base in (
            ("low", control.to_low, control.base),
            ("high", control.to_high, control.end),
        ):
            end = Signal(signed(SUM_BITS), name=name)
            origin = Signal(signed(SUM_BITS), name=f"{name}_origin")
            m.d.comb += origin.eq(Mux(control.first, base, end))
            parts = []
            for i, product in enumerate(products):
                part = Signal(signed(SUM_BITS), name=f"{name}_part{i}")
                scaled = Mux(control.dram, product << 16, product) if i % 2 else product
                m.d.comb += part.eq(Mux(enables[i], scaled, 0))
                parts.append(part)
            with m.If(control.valid):
                m.d.sync += end.eq(origin + ((parts[0] + parts[1]) + (parts[2] + parts[3])))
            ends.append(end)
        return ends[0], ends[1]

    def _increments(self, m: Module, control: data.View, products: list[Value]) -> None:
        """Compute the walk increments."""
        start = Signal(20)
        m.d.comb += start.eq(
            Mux(self.unit == Unit.MATRIX, self.matrix.a_base, self.fuse.a_base) + (products[1] + products[2])
        )
        for name, value in (
            ("start", start),
            ("du1", products[3]),
            ("du2", products[2]),
            ("dv1", products[3]),
            ("dv2_lane1", products[1]),
            ("dv2_lane3", products[3]),
        ):
            with m.If(control.valid & control.capture[name]):
                m.d.sync += self.increments[name.partition("_")[0]].eq(value)

    def _ranges(
        self, m: Module, control: data.View, products: list[Value], select: OperandSelect
    ) -> tuple[Signal, Signal]:
        """Compute the coordinate ranges, and return two signals: high if all points are padding, and high if a range is
        too wide.
        """
        empty, wide = Signal(2), Signal(2)
        matrix = Signal()
        m.d.comb += matrix.eq(self.unit == Unit.MATRIX)
        for i, axis in enumerate("uv"):
            m.submodules[f"range_{axis}"] = found = CoordinateRange()
            m.d.comb += [
                found.capture.eq(control.valid & control.coordinates),
                found.origin.eq(Mux(matrix, self.matrix[f"{axis}0"], self.fuse[f"{axis}0"])),
                found.limit.eq(Mux(matrix, self.matrix[f"{axis}_lim"], self.fuse[f"{axis}_lim"])),
                found.p0.eq(products[2 * i]),
                found.p1.eq(products[2 * i + 1]),
                getattr(select, f"{axis}_low").eq(found.low),
                getattr(select, f"{axis}_high").eq(found.high),
                empty[i].eq(found.empty),
                wide[i].eq(found.wide),
            ]
        any_empty, any_wide = Signal(), Signal()
        with_range = matrix | (self.unit == Unit.FUSE)
        m.d.comb += [any_empty.eq(empty.any()), any_wide.eq(with_range & wide.any())]
        return any_empty, any_wide
