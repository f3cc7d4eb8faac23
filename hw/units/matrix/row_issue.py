"""Row issue of MATRIX: decides in each cycle whether the next step is issued, and sends operands to the array."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.array.line_buffer import line_step_layout
from hw.array.systolic import OPERAND_BITS, operands
from hw.config import MlaConfig
from hw.lib.pipeline import enable_register
from hw.memory.ports import SP_ACT_LATENCY, SpReadPort
from hw.units.matrix.layouts import ENTRY_AFTER, ROW_AFTER, SCALE_CYCLES, row_layout


class RowIssuer(wiring.Component):
    """Issuer of steps; a step that starts a tile waits until its weights have arrived and the feeder is free.

    A refused read would leave a bubble and corrupt the sums of a depthwise stream, so activation reads have the highest
    priority: the scratchpad always grants them. A depthwise stream whose taps or groups differ from those of the
    previous stream waits n cycles until the line buffers are empty. A tile that is not scaled waits SCALE_CYCLES cycles
    after a scaled one.

    Latency: a step issued in cycle t is on `line_step` in cycle t + 2, on `operands` in t + 4 and on `entering` in t +
    5. Throughput: one step per cycle.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    rows : In
        Steps to issue, in loop order.
    tiles_ready, feeder_ready : In(1)
        `tiles_ready` is high if the weights of the next tile have arrived; `feeder_ready` if the feeder can start a
        tile.
    act : Out(SpReadPort)
        Read port for activations.
    issued : Out(1)
        High if the step on `rows` is issued in this cycle.
    line_valid, line_step : Out
        Steps for the line buffers.
    operands, entering : Out(9 * n)
        Activations after subtraction of the zero point; `entering` is `operands` one cycle later.
    second_operands, second : Out(9 * n), wide : Out(1)
        The same for the other n lanes of rows in wide or sparse mode; `wide` is high if `operands` belongs to a row in
        wide mode. Only with `config.wide`.
    sparse : Out(1)
        High if `operands` belongs to a row in sparse mode: lanes 4j and 4j + 1 of the row are then lanes 2j and 2j + 1
        of `operands`, and lanes 4j + 2 and 4j + 3 those of `second_operands`. Only with `config.sparse`.
    swap, select : Out
        Inputs of the systolic array: swap of the weights, and line selection for each array row.
    row_entering, tile_waits : Out(1)
        `row_entering` is high if a row is issued in this cycle; `tile_waits` is high if the next tile cannot start yet.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        width = OPERAND_BITS * config.n
        super().__init__(
            {
                "rows": In(stream.Signature(row_layout(config))),
                "tiles_ready": In(1),
                "feeder_ready": In(1),
                "act": Out(SpReadPort(config, pairs=bool(config.wide))),
                "issued": Out(1),
                "line_valid": Out(1),
                "line_step": Out(line_step_layout(config)),
                "operands": Out(width),
                "entering": Out(width),
                **(
                    {"second_operands": Out(width), "second": Out(width), "wide": Out(1)}
                    if config.wide
                    else {}
                ),
                **({"sparse": Out(1)} if config.sparse else {}),
                "swap": Out(1),
                "select": Out(2 * config.n),
                "row_entering": Out(1),
                "tile_waits": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        row: data.View = self.rows.payload
        clear, drained = Signal(), self._drained(m, row)
        # The sums of scaled tiles are later, so a tile that is not scaled waits for them.
        scaled = Signal(SCALE_CYCLES)
        m.d.sync += scaled.eq(Cat(self.issued & row.scaled, scaled))
        m.d.comb += [
            clear.eq(
                ~row.start | (self.tiles_ready & self.feeder_ready & drained & (row.scaled | ~scaled.any()))
            ),
            self.act.valid.eq(self.rows.valid & row.read & clear),
            self.act.addr.eq(row.addr),
            self.issued.eq(self.rows.valid & clear),
            self.rows.ready.eq(self.issued),
            self.row_entering.eq(self.issued & row.stream),
            self.tile_waits.eq(self.rows.valid & ~clear),
        ]
        self._activations(m, row)

        swaps = Signal(ROW_AFTER)
        m.d.sync += swaps.eq(Cat(self.issued & row.swap, swaps))
        m.d.comb += self.swap.eq(swaps[-1])
        # Tiles may be issued two cycles apart, so the lines are selected midway between issue and swap.
        depthwise, taps = (
            enable_register(m, f"swap_{name}", row[name], self.issued & row.swap) for name in ("dw", "taps")
        )
        with m.If(swaps[1]):
            for k in range(self.config.n):
                line = Signal(2, name=f"line_of{k}")
                m.d.comb += line.eq(1 + (taps <= k) + ((taps << 1) <= k))
                m.d.sync += self.select[2 * k : 2 * k + 2].eq(Mux(depthwise, line, 0))

        line_valid, line_step = Signal(), Signal(self.line_step.shape(), reset_less=True)
        m.d.sync += [line_valid.eq(self.issued & row.dw), self.line_valid.eq(line_valid)]
        with m.If(self.issued & row.dw):
            m.d.sync += [
                line_step.pixel.eq(row.stream),
                *(line_step[name].eq(row[name]) for name in ("fresh", "back", "period", "taps", "groups")),
            ]
        with m.If(line_valid):
            m.d.sync += self.line_step.eq(line_step)
        return m

    def _drained(self, m: Module, row: data.View) -> Value:
        """Return a value that is high if a stream with these taps and groups may start, or if the step is not
        depthwise.
        """
        n = self.config.n
        quiet, taps, groups, drained = Signal(range(n + 1), init=n), Signal(5), Signal(2), Signal()
        with m.If(self.issued & row.dw):
            m.d.sync += [quiet.eq(0), taps.eq(row.taps), groups.eq(row.groups)]
        with m.Elif(quiet != n):
            m.d.sync += quiet.eq(quiet + 1)
        m.d.comb += drained.eq(~row.dw | (quiet == n) | ((taps == row.taps) & (groups == row.groups)))
        return drained

    def _activations(self, m: Module, row: data.View) -> None:
        """Convert the read data to operands when they arrive."""
        streams, reads = Signal(SP_ACT_LATENCY), Signal(SP_ACT_LATENCY)
        m.d.sync += [
            streams.eq(Cat(self.issued & row.stream, streams)),
            reads.eq(Cat(self.issued & row.read, reads)),
        ]
        zero_point, unsigned = row.a_zp, row.a_unsigned
        for i in range(SP_ACT_LATENCY):
            late_zp, late_unsigned = (
                Signal.like(row.a_zp, name=f"a_zp{i}", reset_less=True),
                Signal(name=f"a_unsigned{i}", reset_less=True),
            )
            m.d.sync += [late_zp.eq(zero_point), late_unsigned.eq(unsigned)]
            zero_point, unsigned = late_zp, late_unsigned
        first: Value = self.act.data
        if self.config.wide:
            first, second = self._halves(m, row)
            self._second(m, row, second, reads[-1], unsigned=unsigned, zero_point=zero_point)
        lanes = operands(m, "act", first, unsigned=unsigned, zero_point=zero_point)
        with m.If(streams[-1]):
            m.d.sync += self.operands.eq(Mux(reads[-1], Cat(lanes), 0))
        assert ENTRY_AFTER == ROW_AFTER + 1 == SP_ACT_LATENCY + 2
        m.d.sync += self.entering.eq(self.operands)

    def _halves(self, m: Module, row: data.View) -> tuple[Value, Value]:
        """Return the bytes of the read data for `operands` and for `second_operands`."""
        if not self.config.sparse:
            return self.act.data, self.act.next
        sparses = Signal(ROW_AFTER)
        m.d.sync += sparses.eq(Cat(self.issued & row.sparse, sparses))
        m.d.comb += self.sparse.eq(sparses[-1])
        groups = Cat(self.act.data, self.act.next)
        return tuple(
            Mux(
                sparses[SP_ACT_LATENCY - 1],
                Cat(groups[start : start + 16] for start in range(begin, len(groups), 32)),
                half,
            )
            for begin, half in ((0, self.act.data), (16, self.act.next))
        )

    def _second(
        self, m: Module, row: data.View, second: Value, read: Value, *, unsigned: Value, zero_point: Value
    ) -> None:
        """Convert the second half of the read data of rows with 2 * n lanes to operands."""
        wides, pairs, pair = Signal(ROW_AFTER), Signal(ROW_AFTER), row.wide | row.sparse
        m.d.comb += [self.act.pair.eq(pair), self.wide.eq(wides[-1])]
        m.d.sync += [wides.eq(Cat(self.issued & row.wide, wides)), pairs.eq(Cat(self.issued & pair, pairs))]
        lanes = operands(m, "act_next", second, unsigned=unsigned, zero_point=zero_point)
        with m.If(pairs[SP_ACT_LATENCY - 1]):
            m.d.sync += self.second_operands.eq(Mux(read, Cat(lanes), 0))
        with m.If(pairs[-1]):
            m.d.sync += self.second.eq(self.second_operands)
