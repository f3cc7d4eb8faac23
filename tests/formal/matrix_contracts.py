"""Contracts of the components of MATRIX as circuits with assertions."""

from abc import abstractmethod
from types import ModuleType

from amaranth.hdl import Assert, Assume, Cat, Module, Mux, Signal, Value
from amaranth.lib import data

from hw.config import MlaConfig
from hw.units.matrix import row_issue, weight_feed, writeback
from tests.formal.axi_contracts import Contract

#: Configurations of the proofs: all modes, no sparse mode, and neither wide mode nor scaled sums.
CONFIGS = {
    "sparse": MlaConfig(n=4),
    "wide": MlaConfig(n=4, sparse=0),
    "plain": MlaConfig(n=4, wide=0, sparse=0),
}
_LANES = range(4)
#: Cycles from the issue of a step to its activations.
_ACT_LATENCY = 3


def delayed(m: Module, name: str, value: Value, cycles: int) -> list[Value]:
    """Return a list whose element i is the value of i cycles before; 0 before the first cycle."""
    values = [value]
    for i in range(1, cycles + 1):
        late = Signal(len(value), name=f"{name}_{i}_ago")
        m.d.sync += late.eq(values[-1])
        values.append(late)
    return values


class StepContract(Contract):
    """Contract of the issue of steps, which are legal, and whose receivers accept tiles at any time.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    source : module
        `hw.units.matrix.row_issue`, or a mutant of it.
    """

    def __init__(self, config: MlaConfig, source: ModuleType = row_issue):
        self._config = config
        super().__init__(source.RowIssuer(config))

    def legal(self, m: Module, block: row_issue.RowIssuer) -> None:
        """Assume that modes are those of the configuration, and that the steps of a tile have the same modes."""
        row, config = block.rows.payload, self._config
        modes = Cat(row.wide, row.sparse, row.scaled)
        last, begun = Signal.like(modes), Signal()
        with m.If(block.issued):
            m.d.sync += [last.eq(modes), begun.eq(1)]
        m.d.comb += [
            Assume(~(row.wide & row.sparse)),
            Assume((row.wide | row.scaled) == 0 if not config.wide else 1),
            Assume(row.sparse == 0 if not config.sparse else 1),
            Assume(~row.read | row.stream),
            Assume(~(row.wide | row.sparse) | ~row.dw),
            Assume(row.start | (begun & (modes == last))),
        ]


class IssueContract(StepContract):
    """Each step is issued once, when it may be; it reads its activations in the same cycle, both halves in wide and
    sparse mode. A tile that is not scaled is never issued in the cycle after a scaled one.
    """

    def claim(self, m: Module, block: row_issue.RowIssuer) -> None:
        self.legal(m, block)
        row = block.rows.payload
        before = delayed(m, "scaled", block.issued & row.scaled, 1)
        m.d.comb += [
            Assert(block.issued == (block.rows.valid & block.rows.ready)),
            Assert(block.act.valid == (block.issued & row.read)),
            Assert(~block.act.valid | (block.act.addr == row.addr)),
            Assert(~(block.issued & row.start) | (block.tiles_ready & block.feeder_ready)),
            Assert(block.row_entering == (block.issued & row.stream)),
            Assert(block.tile_waits == (block.rows.valid & ~block.issued)),
            Assert(~(block.issued & ~row.scaled) | ~before[1]),
            # No step waits but the first of a tile.
            Assert(~(block.rows.valid & ~block.issued) | row.start),
        ]
        if self._config.wide:
            m.d.comb += Assert(~block.act.valid | (block.act.pair == (row.wide | row.sparse)))


class OperandContract(StepContract):
    """The operands of a step are the bytes that it has read, each minus the zero point, 4 cycles after its issue, and
    they enter the array one cycle later: lanes k and N + k in wide mode; lanes 4j and 4j + 1, and 4j + 2 and 4j + 3, in
    sparse mode. Zeros replace the bytes of padding. The flags of the mode and the swap accompany their step.
    """

    def claim(self, m: Module, block: row_issue.RowIssuer) -> None:
        self.legal(m, block)
        row, config = block.rows.payload, self._config
        names = ("stream", "read", "wide", "sparse", "swap", "a_unsigned", "a_zp")
        layout = data.StructLayout({name: len(row[name]) for name in names} | {"issued": 1})
        now = Signal(layout)
        m.d.comb += [now.issued.eq(block.issued), *(now[name].eq(row[name]) for name in names)]
        steps = [data.View(layout, value) for value in delayed(m, "step", now.as_value(), 5)]
        arrived, shown, entered = (steps[i] for i in (_ACT_LATENCY, 4, 5))
        halves = [("operands", "entering", (0, 1, 2, 3), (0, 1, 4, 5))]
        both: Value = block.act.data
        if config.wide:
            both = Cat(both, block.act.next)
            halves.append(("second_operands", "second", (4, 5, 6, 7), (2, 3, 6, 7)))
        for name, later, usual, sparse in halves:
            lanes = []
            for place, turned in zip(usual, sparse, strict=True):
                byte = both.word_select(place, 8)
                if config.sparse:
                    byte = Mux(arrived.sparse, both.word_select(turned, 8), byte)
                lanes.append((Cat(byte, byte[7] & ~arrived.a_unsigned) - arrived.a_zp)[:9])
            operands = delayed(m, name, Mux(arrived.read, Cat(lanes), 0), 2)
            for output, step, expected in ((name, shown, operands[1]), (later, entered, operands[2])):
                has = step.issued & step.stream
                if name != "operands":
                    has &= step.wide | step.sparse
                m.d.comb += Assert(~has | (getattr(block, output) == expected))
        m.d.comb += Assert(block.swap == (shown.issued & shown.swap))
        for name in ("wide", "sparse"):
            if getattr(config, name):
                m.d.comb += Assert(getattr(block, name) == (shown.issued & shown[name]))


class UpdateContract(Contract):
    """Each step with sums requests the accumulator once, with its row, 2 * N + 4 cycles after its issue, those of
    scaled tiles one cycle later; each command is done once, 4 cycles after the request of its last step. A step is
    counted once, with its modes and the number of its zero lanes, all 2 * N lanes in wide and sparse mode.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    source : module
        `hw.units.matrix.writeback`, or a mutant of it.
    """

    def __init__(self, config: MlaConfig, source: ModuleType = writeback):
        self._config = config
        super().__init__(source.RowWriteback(config))

    def claim(self, m: Module, block: writeback.RowWriteback) -> None:
        row, config, n = block.row, self._config, self._config.n
        names = ("acc_row", "add", "shift", "scaled", "start", "wave", "last")
        step = data.StructLayout({name: len(row[name]) for name in names})
        now = Signal(step)
        m.d.comb += [now[name].eq(row[name]) for name in names]
        after = 2 * n + 4
        steps = [data.View(step, value) for value in delayed(m, "step", now.as_value(), after + 5)]
        issued = delayed(m, "issued", block.issued, after + 5)
        scaled = [valid & each.scaled for valid, each in zip(issued, steps, strict=True)]
        m.d.comb += [
            Assume(~row.scaled) if not config.wide else Assume(~(block.issued & ~row.scaled & scaled[1])),
            Assume(~row.sparse | config.sparse),
            Assume(~row.wide | config.wide),
        ]
        late, usual = scaled[after + 1], issued[after] & ~steps[after].scaled
        m.d.comb += [
            Assert(~(late & usual)),
            Assert(block.update_valid == ((late & steps[after + 1].wave) | (usual & steps[after].wave))),
            Assert(
                block.done
                == (
                    (scaled[after + 5] & steps[after + 5].last)
                    | (issued[after + 4] & ~steps[after + 4].scaled & steps[after + 4].last)
                )
            ),
        ]
        with m.If(block.update_valid):
            request = Mux(late, steps[after + 1].as_value(), steps[after].as_value())
            request = data.View(step, request)
            m.d.comb += [
                Assert(block.update_row == request.acc_row),
                Assert(block.update_add == request.add),
                Assert(block.update_shift == request.shift),
            ]
            if config.wide:
                m.d.comb += [
                    Assert(block.update_scaled == request.scaled),
                    Assert(block.update_start == request.start),
                ]
        self._counted(m, block, issued)

    def _counted(self, m: Module, block: writeback.RowWriteback, issued: list[Value]) -> None:
        """Add the assertions about the events of a step."""
        row, counted, config = block.row, block.counted, self._config
        names = ("stream", "start", "wave", "useful", "wide", "sparse", "tag")
        events = delayed(m, "events", Cat(row[name] for name in names), 6)
        zeros = _zeros(block.operands)
        if config.wide:
            pair = delayed(m, "pair", row.wide | row.sparse, 4)[4]
            zeros = zeros + Mux(pair, _zeros(block.second_operands), 0)
        counts = delayed(m, "zeros", zeros, 2)
        m.d.comb += [
            Assert(counted.valid == issued[6]),
            Assert(~counted.valid | (Cat(counted[name] for name in names) == events[6])),
            Assert(~counted.valid | (counted.zeros == counts[2])),
        ]


def _zeros(operands: Value) -> Value:
    """Return the number of lanes that are 0."""
    return sum((operands.word_select(k, 9) == 0 for k in _LANES), start=0)


class FeedContract(Contract):
    """Contract of the weight feeder; tiles start only if it is ready, and have at least one row.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    source : module
        `hw.units.matrix.weight_feed`, or a mutant of it.
    """

    def __init__(self, config: MlaConfig, source: ModuleType = weight_feed):
        self._config = config
        super().__init__(source.WeightFeeder(config))

    def claim(self, m: Module, block: weight_feed.WeightFeeder) -> None:
        n = self._config.n
        names = ["rows", "lanes", "by_column", "zero_point", "unsigned", *(["sparse"] * self._config.sparse)]
        tile = data.StructLayout({name: len(getattr(block, name)) for name in names})
        now = Signal(tile)
        m.d.comb += [
            *(now[name].eq(getattr(block, name)) for name in names),
            Assume(~block.start | block.ready),
            Assume(~block.start | ((block.rows != 0) & (block.rows <= n) & (block.lanes <= n))),
        ]
        starts = delayed(m, "start", block.start, n + 3)
        tiles = [data.View(tile, value) for value in delayed(m, "tile", now.as_value(), n + 3)]
        self.check(m, block, starts, tiles)

    @abstractmethod
    def check(
        self, m: Module, block: weight_feed.WeightFeeder, starts: list[Value], tiles: list[data.View]
    ) -> None:
        """Add the assertions; element i of `starts` and `tiles` is the start of i cycles before, with its tile."""


class FeedOrderContract(FeedContract):
    """Each tile writes all rows (columns) of the shadow weights once, in order, 4 to N + 3 cycles after its start. It
    pops its rows in order, 2 cycles earlier, as many as it has, and marks the last of them.
    """

    def check(
        self, m: Module, block: weight_feed.WeightFeeder, starts: list[Value], tiles: list[data.View]
    ) -> None:
        pops, lasts, rows, columns = [], [], [], []
        for i in _LANES:
            popped, written = tiles[2 + i], tiles[4 + i]
            pops.append(starts[2 + i] & (popped.rows > i))
            lasts.append(starts[2 + i] & (popped.rows == i + 1))
            rows.append(starts[4 + i] & ~written.by_column)
            columns.append(starts[4 + i] & written.by_column)
        m.d.comb += [
            Assert(block.pop == Cat(pops).any()),
            Assert(~block.pop | (block.last == Cat(lasts).any())),
            Assert(block.write_row == Cat(rows)),
            Assert(block.write_column == Cat(columns)),
        ]
        if self._config.sparse:
            sparse = Cat(pop & tiles[2 + i].sparse for i, pop in enumerate(pops))
            m.d.comb += Assert(block.pop_sparse == sparse.any())


class FeedValueContract(FeedContract):
    """A weight is the byte minus the zero point in the rows and lanes in use and 0 in the others; it has its source in
    sparse mode.
    """

    def check(
        self, m: Module, block: weight_feed.WeightFeeder, starts: list[Value], tiles: list[data.View]
    ) -> None:
        returned = delayed(m, "row", block.row, 1)[1]
        sources = delayed(m, "indices", block.indices, 1)[1] if self._config.sparse else None
        for i in _LANES:
            with m.If(starts[4 + i]):
                m.d.comb += Assert(block.weights == self._weights(tiles[4 + i], i, returned, sources))

    def _weights(self, tile: data.View, row: int, returned: Value, sources: Value | None) -> Value:
        """Return row number `row` of a tile for the array, from the data that the buffers have returned."""
        weights = []
        for lane in _LANES:
            byte = returned.word_select(lane, 8)
            weight = Cat(byte, byte[7] & ~tile.unsigned) - tile.zero_point
            parts = [Mux((tile.rows > row) & (tile.lanes > lane), weight[:9], 0)]
            if sources is not None:
                # The source 0 is the row itself, the index 0 the first lane of its pair of rows.
                parts.append(Mux(tile.sparse, sources.word_select(lane, 2) ^ row % 2, 0))
            weights.append(Cat(*parts))
        return Cat(weights)
