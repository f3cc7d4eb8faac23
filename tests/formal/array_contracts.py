"""Contracts of the systolic array as circuits with assertions."""

from types import ModuleType
from typing import NamedTuple

from amaranth.hdl import Assert, Cat, Const, Module, Mux, Signal, Value, signed

from hw.array import systolic
from hw.config import MlaConfig
from tests.formal.axi_contracts import Contract, constant


class Tile(NamedTuple):
    """Tile of a proof.

    Parameters
    ----------
    mode : str
        "normal", "wide" or "sparse".
    by_column : bool
        True if the weights are written by columns of the tile.
    lanes : tuple of int
        For each row, the lane that is not 0; lanes from n on are those of the second half.
    """

    mode: str
    by_column: bool
    lanes: tuple[int, ...]


class SumContract(Contract):
    """The sums of each row of a sequence of tiles with any weights are those of docs/machine.md.

    In each row, one lane of the activations is 1 and the others are 0, so its sums are the weights of the lane. Inputs
    that must have no effect in a cycle are unconstrained in it.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the array.
    tiles : list of Tile
        Tiles, of which the first begins in cycle 0.
    source : module
        `hw.array.systolic`, or a mutant of it.
    """

    def __init__(self, config: MlaConfig, tiles: list[Tile], source: ModuleType = systolic):
        block = source.SystolicArray(config)
        self._config, self._tiles, self._bits = config, tiles, block.weight_bits
        weights = {f"tile{t}": config.n**2 * self._bits for t in range(len(tiles))}
        super().__init__(block, weights)

    @property
    def cycles(self) -> int:
        """Number of cycles until the sums of the last row have been compared."""
        return sum(len(tile.lanes) for tile in self._tiles) + 2 * self._config.n + 2

    def claim(self, m: Module, block: systolic.SystolicArray) -> None:
        config, cycle = self._config, Signal(range(self.cycles + 1))
        m.d.sync += cycle.eq(cycle + (cycle != self.cycles))
        idle = ["swap", "select", "live", *(name for name in ("wide", "sparse") if getattr(config, name))]
        idle += [f"write_{way}{b}" for way in ("row", "column") for b in range(config.weight_rows)]
        m.d.comb += [getattr(block, name).eq(0) for name in idle]
        m.d.comb += block.row.eq(0)
        if config.wide:
            m.d.comb += block.second.eq(0)
        begin = 0
        for t, tile in enumerate(self._tiles):
            weights = constant(m, getattr(self, f"tile{t}"))
            with m.If(cycle == begin):
                m.d.comb += block.swap.eq(1)
            self._write(m, block, cycle - begin, t % config.weight_rows, tile, weights)
            for r, lane in enumerate(tile.lanes):
                if tile.mode != "normal":
                    with m.If(cycle == begin + r):
                        m.d.comb += getattr(block, tile.mode).eq(1)
                self._row(m, block, cycle, begin + r + 1, lane)
                for c in range(config.n):
                    expected = Signal(signed(32), name=f"expected{begin + r}_{c}")
                    m.d.comb += [
                        expected.eq(self._weight(tile.mode, weights, lane, c)),
                        Assert(
                            (cycle != begin + r + 2 * config.n + 2)
                            | (block.psum.word_select(c, 32).as_signed() == expected)
                        ),
                    ]
            begin += len(tile.lanes)

    def _row(self, m: Module, block: systolic.SystolicArray, cycle: Value, when: int, lane: int) -> None:
        """Let a row enter in which one lane is 1."""
        n, bits = self._config.n, systolic.OPERAND_BITS
        with m.If(cycle == when):
            m.d.comb += block.row.eq(1 << bits * lane if lane < n else 0)
            if self._config.wide:
                m.d.comb += block.second.eq(1 << bits * (lane - n) if lane >= n else 0)

    def _write(
        self, m: Module, block: systolic.SystolicArray, age: Value, bus: int, tile: Tile, weights: Value
    ) -> None:
        """Write row (column) i of a tile i cycles after its swap."""
        n, bits = self._config.n, self._bits
        for i in range(n):
            if tile.by_column:
                row = Cat(weights.word_select(k * n + i, bits) for k in range(n))
            else:
                row = weights.word_select(i, bits * n)
            if tile.mode != "sparse":
                row &= Cat(Const((1 << systolic.OPERAND_BITS) - 1, bits) for _ in range(n))
            with m.If(age == i):
                m.d.comb += [
                    getattr(block, f"weights{bus}").eq(row),
                    getattr(block, f"write_{'column' if tile.by_column else 'row'}{bus}").eq(1 << i),
                ]

    def _weight(self, mode: str, weights: Value, lane: int, column: int) -> Value:
        """Return the weight of a lane; in sparse mode, the sum of those of the lane's pair of rows that select it."""
        n, bits = self._config.n, systolic.OPERAND_BITS
        second, k = divmod(lane, n)
        words = [weights.word_select(row * n + column, self._bits) for row in range(n)]
        if mode == "wide":
            return words[k][4 * second : 4 * second + 4].as_signed()
        if mode == "normal":
            return Const(0) if second else words[k][:bits].as_signed()
        return sum(
            Mux(words[row][bits:] == 2 * second + (row != k), words[row][:bits].as_signed(), 0)
            for row in (k, k ^ 1)
        )
