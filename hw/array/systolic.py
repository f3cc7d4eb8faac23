"""Weight-stationary systolic array of N x N cells, with its skew registers and operand preparation."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig


def skew(m: Module, name: str, lanes: list[Value], enable: Value) -> list[Value]:
    """Delay lane i by i cycles; the delays advance only while `enable` is high.

    Each stage is a single register that holds all lanes whose delay is not complete; the lane that leaves next is in
    its high bits. A wide register that is copied and truncated simulates far faster than one register for each lane.
    """
    width = len(lanes[0])
    delayed = [lanes[0]]
    waiting: Value = Cat(*reversed(lanes[1:]))
    for i in range(1, len(lanes)):
        held = Signal(width * (len(lanes) - i), name=f"{name}_skew{i}", reset_less=True)
        with m.If(enable):
            m.d.sync += held.eq(waiting)
        delayed.append(held[-width:])
        waiting = held[:-width]
    return delayed


def deskew(m: Module, name: str, lanes: list[Value]) -> Value:
    """Delay each lane until the last lane arrives, and return the lanes concatenated; lane i arrives i cycles after
    lane 0.
    """
    gathered = lanes[0]
    for i, lane in enumerate(lanes[1:], start=1):
        held = Signal(len(gathered), name=f"{name}_deskew{i}", reset_less=True)
        m.d.sync += held.eq(gathered)
        gathered = Cat(held, lane)
    return gathered


#: Width of an operand in bits after its zero point has been subtracted.
OPERAND_BITS = 9


class SystolicArray(wiring.Component):
    """Weight-stationary array of N rows (k) and N columns (c): psum[c] = sum over k of row[k] * weight[k][c],
    wrapping at 32 bits.

    Activations move right and partial sums move down, both by one element per cycle; lane k of a row enters k cycles
    after lane 0. Every event of a row therefore reaches element (k, c) k + c cycles after element (0, 0). Accordingly,
    all control signals travel through a delay line with one stage for each diagonal d = k + c. The array is rigid: it
    has no flow control, and bubbles carry undefined values.

    Each element holds two weights: the one in use and a shadow. `swap` precedes the first row of a tile by one cycle
    and copies the shadow weight to the active one, diagonal by diagonal. The shadow is written over a bus: row k of a
    tile (column c of a transposed tile) is written k (or c) cycles after the swap has entered the array. This is one
    cycle before the swap reaches that row (column); by then, every swap that entered at least N cycles earlier has left
    it. Tiles of either orientation may therefore follow each other every N cycles, with a single shadow and without
    weights that travel through the elements.

    In depthwise mode (`select` of an array row is not 0), the element in array row k and column c uses lane c of line
    `select` - 1 instead of the activation from the left. All elements of column c receive a line's lane in the same
    cycle, c cycles after column 0, while the partial sums move down; this is a transposed FIR filter. The mode travels
    with the swap, so tiles of both modes may follow each other in any order.

    Latency: 2 * n + 1 cycles from `row` to `psum`. Throughput: one row per cycle.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses `n`.

    Members
    -------
    row : In(9 * n)
        Activations; lane k is for array row k.
    line0, line1, line2 : In(9 * n)
        Depthwise lines; array row i uses their value in cycle t + i for a row that entered in cycle t.
    live : In(1)
        High while the lines are in use: from the first to the last cycle in which a depthwise row is in the array.
    swap : In(1)
        High if the row that enters in the next cycle is the first row of a tile.
    select : In(2 * n)
        For each array row, 0 if the row uses no line, else 1 + the index of its line; sampled with `swap`.
    weights : In(9 * n)
        One row or column of a tile.
    write_row, write_column : In(n)
        One-hot row or column of the shadows that stores `weights`; row (column) i of a tile is written i cycles after
        its `swap`.
    psum : Out(32 * n)
        Completed sums of a row, one per column.
    """

    def __init__(self, config: MlaConfig):
        self.n = config.n
        operands = OPERAND_BITS * config.n
        super().__init__(
            {
                "row": In(operands),
                "line0": In(operands),
                "line1": In(operands),
                "line2": In(operands),
                "live": In(1),
                "swap": In(1),
                "select": In(2 * config.n),
                "weights": In(operands),
                "write_row": In(config.n),
                "write_column": In(config.n),
                "psum": Out(32 * config.n),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        n = self.n
        shadows = self._shadows(m)
        swaps, selects = self._control(m)
        moving = skew(m, "row", _lanes(self.row), 1)
        lines = [
            skew(m, f"line{g}", _lanes(line), self.live)
            for g, line in enumerate((self.line0, self.line1, self.line2))
        ]

        sums: list = [None] * n
        for k in range(n):
            activation = moving[k]
            for c in range(n):
                operand = Signal(signed(OPERAND_BITS), name=f"operand_{k}_{c}", reset_less=True)
                weight = Signal(signed(OPERAND_BITS), name=f"weight_{k}_{c}", reset_less=True)
                product = Signal(signed(2 * OPERAND_BITS), name=f"product_{k}_{c}", reset_less=True)
                psum = Signal(signed(32), name=f"psum_{k}_{c}", reset_less=True)
                select = selects[k + c][2 * k : 2 * k + 2]
                # Unsigned bits, so that selecting between them does not extend their sign.
                moved = activation[:OPERAND_BITS]
                line = Mux(select[1], Mux(select[0], lines[2][c], lines[1][c]), lines[0][c])[:OPERAND_BITS]
                m.d.sync += operand.eq(Mux(self.live, Mux(select.any(), line, moved), moved))
                with m.If(swaps[k + c]):
                    m.d.sync += weight.eq(shadows[k][OPERAND_BITS * c : OPERAND_BITS * (c + 1)])
                m.d.sync += product.eq(operand * weight)
                m.d.sync += psum.eq(product if k == 0 else sums[c] + product)
                activation, sums[c] = operand, psum
        m.d.comb += self.psum.eq(deskew(m, "psum", [s.as_unsigned() for s in sums]))
        return m

    def _shadows(self, m: Module) -> list[Signal]:
        """Return the shadow weights, one register for each row of the array."""
        columns = Signal(OPERAND_BITS * self.n)
        m.d.comb += columns.eq(Cat(bit.replicate(OPERAND_BITS) for bit in self.write_column))
        by_column = Signal()
        m.d.comb += by_column.eq(self.write_column.any())
        shadows = []
        for k in range(self.n):
            shadow = Signal(OPERAND_BITS * self.n, name=f"shadow{k}", reset_less=True)
            spread = self.weights.word_select(k, OPERAND_BITS).replicate(self.n)
            with m.If(self.write_row[k]):
                m.d.sync += shadow.eq(self.weights)
            with m.Elif(by_column):
                m.d.sync += shadow.eq((shadow & ~columns) | (spread & columns))
            shadows.append(shadow)
        return shadows

    def _control(self, m: Module) -> tuple[list[Signal], list[Signal]]:
        """Return the swap and the `select` of all rows for each diagonal, delayed by one more cycle per diagonal."""
        diagonals = 2 * self.n - 1
        swaps = Signal(diagonals)
        m.d.sync += swaps.eq(Cat(self.swap, swaps))
        selects, previous, swap = [], self.select, self.swap
        for d in range(diagonals):
            select = Signal(2 * self.n, name=f"select{d}", reset_less=True)
            with m.If(swap):
                m.d.sync += select.eq(previous)
            previous, swap = select, swaps[d]
            selects.append(select)
        return list(swaps), selects


def _lanes(row: Signal) -> list:
    """Return the signed operands of a row."""
    return [row[i : i + OPERAND_BITS].as_signed() for i in range(0, len(row), OPERAND_BITS)]


def operands(m: Module, name: str, row: Value, *, unsigned: Value, zero_point: Value) -> list[Signal]:
    """Return the lanes of a row of bytes, each minus the zero point, computed combinationally.

    The bytes are unsigned if `unsigned` is high, else signed.
    """
    lanes = []
    for i in range(0, len(row), 8):
        byte = Signal(signed(OPERAND_BITS), name=f"{name}_byte{i // 8}")
        lane = Signal(signed(OPERAND_BITS), name=f"{name}_lane{i // 8}")
        m.d.comb += [byte.eq(Cat(row[i : i + 8], row[i + 7] & ~unsigned)), lane.eq(byte - zero_point)]
        lanes.append(lane)
    return lanes
