"""Bounding box in the serial checker: the products that are added to its ends, and the operations on the ends."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.checker.arithmetic import ROW_BITS, X_BITS, Y_BITS, Divider
from hw.checker.box_verdict import SUM_BITS
from hw.checker.serial.layouts import CODE_LAYOUT, Late, X, Y
from hw.checker.values import INCREMENTS_LAYOUT
from hw.config import MlaConfig
from hw.layouts import windows_layout

#: Width in bits of an end of a coordinate's range, and one more than the number of bits that clipping compares.
_COORDINATE, _WIDE = X_BITS + 1, 34
_POINTS_BITS = 8  # width of the maximum number of a window's points


class BoundingBox(wiring.Component):
    """Data path of the serial checker: operands, product, ends of the box, coordinate ranges, increments and
    quotients.

    Latency: a product has been added to the ends of the box 3 cycles after its line. Throughput: one line per cycle; a
    division takes 11 cycles.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    line, met : In
        Line of the micro-program; high if its condition is met.
    value, tile : In
        Value of the line's field, and the tile size.
    windows : In
        Permissions of each DRAM window, and the limit requested by the line of 2 cycles earlier.
    start : In
        Discard the results of the previous command.
    clear : In
        Discard the lines of the last 3 cycles.
    low, high : Out
        Ends of the box, 3 cycles after the line that changed them.
    late : Out
        The line of 3 cycles earlier, which operates on the ends; `late_met` is high if its condition is met.
    permitted : Out
        High if a DRAM window that permits the access contains both ends.
    empty : Out
        High if all coordinates are padding.
    bad : Out
        High if a coordinate range is too wide, or the ends violate a rule.
    quotient : Out
        Result of the last division.
    increments : Out
        Derived walk increments of the command.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        super().__init__(
            {
                "line": In(CODE_LAYOUT),
                "met": In(1),
                "value": In(32),
                "tile": In(7),
                "windows": In(windows_layout(config)),
                "start": In(1),
                "clear": In(1),
                "low": Out(signed(SUM_BITS)),
                "high": Out(signed(SUM_BITS)),
                "late": Out(CODE_LAYOUT),
                "late_met": Out(1),
                "empty": Out(1),
                "permitted": Out(1),
                "bad": Out(1),
                "quotient": Out(ROW_BITS),
                "increments": Out(INCREMENTS_LAYOUT),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        line, met = self.line, self.met
        for i in range(3):
            later, later_met = Signal(CODE_LAYOUT, name=f"line{i}", reset_less=True), Signal(name=f"met{i}")
            m.d.sync += [later.eq(line), later_met.eq(met & ~self.clear)]
            line, met = later, later_met
        m.d.comb += [self.late.eq(line), self.late_met.eq(met)]
        x, product, moves = self._product(m)
        self._ends(m, product, moves)
        self._ranges(m, x)
        self._rules(m)
        self._windows(m)
        self._divide(m, x)
        low = self.low[:20]
        for late, name in (
            (Late.START, "start"),
            (Late.DU1, "du1"),
            (Late.DU2, "du2"),
            (Late.DV1, "dv1"),
            (Late.DV2, "dv2"),
        ):
            with m.If(self._is(late)):
                m.d.sync += self.increments[name].eq(low)
        return m

    def _is(self, late: Late) -> Signal:
        return self.late_met & (self.late.late == late)

    def _product(self, m: Module) -> tuple[Signal, Signal, data.View]:
        """Compute the product; return its first operand, the product itself, and the controls that select the ends of
        the box to which it is added.
        """
        x, y = Signal(signed(X_BITS), reset_less=True), Signal(signed(Y_BITS), reset_less=True)
        chosen, product = Signal(signed(X_BITS)), Signal(signed(X_BITS + Y_BITS), reset_less=True)
        self._range = {
            which: Signal(signed(X_BITS), name=which.name.lower(), reset_less=True)
            for which in (X.U_LOW, X.U_HIGH, X.V_LOW, X.V_HIGH)
        }
        value, kept = self.value, Signal(ROW_BITS, name="kept")
        self._kept = kept
        with m.Switch(self.line.x):
            with m.Case(X.TILE):
                m.d.comb += chosen.eq(self.tile)
            for which, end in self._range.items():
                with m.Case(which):
                    m.d.comb += chosen.eq(end)
            with m.Default():
                m.d.comb += chosen.eq(value[:X_BITS].as_signed())
        with m.If(self.met & (self.line.x != X.NONE)):
            m.d.sync += x.eq(chosen - self.line.count)
        with m.Switch(self.line.y):
            for which, source in (
                (Y.VALUE, value[:Y_BITS].as_signed()),
                (Y.LOW, value[:16]),
                (Y.HIGH, Cat(value[16:], value[-1] & self.line.signed).as_signed()),
                (Y.ROWS, self.quotient),
                (Y.OUT_ROWS, kept),
            ):
                with m.Case(which):
                    m.d.sync += y.eq(source)
        m.d.sync += product.eq(x * y)
        ends, down = self.line.ends, Signal()
        m.d.comb += down.eq(value[-1] ^ (self.line.turned & x[-1]))
        layout = data.StructLayout({"low": 1, "high": 1, "twice": 1, "reset": 1})
        moves = [Signal(layout, name=f"moves{i}") for i in range(2)]
        moving = self.met & (self.line.y != Y.NONE)
        m.d.sync += [
            moves[0].low.eq(moving & Mux(down, ends[1], ends[0])),
            moves[0].high.eq(moving & Mux(down, ends[3], ends[2])),
            moves[0].twice.eq(self.line.y == Y.HIGH),
            moves[0].reset.eq(self.met & self.line.reset),
            moves[1].eq(moves[0]),
        ]
        return x, product, moves[1]

    def _ends(self, m: Module, product: Signal, moves: data.View) -> None:
        part = Signal(signed(SUM_BITS))
        m.d.comb += part.eq(Mux(moves.twice, product << 16, product))
        for end, moved, first in ((self.low, moves.low, 0), (self.high, moves.high, -1)):
            with m.If(moves.reset):
                m.d.sync += end.eq(first)
            with m.Elif(moved):
                m.d.sync += end.eq(end + part)

    def _ranges(self, m: Module, x: Signal) -> None:
        """Clip the range of a coordinate to 0..x; `x` is the last coordinate inside the image, or -1."""
        low, high = self.low[:_COORDINATE].as_signed(), self.high[:_COORDINATE].as_signed()
        limited, beyond, after = Signal(), Signal(), Signal()
        wide = self._is(Late.RANGE_U) | self._is(Late.RANGE_V)
        m.d.comb += [
            limited.eq(~x[-1]),
            beyond.eq(limited & (high > x)),
            after.eq(low > x),
        ]
        with m.If(wide & limited & (high[-1] | after)):
            m.d.sync += self.empty.eq(1)
        with m.If(self.start):
            m.d.sync += self.empty.eq(0)
        for late, lowest, highest in (
            (Late.RANGE_U, X.U_LOW, X.U_HIGH),
            (Late.RANGE_V, X.V_LOW, X.V_HIGH),
        ):
            with m.If(self._is(late)):
                m.d.sync += [
                    self._range[lowest].eq(Mux(limited & low[-1], 0, low)),
                    self._range[highest].eq(Mux(beyond, x, high)),
                ]

    def _rules(self, m: Module) -> None:
        """Set `bad` if the ends violate a rule; the ends of a range must fit the width of the first operand."""
        depth = (self.config.line_depth - 1).bit_length()
        wide = _outside(self.low) | _outside(self.high)
        with m.If(
            ((self._is(Late.RANGE_U) | self._is(Late.RANGE_V)) & wide)
            | (self._is(Late.NOT_BELOW) & self.high[-1])
            | (self._is(Late.NOT_DEEP) & self.high[depth:_WIDE].any())
            | (self._is(Late.NOT_MANY) & self.high[_POINTS_BITS:_WIDE].any())
        ):
            m.d.sync += self.bad.eq(1)
        with m.If(self.start):
            m.d.sync += self.bad.eq(0)

    def _windows(self, m: Module) -> None:
        after, before, within = Signal(), Signal(), Signal()
        m.d.sync += [
            after.eq(self.low[:32] >= self.windows.limit),
            before.eq(self.high[:32] <= self.windows.limit),
        ]
        permissions = self.windows.perm[self.late.target[1:4]]
        with m.If(self._is(Late.FIRST)):
            m.d.sync += within.eq(after & permissions.bit_select(self.late.kind[0], 1))
        with m.If(self._is(Late.LAST) & within & before):
            m.d.sync += self.permitted.eq(1)
        with m.If(self.start):
            m.d.sync += self.permitted.eq(0)

    def _divide(self, m: Module, x: Signal) -> None:
        m.submodules.divider = divider = Divider()
        again = self._is(Late.AGAIN)
        m.d.comb += [
            divider.start.eq(self._is(Late.DIVIDE) | again),
            divider.dividend.eq(Mux(again, divider.quotient, self.high[:ROW_BITS])),
            divider.divisor.eq(x[:16]),
            self.quotient.eq(divider.quotient),
        ]
        with m.If(self._is(Late.KEEP)):
            m.d.sync += self._kept.eq(divider.quotient)


def _outside(value: Signal) -> Signal:
    """Return a value that is high if `value` does not fit the width of the first operand."""
    top = value[X_BITS - 1 : _WIDE]
    return top.any() & ~top.all()
