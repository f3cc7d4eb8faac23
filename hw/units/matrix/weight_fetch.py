"""Weight fetcher of MATRIX, which reads tiles before they are used."""

from collections.abc import Callable

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.array.systolic import SOURCE_BITS
from hw.config import SP_ADDR_BITS, MlaConfig
from hw.isa.enums import Unit
from hw.layouts import command_layout
from hw.lib.pipeline import pipeline_register, pipeline_struct, vacancy
from hw.lib.ram import Ram
from hw.memory.ports import SP_READ_LATENCY, SpReadPort
from hw.units.matrix.loop_nest import LoopNest, PipelinedLoopNest, lanes_in_use, nested_address

#: Number of scaled tiles whose factors have been read and whose sums have not left the array; a power of two.
SCALES = 16
#: Number of sparse tiles for each bus whose indices have been read and whose weights have not all been popped.
INDEX_TILES = 2
#: Loops of the weight walk, innermost first.
DIMS = ("kx", "ky", "ic", "oc")


class WeightFetcher(wiring.Component):
    """Fetcher that reads the weight rows of commands, one command after another, into buffers for two tiles each.

    There is a buffer for each bus of the array; tiles enter the buffers in turn. Only rows in use are read: K rows of a
    normal tile, C rows of a transposed tile, and taps * groups rows of a depthwise tile. A tile is available from the
    cycle after the grant of its last row, because rows are popped no faster than they were granted, and the last row is
    popped no earlier than two cycles after its grant.

    The indices of a sparse tile are n / 4 rows after its weight rows. They enter a buffer for each bus, which has room
    for INDEX_TILES tiles.

    The factors of a scaled tile are a row after its weight rows and indices. They enter a buffer of their own, which
    has room for SCALES tiles, and are taken when the first sums of the tile leave the array.

    With two buses, rows are read in pairs if the command has fewer than n activation rows for each tile or is scaled or
    sparse, and its tiles are stored without gaps and begin at multiples of n. Other commands need no more than one row
    per cycle, or their rows are not in different halves of the scratchpad.

    Latency: the weights of a command accepted in cycle c are read from cycle c + 1 on, and the read of the first row is
    granted in c + 2. A row granted in cycle g can be popped from cycle g + 2 on. Throughput: one row or pair of rows
    per cycle, without a gap between commands.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    load : In(1), command : In
        `load` accepts `command`; high only while `ready` is high.
    ready : Out(1)
        High if the scratchpad accepts the read of the last row of the previous command in this cycle, or has already
        accepted it.
    port : Out(SpReadPort)
        Read port for weights.
    tiles : Out
        Number of available tiles that have not been taken.
    take : In(1)
        Take a tile; its rows must then be popped.
    pop, last : In(buses)
        Bit b pops a row of buffer b, and marks it as the last row of its tile.
    row{b} : Out(8 * n)
        Row popped from buffer b in the previous cycle.
    pop_sparse : In(buses), indices{b} : Out(2 * n)
        Bit b is high if the row popped from buffer b belongs to a sparse tile, and the indices of the weights of the
        row popped in the previous cycle; only with `config.sparse`.
    scales : Out(8 * n), take_scales : In(1)
        Factors of the scaled tile whose factors are taken next, and the request to take them; only with `config.wide`.
    """

    def __init__(self, config: MlaConfig):
        self.config, self.n, self.buses = config, config.n, config.weight_rows
        #: Number of entries of each buffer; an entry holds a row for each bus.
        self.depth = 2 * config.n // self.buses
        super().__init__(
            {
                "load": In(1),
                "command": In(command_layout(Unit.MATRIX)),
                "ready": Out(1),
                "port": Out(SpReadPort(config, pairs=self.buses > 1)),
                "tiles": Out(range(2 * config.n + 1)),
                "take": In(1),
                "pop": In(self.buses),
                "last": In(self.buses),
                **{f"row{b}": Out(8 * config.n) for b in range(self.buses)},
                **({"pop_sparse": In(self.buses)} if config.sparse else {}),
                **{f"indices{b}": Out(2 * config.n) for b in range(self.buses) if config.sparse},
                **({"scales": Out(8 * config.n), "take_scales": In(1)} if config.wide else {}),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        busy, asked, granted = Signal(), Signal(), Signal()
        tile_end = Signal()
        m.submodules.nest = nest = self.config.variant(LoopNest, PipelinedLoopNest)(len(DIMS))
        m.d.comb += [
            asked.eq(self.port.valid & self.port.ready),
            granted.eq(self.port.waits & self.port.ready),
            nest.load.eq(self.load),
            nest.step.eq(asked & tile_end),
        ]
        finished = asked & tile_end & nest.end
        m.d.comb += self.ready.eq(vacancy(busy, finished, self.config.pipelined))
        with m.If(self.load):
            m.d.sync += busy.eq(1)
        with m.Elif(self._ends(finished)):
            m.d.sync += busy.eq(0)
        may_read = self._may_read(m, busy, asked & tile_end)
        request = self._walk(m, nest, asked, tile_end)
        room = self._buffer(m, asked, granted, request)
        m.d.comb += self.port.valid.eq(may_read & room)
        return m

    def _may_read(self, m: Module, busy: Signal, next_tile: Value) -> Value:
        """Return a value that is high if the address of the next row and the end of its tile are valid."""
        return busy

    def _ends(self, finished: Value) -> Value:
        """Return the value that clears `busy` unless a command is loaded in the same cycle."""
        return self.ready

    def _find_end(
        self,
        m: Module,
        asked: Value,
        tile_end: Signal,
        index: Signal,
        following: Value,
        rows: Value,
        ends: Callable[[Value, Value], Value],
    ) -> None:
        """Drive `tile_end`, which is high if the next request ends its tile: `ends` of `index` and `rows`. The index
        after a request that does not end its tile is `following`.
        """
        m.d.comb += tile_end.eq(ends(index, rows))

    def _walk(self, m: Module, nest: LoopNest, asked: Signal, tile_end: Signal) -> data.View:
        """Drive the address of the next request, count the rows of a tile, and return the request's properties."""
        command = self.command
        strides = {
            name: Signal.like(command[f"w_{name}"], name=f"stride_{name}", reset_less=True)
            for name in ("row", *DIMS)
        }
        # In the cycle in which a command is loaded, the loops use the counts of the command, and later a copy of these
        # counts.
        for i, name in enumerate(DIMS):
            held = Signal(16, name=f"{name}_count", reset_less=True)
            with m.If(self.load):
                m.d.sync += [held.eq(command[f"{name}_count"]), strides[name].eq(command[f"w_{name}"])]
            m.d.comb += getattr(nest, f"count{i}").eq(Mux(self.load, command[f"{name}_count"], held))
        with m.If(self.load):
            m.d.sync += strides["row"].eq(command.w_row)

        usual, tail, by_column = Signal(6, reset_less=True), Signal(6, reset_less=True), Signal()
        taps = Signal(7)
        m.d.comb += taps.eq(
            Mux(command.word.groups[0], command.word.taps, 0)
            + Mux(command.word.groups[1], command.word.taps << 1, 0)
        )
        with m.If(self.load):
            m.d.sync += by_column.eq(command.word.w_transpose)
            with m.If(command.word.dw):
                m.d.sync += [usual.eq(taps), tail.eq(0)]
            with m.Elif(command.word.w_transpose):
                m.d.sync += [usual.eq(command.n_cols), tail.eq(command.n_tail)]
            with m.Else():
                m.d.sync += [usual.eq(command.k_rows), tail.eq(command.k_tail)]
        rows = lanes_in_use(
            m,
            "rows",
            Mux(by_column, nest.last[DIMS.index("oc")], nest.last[DIMS.index("ic")]),
            tail,
            usual,
            self.n,
        )
        pairs, pair = self._pairs(m), Signal()
        scaled, sparse = (self._mode(m, name) for name in ("scaled", "sparse"))
        # The index of a request is that of its weight row, n plus that of its row of indices, or `factors`.
        factors = self.n + (self.n // 4 if self.config.sparse else 0)
        index, following = (
            Signal(range(factors + self.config.wide), reset_less=True),
            Signal(range(factors + 3)),
        )
        step = 1 + pairs
        after = index[self.n.bit_length() - 1 :].any() if self.config.wide else Const(0)
        scales, rows_end = after & (index == factors), Signal()
        indices = after & ~scales if self.config.sparse else Const(0)
        last_indices = indices & (index + step >= factors)
        m.d.comb += [
            rows_end.eq(~after & (index + step >= rows)),
            pair.eq(pairs & ~scales & Mux(indices, self.n > 4, index + 1 != rows)),
            following.eq(
                Mux(rows_end & sparse, self.n, Mux(rows_end | last_indices, factors, index + step))
                if self.config.wide
                else index + step
            ),
        ]

        def ends(index: Value, rows: Value) -> Value:
            if not self.config.wide:
                return index + step >= rows
            beyond = index[self.n.bit_length() - 1 :].any()
            return Mux(
                beyond,
                (index == factors) | ((index + step >= factors) & ~scaled),
                (index + step >= rows) & ~scaled & ~sparse,
            )

        self._find_end(m, asked, tile_end, index, following, rows, ends)
        with m.If(self.load):
            m.d.sync += index.eq(0)
        with m.Elif(asked):
            m.d.sync += index.eq(Mux(tile_end, 0, following))

        # Rows that are read in pairs follow each other without gaps.
        levels = [(~tile_end, Mux(pair if self.config.wide else pairs, 2 * self.n, strides["row"]))]
        levels += [(tile_end & nest.advance[i], strides[name]) for i, name in enumerate(DIMS)]
        address = nested_address(
            m, "address", SP_ADDR_BITS, load=self.load, base=command.w_base, step=asked, levels=levels
        )
        m.d.comb += self.port.addr.eq(address)
        if self.buses > 1:
            m.d.comb += self.port.pair.eq(pair)

        turn = Signal(range(self.buses))
        with m.If(asked & tile_end):
            m.d.sync += turn.eq(turn + 1)
        request = Signal(self._request_layout)
        m.d.comb += [
            request.tile_end.eq(tile_end),
            request.pair.eq(pair),
            request.second.eq(index[0] if self.buses > 1 else 0),
            request.buffer.eq(turn),
            request.scales.eq(scales),
            request.indices.eq(indices),
            request.first_indices.eq(indices & (index == self.n)),
            request.rows_end.eq(rows_end if self.config.wide else tile_end),
        ]
        return request

    def _mode(self, m: Module, name: str) -> Value:
        """Return a value that is high if the tiles of the command are scaled or sparse."""
        if not (self.config.sparse if name == "sparse" else self.config.wide):
            return Const(0)
        held = Signal(name=name, reset_less=True)
        with m.If(self.load):
            m.d.sync += held.eq(self.command.word[name])
        return held

    def _pairs(self, m: Module) -> Value:
        """Return a value that is high if the rows of the command are read in pairs."""
        if self.buses == 1:
            return Const(0)
        pairs, command = Signal(reset_less=True), self.command
        bits = (self.n - 1).bit_length()
        few, aligned = Signal(), Signal()
        starts = [command.w_base, *(command[f"w_{name}"] for name in DIMS)]
        m.d.comb += [
            few.eq(
                ~(command.x_count[bits:].any() | command.y_count[bits:].any())
                & (command.x_count[:bits] * command.y_count[:bits] < self.n)
            ),
            aligned.eq((command.w_row == self.n) & ~Cat(start[:bits] for start in starts).any()),
        ]
        with m.If(self.load):
            longer = command.word.scaled if self.config.wide else Const(0)
            longer |= command.word.sparse if self.config.sparse else 0
            m.d.sync += pairs.eq((few | longer) & aligned)
        return pairs

    @property
    def _request_layout(self) -> data.StructLayout:
        """Layout of the properties of a read: it ends a tile or its weight rows, reads two rows, reads the second row
        of an entry of buffer number `buffer`, and reads factors or indices instead of weights.
        """
        return data.StructLayout(
            {
                "tile_end": 1,
                "rows_end": 1,
                "pair": 1,
                "second": 1,
                "buffer": (self.buses - 1).bit_length(),
                "scales": 1,
                "indices": 1,
                "first_indices": 1,
            }
        )

    def _buffer(self, m: Module, asked: Signal, granted: Signal, request: data.View) -> Value:
        """Write granted rows, which arrive SP_READ_LATENCY cycles later, to the buffers; return a value that is high if
        there is room for the next request.
        """
        waiting = Signal(request.shape(), reset_less=True)
        with m.If(asked):
            m.d.sync += waiting.eq(request)
        arriving = pipeline_struct(m, "arriving", waiting, SP_READ_LATENCY)[-1]
        arrived = Signal(SP_READ_LATENCY)
        m.d.sync += [
            arrived.eq((arrived << 1) | granted),
            self.tiles.eq(self.tiles + (granted & waiting.tile_end) - self.take),
        ]
        rows = [self.port.data]
        if self.buses > 1:
            rows.append(Mux(arriving.pair, self.port.next, self.port.data))

        room: Value = Const(0)
        for b in range(self.buses):
            m.submodules[f"buffer{b}"] = buffer = Ram(
                width=8 * self.n * self.buses,
                depth=self.depth,
                granularity=8 * self.n,
                transparent=True,
            )
            free = Signal(range(self.depth + 1), init=self.depth, name=f"free{b}")
            write_to, read_from = (
                Signal(range(self.depth), name=f"{name}{b}") for name in ("write_to", "read_from")
            )
            second, read_second = Signal(name=f"second{b}"), Signal(name=f"read_second{b}")
            writes, begins, frees = (Signal(name=f"{name}{b}") for name in ("writes", "begins", "frees"))
            multiple = self.buses > 1
            m.d.comb += [
                writes.eq(arrived[-1] & (arriving.buffer == b) & ~arriving.scales & ~arriving.indices),
                begins.eq(
                    asked & (request.buffer == b) & ~request.second & ~request.scales & ~request.indices
                ),
                frees.eq(self.pop[b] & (second | self.last[b] | (not multiple))),
                buffer.w_en.eq(
                    Mux(writes, Mux(arriving.pair, 3, 1 << arriving.second), 0) if multiple else writes
                ),
                buffer.w_addr.eq(write_to),
                buffer.w_data.eq(Cat(rows)),
                buffer.r0_en.eq(self.pop[b]),
                buffer.r0_addr.eq(read_from),
                getattr(self, f"row{b}").eq(buffer.r0_data.word_select(read_second, 8 * self.n)),
            ]
            m.d.sync += [
                free.eq(free + frees - begins),
                write_to.eq(
                    write_to
                    + (writes & (arriving.pair | arriving.second | arriving.rows_end | (not multiple)))
                ),
                read_from.eq(read_from + frees),
            ]
            if multiple:
                with m.If(self.pop[b]):
                    m.d.sync += [second.eq(~second & ~self.last[b]), read_second.eq(second)]
            fits = (free != 0) | request.second
            if self.config.sparse:
                indices_fit = self._buffer_indices(m, b, asked, arrived[-1], request, arriving, rows)
                fits = Mux(request.indices, indices_fit, fits)
            room |= (request.buffer == b) & fits
        if self.config.wide:
            return Mux(
                request.scales,
                self._buffer_scales(m, asked & request.scales, arrived[-1] & arriving.scales),
                room,
            )
        return room

    def _buffer_indices(
        self,
        m: Module,
        b: int,
        asked: Value,
        arrived: Value,
        request: data.View,
        arriving: data.View,
        rows: list[Value],
    ) -> Value:
        """Write the indices of sparse tiles to the buffer of a bus; return a value that is high if there is room for
        the next row or pair of rows.
        """
        n, multiple = self.n, self.buses > 1
        entries = max(1, n // 4 // self.buses)
        depth = INDEX_TILES * entries
        m.submodules[f"index_buffer{b}"] = buffer = Ram(
            width=8 * n * self.buses, depth=depth, granularity=8 * n, transparent=True
        )
        write_to, read_from, row = (
            Signal(size, name=f"{name}_indices{b}")
            for name, size in (("write_to", range(depth)), ("read_from", range(depth)), ("row", range(n)))
        )
        free = Signal(range(INDEX_TILES + 1), init=INDEX_TILES, name=f"free_indices{b}")
        begins, frees, writes = (Signal(name=f"{name}_indices{b}") for name in ("begins", "frees", "writes"))
        late_row = Signal.like(row, name=f"late_row_indices{b}")
        m.d.comb += [
            begins.eq(asked & (request.buffer == b) & request.first_indices),
            frees.eq(self.pop_sparse[b] & self.last[b]),
            writes.eq(arrived & (arriving.buffer == b) & arriving.indices),
            buffer.w_en.eq(
                Mux(writes, Mux(arriving.pair, 3, 1 << arriving.second), 0) if multiple else writes
            ),
            buffer.w_addr.eq(write_to),
            buffer.w_data.eq(Cat(rows)),
            buffer.r0_en.eq(self.pop_sparse[b]),
            buffer.r0_addr.eq(read_from + (row >> (3 if multiple else 2) if entries > 1 else 0)),
        ]
        whole = arriving.pair | arriving.second | (entries * self.buses > n // 4 or not multiple)
        m.d.sync += [
            free.eq(free + frees - begins),
            write_to.eq(write_to + (writes & whole)),
            read_from.eq(read_from + Mux(frees, entries, 0)),
        ]
        with m.If(self.pop_sparse[b]):
            m.d.sync += [row.eq(Mux(self.last[b], 0, row + 1)), late_row.eq(row)]
        indices = buffer.r0_data.word_select(late_row[2] if multiple and n > 4 else 0, 8 * n)
        m.d.comb += getattr(self, f"indices{b}").eq(
            Cat(indices.word_select(c, 8).word_select(late_row[:2], SOURCE_BITS) for c in range(n))
        )
        return ~request.first_indices | (free != 0)

    def _buffer_scales(self, m: Module, begins: Value, writes: Value) -> Value:
        """Write the factors of scaled tiles to their buffer; return a value that is high if there is room for a row."""
        m.submodules.scales = buffer = Ram(width=8 * self.n, depth=SCALES, comb=True)
        free = Signal(range(SCALES + 1), init=SCALES, name="free_scales")
        write_to, read_from = (
            Signal(range(SCALES), name=f"{name}_scales") for name in ("write_to", "read_from")
        )
        m.d.comb += [
            buffer.w_en.eq(writes),
            buffer.w_addr.eq(write_to),
            buffer.w_data.eq(self.port.data),
            buffer.r0_addr.eq(read_from),
            self.scales.eq(buffer.r0_data),
        ]
        m.d.sync += [
            free.eq(free + self.take_scales - begins),
            write_to.eq(write_to + writes),
            read_from.eq(read_from + self.take_scales),
        ]
        return free != 0


class PipelinedWeightFetcher(WeightFetcher):
    """`WeightFetcher` with a register for `tile_end`, which is loaded one cycle before the first read of a tile.

    Latency: one cycle more than `WeightFetcher`. Throughput: each tile takes one cycle more than in `WeightFetcher`.
    Parameters and members are the same, except that `ready` is high only after the read of the last row of the previous
    command has been accepted.
    """

    def _may_read(self, m: Module, busy: Signal, next_tile: Value) -> Value:
        self._fresh = Signal()
        m.d.sync += self._fresh.eq(self.load | next_tile)
        return busy & ~self._fresh

    def _ends(self, finished: Value) -> Value:
        return finished

    def _find_end(
        self,
        m: Module,
        asked: Value,
        tile_end: Signal,
        index: Signal,
        following: Value,
        rows: Value,
        ends: Callable[[Value, Value], Value],
    ) -> None:
        held = pipeline_register(m, "rows_held", rows)
        with m.If(self._fresh):
            m.d.sync += tile_end.eq(ends(Const(0, len(index)), rows))
        with m.Elif(asked):
            m.d.sync += tile_end.eq(ends(following, held))
