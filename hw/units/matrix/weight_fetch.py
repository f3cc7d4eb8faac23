"""Weight fetcher of MATRIX, which reads tiles before they are used."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import SP_ADDR_BITS, MlaConfig
from hw.isa.enums import Unit
from hw.layouts import command_layout
from hw.lib.pipeline import pipeline_register, vacancy
from hw.lib.ram import Ram
from hw.memory.ports import SP_READ_LATENCY, SpReadPort
from hw.units.matrix.loop_nest import LoopNest, PipelinedLoopNest, lanes_in_use, nested_address

#: Loops of the weight walk, innermost first.
DIMS = ("kx", "ky", "ic", "oc")


class WeightFetcher(wiring.Component):
    """Fetcher that reads the weight rows of commands, one command after another, into a buffer for two tiles.

    Only rows in use are read: K rows of a normal tile, C rows of a transposed tile, and taps * groups rows of a
    depthwise tile. A tile is available from the cycle after the grant of its last row, because rows are popped no
    faster than they were granted, and the last row is popped no earlier than two cycles after its grant.

    Latency: the weights of a command accepted in cycle c are read from cycle c + 1 on, and the read of the first row is
    granted in c + 2. A row granted in cycle g can be popped from cycle g + 2 on. Throughput: one row per cycle, without
    a gap between commands.

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
    pop : In(1)
        Pop a row, which is then on `row` in the next cycle.
    row : Out(8 * n)
        Weight row that was popped.
    """

    def __init__(self, config: MlaConfig):
        self.config, self.n = config, config.n
        self.rows = 2 * config.n
        super().__init__(
            {
                "load": In(1),
                "command": In(command_layout(Unit.MATRIX)),
                "ready": Out(1),
                "port": Out(SpReadPort(config)),
                "tiles": Out(range(self.rows + 1)),
                "take": In(1),
                "pop": In(1),
                "row": Out(8 * config.n),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        busy, asked, granted = Signal(), Signal(), Signal()
        tile_end, waiting_end = Signal(), Signal()
        free = Signal(range(self.rows + 1), init=self.rows)
        m.submodules.nest = nest = self.config.variant(LoopNest, PipelinedLoopNest)(len(DIMS))
        m.d.comb += [
            asked.eq(self.port.valid & self.port.ready),
            granted.eq(self.port.waits & self.port.ready),
            nest.load.eq(self.load),
            nest.step.eq(asked & tile_end),
        ]
        m.d.comb += self.port.valid.eq(self._may_read(m, busy, asked & tile_end) & (free != 0))
        finished = asked & tile_end & nest.end
        m.d.comb += self.ready.eq(vacancy(busy, finished, self.config.pipelined))
        with m.If(asked):
            m.d.sync += waiting_end.eq(tile_end)
        with m.If(self.load):
            m.d.sync += busy.eq(1)
        with m.Elif(self._ends(finished)):
            m.d.sync += busy.eq(0)
        self._walk(m, nest, asked, tile_end)
        self._buffer(m, granted)
        m.d.sync += [
            free.eq(free + self.pop - asked),
            self.tiles.eq(self.tiles + (granted & waiting_end) - self.take),
        ]
        return m

    def _may_read(self, m: Module, busy: Signal, next_tile: Value) -> Value:
        """Return a value that is high if the address of the next row and the end of its tile are valid."""
        return busy

    def _ends(self, finished: Value) -> Value:
        """Return the value that clears `busy` unless a command is loaded in the same cycle."""
        return self.ready

    def _find_end(self, m: Module, asked: Value, tile_end: Signal, following: Signal, rows: Value) -> None:
        """Drive `tile_end`, which is high if the next row is the last row of its tile."""
        m.d.comb += tile_end.eq(following == rows)

    def _walk(self, m: Module, nest: LoopNest, asked: Signal, tile_end: Signal) -> None:
        """Drive the address of the row to read, and count the rows of a tile."""
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
        index, following = Signal(range(self.n), reset_less=True), Signal(range(self.n + 1))
        m.d.comb += following.eq(index + 1)
        self._find_end(m, asked, tile_end, following, rows)
        with m.If(self.load):
            m.d.sync += index.eq(0)
        with m.Elif(asked):
            m.d.sync += index.eq(Mux(tile_end, 0, following))

        levels = [(~tile_end, strides["row"])]
        levels += [(tile_end & nest.advance[i], strides[name]) for i, name in enumerate(DIMS)]
        address = nested_address(
            m, "address", SP_ADDR_BITS, load=self.load, base=command.w_base, step=asked, levels=levels
        )
        m.d.comb += self.port.addr.eq(address)

    def _buffer(self, m: Module, granted: Signal) -> None:
        """Write granted rows, which arrive SP_READ_LATENCY cycles later, to the buffer."""
        m.submodules.buffer = buffer = Ram(width=8 * self.n, depth=self.rows, transparent=True)
        arriving = Signal(SP_READ_LATENCY)
        write_to, read_from = Signal(range(self.rows)), Signal(range(self.rows))
        m.d.sync += [
            arriving.eq((arriving << 1) | granted),
            write_to.eq(write_to + arriving[-1]),
            read_from.eq(read_from + self.pop),
        ]
        m.d.comb += [
            buffer.w_en.eq(arriving[-1]),
            buffer.w_addr.eq(write_to),
            buffer.w_data.eq(self.port.data),
            buffer.r0_en.eq(self.pop),
            buffer.r0_addr.eq(read_from),
            self.row.eq(buffer.r0_data),
        ]


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

    def _find_end(self, m: Module, asked: Value, tile_end: Signal, following: Signal, rows: Value) -> None:
        held = pipeline_register(m, "rows_held", rows)
        with m.If(self._fresh):
            m.d.sync += tile_end.eq(rows == 1)
        with m.Elif(asked):
            m.d.sync += tile_end.eq(following + 1 == held)
