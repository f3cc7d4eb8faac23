"""MATRIX: the unit that contains the systolic array."""

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hw.array.line_buffer import LineBuffer
from hw.array.systolic import SystolicArray
from hw.config import MlaConfig
from hw.isa.enums import Unit
from hw.layouts import command_stream, event_layout
from hw.lib.pipeline import optional_register
from hw.memory.accumulator import AccUpdatePort
from hw.memory.ports import SpReadPort
from hw.units.matrix.layouts import SCALE_CYCLES
from hw.units.matrix.row_issue import RowIssuer
from hw.units.matrix.row_walker import RowWalker
from hw.units.matrix.weight_feed import WeightFeeder
from hw.units.matrix.weight_fetch import PipelinedWeightFetcher, WeightFetcher
from hw.units.matrix.writeback import RowWriteback

#: Maximum number of commands accepted and not done, which are not begun, in the walker or in the array.
ACCEPTED_MAX = 15


class MatrixUnit(wiring.Component):
    """MATRIX unit, which executes MATRIX commands as defined in docs/machine.md.

    Two engines run ahead of the array: the fetcher reads weight tiles, and the walker produces the steps of the
    activations. The issuer combines each step with its tile; all later stages have no flow control.

    Latency: a command accepted in cycle c issues its first row in cycle c + 3 + K if its first tile has K weight rows
    and no earlier command is in progress. A row issued in cycle t enters the array in cycle t + ENTRY_AFTER and
    requests its accumulator update in cycle t + update_after(n); `done` is set done_after(n) cycles after the last step
    of a command (see hw.units.matrix.layouts). Throughput: one row per cycle, and one tile every max(rows, n) cycles,
    also across commands; with two buses for weights, one tile every max(rows, n / 2) cycles if the rows of its weights
    are read in pairs (`WeightFetcher`). The indices of a sparse tile take n / 8 more reads of pairs (at least one), or
    n / 4 of rows. Factors of a scaled tile take one more read, and its sums are SCALE_CYCLES cycles later, as is
    `done`. A depthwise stream of dw_len pixels takes dw_len + max(taps - 1 - dw_lead, 0) cycles.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    cmd : In(command_stream(Unit.MATRIX))
        Commands whose semaphores permit a start; they are accepted even while earlier commands are in progress.
    visible : Out(1)
        One-cycle pulse for each command, in order, VISIBLE_BEFORE cycles before `done`. FUSE reads no sum earlier than
        VISIBLE_BEFORE cycles after a signal to it.
    done : Out(1)
        One-cycle pulse for each command, in order, in the first cycle in which FUSE may read all results of the
        command.
    zeros : Out(32)
        Statistic MATRIX_ZEROS of the last command that is done.
    act, weight : Out(SpReadPort)
        Read ports of the scratchpad. Reads of port `act` must never be refused.
    update : Out(AccUpdatePort)
        Port for updates of the accumulator with the sums.
    events : Out(event_layout("matrix"))
        Increments of macs_issued, macs_useful, matrix_rows, matrix_tiles, matrix_zeros, sparse_rows, acc_writes and
        matrix_stall_bank; the other increments are 0.
    active : Out(1)
        High if a command has been accepted and is not done.
    tagged : Out(1), event_tag : Out(6)
        `tagged` is high if the events of a step are output in this cycle; `event_tag` is the tag of the step.
    row_entering, wait_weights, weight_shift, in_flight : Out(1)
        State in this cycle. `row_entering` is high if a row is issued, `wait_weights` if a tile waits and a weight read
        is refused, `weight_shift` if a tile waits for another reason, and `in_flight` if rows are in flight.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        super().__init__(
            {
                "cmd": In(command_stream(Unit.MATRIX)),
                "visible": Out(1),
                "done": Out(1),
                "zeros": Out(32),
                "act": Out(SpReadPort(config, pairs=bool(config.wide))),
                "weight": Out(SpReadPort(config, pairs=config.weight_rows > 1)),
                "update": Out(AccUpdatePort(config)),
                "events": Out(event_layout("matrix")),
                "active": Out(1),
                "tagged": Out(1),
                "event_tag": Out(6),
                **dict.fromkeys(("row_entering", "wait_weights", "weight_shift", "in_flight"), Out(1)),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        config = self.config
        m.submodules.fetcher = fetcher = config.variant(WeightFetcher, PipelinedWeightFetcher)(config)
        m.submodules.walker = walker = RowWalker(config)
        m.submodules.issuer = issuer = RowIssuer(config)
        feeders = [WeightFeeder(config) for _ in range(config.weight_rows)]
        m.submodules.lines = lines = LineBuffer(config)
        m.submodules.array = array = SystolicArray(config)
        m.submodules.trail = trail = RowWriteback(config)
        connect(m, walker.rows, issuer.rows)
        connect(m, issuer.act, flipped(self.act))
        connect(m, fetcher.port, flipped(self.weight))

        accepted, room = Signal(), Signal()
        row = walker.rows.payload
        # The next command is held until fetcher and walker have begun it. The condition to accept another command
        # depends only on registers.
        command = Signal(self.cmd.payload.shape(), reset_less=True)
        to_fetch, to_walk = Signal(), Signal()
        with m.If(accepted):
            m.d.sync += [command.eq(self.cmd.payload), to_fetch.eq(1), to_walk.eq(1)]
        with m.Else():
            m.d.sync += [to_fetch.eq(to_fetch & ~fetcher.load), to_walk.eq(to_walk & ~walker.load)]
        m.d.comb += [
            self.cmd.ready.eq(~to_fetch & ~to_walk & room),
            accepted.eq(self.cmd.valid & self.cmd.ready),
            fetcher.command.eq(command),
            fetcher.load.eq(to_fetch & fetcher.ready),
            walker.command.eq(command),
            walker.load.eq(to_walk & walker.ready),
            issuer.tiles_ready.eq(fetcher.tiles != 0),
            fetcher.take.eq(issuer.issued & row.start),
            fetcher.pop.eq(Cat(feeder.pop for feeder in feeders)),
            fetcher.last.eq(Cat(feeder.last for feeder in feeders)),
            lines.valid.eq(issuer.line_valid),
            lines.step.eq(issuer.line_step),
            lines.row.eq(issuer.operands),
            array.row.eq(issuer.entering),
            array.swap.eq(issuer.swap),
            array.select.eq(issuer.select),
            array.line0.eq(lines.line0),
            array.line1.eq(lines.line1),
            array.line2.eq(lines.line2),
            array.live.eq(lines.live),
            trail.issued.eq(issuer.issued),
            trail.row.eq(row),
            trail.operands.eq(issuer.operands),
            self.update.valid.eq(trail.update_valid),
            self.update.row.eq(trail.update_row),
            self.update.add.eq(trail.update_add),
            self.update.shift.eq(trail.update_shift),
            self.update.psum.eq(self._scaled(m, fetcher, trail, array.psum) if config.wide else array.psum),
            self.visible.eq(trail.visible),
            self.done.eq(trail.done),
            self.zeros.eq(trail.zeros),
        ]
        if config.wide:
            m.d.comb += [
                array.second.eq(issuer.second),
                array.wide.eq(issuer.wide),
                *([array.sparse.eq(issuer.sparse)] if config.sparse else []),
                trail.second_operands.eq(issuer.second_operands),
            ]
        m.d.comb += issuer.feeder_ready.eq(
            self._feed(m, feeders, fetcher, array, row, issuer.issued & row.swap)
        )
        commands = Signal(range(ACCEPTED_MAX + 1))
        m.d.sync += commands.eq(commands + accepted - self.done)
        m.d.comb += [room.eq(commands != ACCEPTED_MAX), self.active.eq(commands != 0)]
        self._observe(m, fetcher=fetcher, walker=walker, issuer=issuer, trail=trail)
        return m

    def _feed(
        self,
        m: Module,
        feeders: list[WeightFeeder],
        fetcher: WeightFetcher,
        array: SystolicArray,
        row: data.View,
        start: Value,
    ) -> Value:
        """Connect the feeders, which start tiles in turn; return a value that is high if a tile may start."""
        turn = Signal(range(len(feeders)))
        with m.If(start):
            m.d.sync += turn.eq(turn + 1)
        free: Value = Const(0)
        for b, feeder in enumerate(feeders):
            m.submodules[f"feeder{b}"] = feeder
            m.d.comb += [
                feeder.row.eq(getattr(fetcher, f"row{b}")),
                feeder.start.eq(start & (turn == b)),
                feeder.rows.eq(row.rows),
                feeder.lanes.eq(row.lanes),
                feeder.by_column.eq(row.by_column),
                feeder.zero_point.eq(row.w_zp),
                feeder.unsigned.eq(row.w_unsigned),
                getattr(array, f"weights{b}").eq(feeder.weights),
                getattr(array, f"write_row{b}").eq(feeder.write_row),
                getattr(array, f"write_column{b}").eq(feeder.write_column),
            ]
            if self.config.sparse:
                m.d.comb += [
                    feeder.sparse.eq(row.sparse),
                    fetcher.pop_sparse[b].eq(feeder.pop_sparse),
                    feeder.indices.eq(getattr(fetcher, f"indices{b}")),
                ]
            free |= (turn == b) & feeder.ready
        # A feeder alone keeps tiles apart by n cycles; different feeders also need a distance.
        if len(feeders) == 1:
            return free
        distance = self.config.tile_cycles
        wait = Signal(range(distance))
        with m.If(start):
            m.d.sync += wait.eq(distance - 1)
        with m.Elif(wait != 0):
            m.d.sync += wait.eq(wait - 1)
        return free & (wait == 0)

    def _scaled(self, m: Module, fetcher: WeightFetcher, trail: RowWriteback, psum: Value) -> Value:
        """Return the sums for the accumulator: those of scaled tiles are multiplied by the factors of their columns,
        which takes SCALE_CYCLES cycles.
        """
        # The sums leave the array two cycles after their request, those of scaled tiles one cycle after it.
        assert SCALE_CYCLES == 1
        n, multiplies, product_valid = self.config.n, Signal(), Signal()
        factors, product = Signal(8 * n, reset_less=True), Signal(32 * n, reset_less=True)
        m.d.comb += fetcher.take_scales.eq(trail.update_valid & trail.update_scaled & trail.update_start)
        m.d.sync += [
            multiplies.eq(trail.update_valid & trail.update_scaled),
            product_valid.eq(multiplies),
        ]
        with m.If(fetcher.take_scales):
            m.d.sync += factors.eq(fetcher.scales)
        with m.If(multiplies):
            m.d.sync += product.eq(
                Cat((psum.word_select(c, 32) * factors.word_select(c, 8))[:32] for c in range(n))
            )
        return Mux(product_valid, product, psum)

    def _macs(self, wide: Value) -> Value:
        """Return the number of multiply-accumulates of a row in wide mode or in another mode."""
        n = self.config.n
        return Mux(wide, 2 * n**2, n**2) if self.config.wide else Const(n**2)

    def _observe(
        self, m: Module, *, fetcher: WeightFetcher, walker: RowWalker, issuer: RowIssuer, trail: RowWriteback
    ) -> None:
        """Drive the events, and the state from which the stall causes are determined."""
        counted, refused = optional_register(m, "counted", trail.counted, self.config.pipelined), Signal()
        events: list[Signal] = []
        m.d.comb += [
            refused.eq(self.weight.waits & ~self.weight.ready),
            self.row_entering.eq(issuer.row_entering),
            self.wait_weights.eq(issuer.tile_waits & refused & (fetcher.tiles == 0)),
            self.weight_shift.eq(issuer.tile_waits & ~self.wait_weights),
            self.in_flight.eq(trail.in_flight),
        ]
        stream = counted.valid & counted.stream
        values = {
            "matrix_stall_bank": refused,
            "macs_issued": Mux(stream, self._macs(counted.wide), 0),
            "macs_useful": Mux(counted.valid, counted.useful, 0),
            "matrix_rows": stream,
            "matrix_tiles": counted.valid & counted.start,
            "matrix_zeros": Mux(stream, counted.zeros, 0),
            "sparse_rows": stream & counted.sparse,
            "acc_writes": counted.valid & counted.wave,
        }
        for name, shape in event_layout("matrix").members.items():
            event = Signal(shape, name=f"event_{name}")
            m.d.comb += event.eq(values.get(name, 0))
            events.append(event)
        m.d.comb += self.events.eq(Cat(events))
        m.d.comb += [self.tagged.eq(counted.valid), self.event_tag.eq(counted.tag)]
