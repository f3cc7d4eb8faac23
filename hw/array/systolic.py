"""Weight-stationary systolic array of N x N cells, with its skew registers and operand preparation."""

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.lib.ram import Ram


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
#: Width of an int4 weight in bits.
NIBBLE_BITS = 4
#: Width in bits of the selection of one of the four activations of a pair of array rows.
SOURCE_BITS = 2


def weight_bits(config: MlaConfig) -> int:
    """Return the width in bits of a weight on the buses of the array, with its source if there is a sparse mode."""
    return OPERAND_BITS + (SOURCE_BITS if config.sparse else 0)


class SystolicArray(wiring.Component):
    """Weight-stationary array of N rows (k) and N columns (c): psum[c] = sum over k of row[k] * weight[k][c],
    wrapping at 32 bits.

    Activations move right and partial sums move down, both by one element per cycle; lane k of a row enters k cycles
    after lane 0. Every event of a row therefore reaches element (k, c) k + c cycles after element (0, 0). Accordingly,
    all control signals travel through a delay line with one stage for each diagonal d = k + c. The array is rigid: it
    has no flow control, and bubbles carry undefined values.

    Each element holds two weights: the one in use and a shadow. `swap` precedes the first row of a tile by one cycle
    and copies the shadow weight to the active one, diagonal by diagonal. The shadow is written over `weight_rows`
    buses, which take turns tile by tile and carry one row of a tile (column of a transposed tile) per cycle. A row is
    written in `weight_rows` pieces, so that tiles of either orientation may follow each other every T = N /
    `weight_rows` cycles, with a single shadow and without weights that travel through the elements: piece p of row k is
    written k + p * T cycles after the swap has entered the array. This is at least one cycle before the swap reaches
    the piece, and by then, every swap that entered at least T cycles earlier has left it.

    In depthwise mode (`select` of an array row is not 0), the element in array row k and column c uses lane c of line
    `select` - 1 instead of the activation from the left. All elements of column c receive a line's lane in the same
    cycle, c cycles after column 0, while the partial sums move down; this is a transposed FIR filter. The mode travels
    with the swap, so tiles of both modes may follow each other in any order.

    In wide mode (config.wide), the element in array row k and column c adds two products: the weight byte contains two
    signed int4 weights, the low nibble for lane k of `row`, and the high nibble for lane k of `second`. This mode also
    travels with the swap: the nibbles are separated when the shadow weight is copied, and the high nibble is 0 in the
    other modes. Lanes of `second` are needed by all elements of a diagonal of the same array row at the same time, so
    they move in registers that hold one lane for each array row, one register for each cycle of delay. These registers
    advance, and the second product is formed, only while wide rows are in the array.

    In sparse mode (config.sparse), the elements in array rows 2j and 2j + 1 and column c each select one of the same
    four activations: lanes 2j and 2j + 1 of `row` and of `second`. Bits 9 and 10 of a weight are its source: bit 0
    selects the other array row of the pair, bit 1 selects `second`; both are 0 in the other modes. The lane of `row`
    of the other array row is in its element on the same diagonal: one column to the left for even rows, one to the
    right for odd rows.

    Latency: 2 * n + 1 cycles from `row` to `psum`. Throughput: one row per cycle.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses `n`, `weight_rows`, `wide`, `sparse`.

    Members
    -------
    row : In(9 * n)
        Activations; lane k is for array row k.
    second : In(9 * n)
        Activations for the high nibbles of the weights, or the second half of a sparse row; only with `wide`.
    wide : In(1)
        High if the row that enters in the next cycle is in wide mode, as are all rows of its tile; only with `wide`.
    sparse : In(1)
        The same for sparse mode; only with `sparse`.
    line0, line1, line2 : In(9 * n)
        Depthwise lines; array row i uses their value in cycle t + i for a row that entered in cycle t.
    live : In(1)
        High while the lines are in use: from the first to the last cycle in which a depthwise row is in the array.
    swap : In(1)
        High if the row that enters in the next cycle is the first row of a tile.
    select : In(2 * n)
        For each array row, 0 if the row uses no line, else 1 + the index of its line; sampled with `swap`.
    weights{b} : In(weight_bits * n)
        One row or column of a tile on bus b.
    write_row{b}, write_column{b} : In(n)
        One-hot row or column of the shadows that stores `weights{b}`; row (column) i of a tile arrives i cycles after
        its `swap`.
    psum : Out(32 * n)
        Completed sums of a row, one per column.
    """

    def __init__(self, config: MlaConfig):
        self.n, self.buses = config.n, config.weight_rows
        self.has_wide, self.has_sparse = bool(config.wide), bool(config.sparse)
        self.weight_bits = weight_bits(config)
        operands = OPERAND_BITS * config.n
        super().__init__(
            {
                "row": In(operands),
                **({"second": In(operands), "wide": In(1)} if config.wide else {}),
                **({"sparse": In(1)} if config.sparse else {}),
                "line0": In(operands),
                "line1": In(operands),
                "line2": In(operands),
                "live": In(1),
                "swap": In(1),
                "select": In(2 * config.n),
                **{f"weights{b}": In(self.weight_bits * config.n) for b in range(self.buses)},
                **{f"write_row{b}": In(config.n) for b in range(self.buses)},
                **{f"write_column{b}": In(config.n) for b in range(self.buses)},
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

        wides, seconds, paired_live = self._second(m) if self.has_wide else ([], [], Const(0))
        moved = [
            [
                Signal(signed(OPERAND_BITS), name=f"operand_{k}_{c}", reset_less=True)
                for c in range(n + (self.has_sparse and k % 2 == 0))
            ]
            for k in range(n)
        ]
        sparse_live: Value = Const(0)
        if self.has_sparse:
            sparse_live = self._live(m, "sparse", self.sparse)
            for row in moved[::2]:
                with m.If(sparse_live):
                    m.d.sync += row[n].eq(row[n - 1])

        sums: list = [None] * n
        for k in range(n):
            activation = moving[k]
            for c in range(n):
                operand = moved[k][c]
                weight = Signal(signed(OPERAND_BITS), name=f"weight_{k}_{c}", reset_less=True)
                product = Signal(signed(2 * OPERAND_BITS), name=f"product_{k}_{c}", reset_less=True)
                psum = Signal(signed(32), name=f"psum_{k}_{c}", reset_less=True)
                select = selects[k + c][2 * k : 2 * k + 2]
                # Unsigned bits, so that selecting between them does not extend their sign.
                left = activation[:OPERAND_BITS]
                line = Mux(select[1], Mux(select[0], lines[2][c], lines[1][c]), lines[0][c])[:OPERAND_BITS]
                m.d.sync += operand.eq(Mux(self.live, Mux(select.any(), line, left), left))
                shadow = shadows[k][self.weight_bits * c : self.weight_bits * (c + 1)]
                if self.has_wide:
                    high = Signal(signed(NIBBLE_BITS), name=f"high_{k}_{c}", reset_less=True)
                    low, upper = shadow[:NIBBLE_BITS], shadow[NIBBLE_BITS : 2 * NIBBLE_BITS]
                    extended = Cat(low, low[-1].replicate(OPERAND_BITS - NIBBLE_BITS))
                    with m.If(swaps[k + c]):
                        m.d.sync += [
                            weight.eq(Mux(wides[k + c], extended, shadow[:OPERAND_BITS])),
                            high.eq(Mux(wides[k + c], upper, 0)),
                        ]
                    second, factor = seconds[k + c], operand
                    own = second[OPERAND_BITS * (k - n) :][:OPERAND_BITS]
                    if self.has_sparse:
                        partner, source = k ^ 1, Signal(SOURCE_BITS, name=f"source_{k}_{c}", reset_less=True)
                        with m.If(swaps[k + c]):
                            m.d.sync += source.eq(shadow[OPERAND_BITS:])
                        column = c + k - partner
                        other = moved[partner][column] if column >= 0 else moving[partner]
                        other_second = second[OPERAND_BITS * (partner - n) :][:OPERAND_BITS]
                        near = Mux(source[0], other[:OPERAND_BITS], operand[:OPERAND_BITS])
                        far = Mux(source[0], other_second, own)
                        factor = Signal(signed(OPERAND_BITS), name=f"factor_{k}_{c}")
                        m.d.comb += factor.eq(
                            Mux(sparse_live, Mux(source[1], far, near), operand[:OPERAND_BITS])
                        )
                    with m.If(paired_live):
                        m.d.sync += product.eq(factor * weight + own.as_signed() * high)
                    with m.Else():
                        m.d.sync += product.eq(factor * weight)
                else:
                    with m.If(swaps[k + c]):
                        m.d.sync += weight.eq(shadow)
                    m.d.sync += product.eq(operand * weight)
                m.d.sync += psum.eq(product if k == 0 else sums[c] + product)
                activation, sums[c] = operand, psum
        m.d.comb += self.psum.eq(deskew(m, "psum", [s.as_unsigned() for s in sums]))
        return m

    def _live(self, m: Module, name: str, entering: Value) -> Signal:
        """Return a flag that is high while rows of a mode are in the array, which `entering` precedes by a cycle."""
        live = Signal(name=f"{name}_live")
        following = Signal(2 * self.n - 1, name=f"{name}_rows")
        m.d.sync += [following.eq(Cat(entering, following)), live.eq(entering | following.any())]
        return live

    def _second(self, m: Module) -> tuple[list[Value], list[Value], Signal]:
        """Return the wide mode of each diagonal, valid with its swap; the lanes of `second` for each diagonal, of which
        the last belongs to array row n - 1; and a flag that is high while rows with a second half are in the array.
        """
        n = self.n
        wides = Signal(2 * n - 1)
        m.d.sync += wides.eq(Cat(self.wide, wides))
        live = self._live(m, "paired", self.wide | (self.sparse if self.has_sparse else 0))
        seconds: list[Value] = []
        lanes: Value = self.second
        for d in range(2 * n - 1):
            # Diagonal d has elements in array rows up to n - 1, from row d - (n - 1) on; in sparse mode, the elements
            # of an odd row also use the lane of the even row before it.
            first = max(0, d - (n - 1))
            width = OPERAND_BITS * (n - (first - first % 2 if self.has_sparse else first))
            delayed = Signal(width, name=f"second{d}", reset_less=True)
            with m.If(live):
                m.d.sync += delayed.eq(lanes[-width:])
            seconds.append(delayed)
            lanes = delayed
        return list(wides), seconds, live

    def _shadows(self, m: Module) -> list[Value]:
        """Return the shadow weights of each row of the array, one register for each piece of a row."""
        writes = [
            _ShadowWrite(self, m, bus, piece) for bus in range(self.buses) for piece in range(self.buses)
        ]
        length = self.n // self.buses
        shadows: list[Value] = []
        for k in range(self.n):
            pieces = []
            for piece in range(self.buses):
                shadow = Signal(self.weight_bits * length, name=f"shadow{k}_{piece}", reset_less=True)
                for write in writes:
                    # A piece of a row covers columns of the array, and a piece of a column covers rows.
                    if write.piece == piece:
                        with m.If(write.row[k]):
                            m.d.sync += shadow.eq(write.weights)
                    if write.piece == k // length:
                        columns = write.columns[piece]
                        spread = write.weights.word_select(k % length, self.weight_bits).replicate(length)
                        with m.If(columns.any()):
                            m.d.sync += shadow.eq((shadow & ~columns) | (spread & columns))
                pieces.append(shadow)
            shadows.append(Cat(pieces))
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


class _ShadowWrite:
    """Write of one piece of a row or column to the shadows, delayed by `piece` times the distance of tiles.

    Parameters
    ----------
    array : SystolicArray
        Array whose bus is written.
    m : Module
        Module that the delay is added to.
    bus, piece : int
        Bus that brings the row, and index of the piece.

    Attributes
    ----------
    weights : Value
        Weights of the piece.
    row : Value
        One-hot row to write, or 0.
    columns : list of Value
        For each piece of a row, mask of its bits in the column to write, or 0.
    """

    def __init__(self, array: SystolicArray, m: Module, bus: int, piece: int):
        length = array.n // array.buses
        self.piece = piece
        self.weights = getattr(array, f"weights{bus}").word_select(piece, array.weight_bits * length)
        self.row, column = getattr(array, f"write_row{bus}"), getattr(array, f"write_column{bus}")
        if piece:
            column = self._delay(m, f"write{bus}_{piece}", column, piece * length)
        self.columns = []
        for i in range(array.buses):
            bits = Signal(array.weight_bits * length, name=f"columns{bus}_{piece}_{i}")
            m.d.comb += bits.eq(
                Cat(bit.replicate(array.weight_bits) for bit in column[i * length : (i + 1) * length])
            )
            self.columns.append(bits)

    def _delay(self, m: Module, name: str, column: Value, cycles: int) -> Value:
        """Delay `weights` and `row`, and return the delayed `column`.

        The rows of a tile arrive in order without a gap, so their numbers are counted again instead of being delayed.
        """
        busy = Signal(cycles, name=f"{name}_busy")
        position = Signal(len(column), init=1, name=f"{name}_position")
        now = Signal(range(cycles), name=f"{name}_now")
        m.submodules[name] = ring = Ram(width=len(self.weights) + 1, depth=cycles, comb=True)
        by_column = ring.r0_data[-1]
        m.d.sync += [busy.eq(Cat(self.row.any() | column.any(), busy)), now.eq(now + 1)]
        with m.If(busy[-1]):
            m.d.sync += position.eq(position.rotate_left(1))
        m.d.comb += [
            ring.w_en.eq(1),
            ring.w_addr.eq(now),
            ring.r0_addr.eq(now),
            ring.w_data.eq(Cat(self.weights, column.any())),
        ]
        self.weights = ring.r0_data[:-1]
        self.row = Mux(busy[-1] & ~by_column, position, 0)
        return Mux(busy[-1] & by_column, position, 0)


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
