"""Weight feeder of MATRIX: writes a tile to the array's shadow weights, timed to the tile's first activation row."""

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.array.systolic import OPERAND_BITS, SOURCE_BITS, operands, weight_bits
from hw.config import MlaConfig
from hw.units.matrix.loop_nest import lane_count_bits


class WeightFeeder(wiring.Component):
    """Feeder that sends n rows for each tile: the first `rows` rows from the weight buffer, and zeros for the others.

    Latency: for a `start` in cycle t, row i is popped in cycle t + 2 + i and is on `weights` in cycle t + 4 + i.
    Throughput: one tile every n cycles. The array has a feeder for each bus.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses `n`, `sparse`.

    Members
    -------
    start : In(1)
        High if the first sums of a tile are issued; high only while `ready` is high. The next five inputs are sampled
        in this cycle, as is `sparse`.
    rows, lanes : In
        Number of the tile's rows in the buffer, and number of lanes of each row that contain weights; the other lanes
        are zero.
    by_column : In(1)
        High if the rows of the buffer are columns of the tile.
    zero_point, unsigned : In
        Zero point and signedness of the weights.
    ready : Out(1)
        High if a tile may start.
    pop, last : Out(1), row : In(8 * n)
        Read request to the buffer, its mark for the last row of the tile, and the data that the buffer returns in the
        next cycle.
    sparse : In(1)
        High if the tile is sparse; only with `config.sparse`, as the next two.
    pop_sparse : Out(1), indices : In(2 * n)
        High if the popped row belongs to a sparse tile, and the indices of the row, returned with it.
    weights, write_row, write_column : Out
        Inputs of the systolic array: weights, and one-hot row or column to write.
    """

    def __init__(self, config: MlaConfig):
        self.n, self.config = config.n, config
        super().__init__(
            {
                "start": In(1),
                "rows": In(lane_count_bits(config.n)),
                "lanes": In(lane_count_bits(config.n)),
                "by_column": In(1),
                "zero_point": In(signed(OPERAND_BITS)),
                "unsigned": In(1),
                "ready": Out(1, init=1),
                "pop": Out(1),
                "last": Out(1),
                "row": In(8 * config.n),
                **(
                    {"sparse": In(1), "pop_sparse": Out(1), "indices": In(SOURCE_BITS * config.n)}
                    if config.sparse
                    else {}
                ),
                "weights": Out(weight_bits(config) * config.n),
                "write_row": Out(config.n),
                "write_column": Out(config.n),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        n = self.n
        left, rows, next_rows = (
            Signal(range(n + 1)),
            Signal(range(n + 1), reset_less=True),
            Signal(range(n + 1), reset_less=True),
        )
        begin = Signal()
        m.d.sync += [begin.eq(self.start), next_rows.eq(self.rows)]
        with m.If(begin):
            m.d.sync += [left.eq(n), rows.eq(next_rows)]
        with m.Elif(left != 0):
            m.d.sync += [left.eq(left - 1), rows.eq(Mux(rows == 0, 0, rows - 1))]
        # A start takes effect one cycle later, so the next start may be one cycle before the last row is popped.
        with m.If(self.start):
            m.d.sync += self.ready.eq(0)
        with m.Elif(~begin & (left != 0)):
            m.d.sync += self.ready.eq(left <= 3)
        m.d.comb += [self.pop.eq((left != 0) & (rows != 0)), self.last.eq(rows == 1)]

        # Properties of the tile that is being popped, and a copy one cycle later for the row that was popped.
        names = ("by_column", "zero_point", "unsigned", *(("sparse",) if self.config.sparse else ()))
        tile = {
            name: Signal.like(getattr(self, name), name=f"tile_{name}", reset_less=True) for name in names
        }
        late = {
            name: Signal.like(getattr(self, name), name=f"late_{name}", reset_less=True) for name in names
        }
        lanes, late_lanes = Signal(n, reset_less=True), Signal(n, reset_less=True)
        next_lanes = Signal.like(lanes)
        coming = {name: Signal.like(tile[name], name=f"next_{name}") for name in names}
        m.d.sync += [coming[name].eq(getattr(self, name)) for name in names]
        m.d.sync += next_lanes.eq(Cat(self.lanes > i for i in range(n)))
        with m.If(begin):
            m.d.sync += [*(tile[name].eq(coming[name]) for name in names), lanes.eq(next_lanes)]
        m.d.sync += [late[name].eq(tile[name]) for name in names]
        m.d.sync += late_lanes.eq(Mux(self.pop, lanes, 0))

        # One bit moves over the rows; each tile has n rows, so the bit has returned to the first row when a tile ends.
        position, sending, late_sending = Signal(n, init=1), Signal(), Signal()
        marked = Signal(n)
        values = operands(m, "weight", self.row, unsigned=late["unsigned"], zero_point=late["zero_point"])
        sources: list[Value] = [Const(0, 0)] * n
        if self.config.sparse:
            # Index k mod 2 of a row k is the array row's own lane, whose source is 0.
            odd = position[1::2].any()
            sources = [
                Mux(late["sparse"], self.indices.word_select(c, SOURCE_BITS) ^ odd, 0) for c in range(n)
            ]
            m.d.comb += self.pop_sparse.eq(self.pop & tile["sparse"])
        m.d.comb += [sending.eq(left != 0), marked.eq(Mux(late_sending, position, 0))]
        m.d.sync += late_sending.eq(sending)
        with m.If(late_sending):
            m.d.sync += [
                position.eq(position.rotate_left(1)),
                self.weights.eq(
                    Cat(
                        Cat(Mux(late_lanes[i], value.as_unsigned(), 0), source)
                        for i, (value, source) in enumerate(zip(values, sources, strict=True))
                    )
                ),
            ]
        m.d.sync += [
            self.write_row.eq(Mux(late["by_column"], 0, marked)),
            self.write_column.eq(Mux(late["by_column"], marked, 0)),
        ]
        return m
