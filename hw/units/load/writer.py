"""Write side of LOAD, which converts beats to scratchpad writes, slot writes, or lines of a tile to transpose."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.config import SP_ADDR_BITS, MlaConfig
from hw.lib.pipeline import vacancy
from hw.lib.rotate import rotate_left
from hw.lib.skid_buffer import SkidBuffer
from hw.memory.ports import SlotWritePort, SpWritePort, loads_pairs
from hw.units.load.transposer import Transposer


def item_layout(config: MlaConfig) -> data.StructLayout:
    """Return the layout of a beat, or of a half of it, with the fields that determine its destination.

    `slot` is set if the destination is PARAM or TABLE, `table` if it is TABLE, and `collect` if it is the transposer.
    If all three are 0, the destination is the scratchpad at `addr`; if `pair` is set, `next` is written after `data`.
    `offset` is the position of the line's first byte within its first beat, and `kept` is the number of bytes to count.
    `bad` is set if the beat must not be written. The last four fields are used by the transposer. On a bus of 2 * n
    bytes, a pair may also be a beat: `group` is set if it is a group of packed weights, and `next_mask` is the mask of
    `next`.
    """
    lane_bits = (config.n - 1).bit_length()
    return data.StructLayout(
        {
            "data": 8 * config.n,
            "next": 8 * config.n,
            "pair": 1,
            "mask": config.n,
            **({"group": 1, "next_mask": config.n} if config.beat_bytes > config.n else {}),
            "addr": SP_ADDR_BITS,
            "kept": (2 * config.n + 1).bit_length(),
            "tag": 6,
            "slot": 1,
            "table": 1,
            "collect": 1,
            "bad": 1,
            "offset": lane_bits,
            "first": 1,
            "line_end": 1,
            "plane_end": 1,
            "end": 1,
            "dst": SP_ADDR_BITS,
            "dst_step": SP_ADDR_BITS,
            "columns": lane_bits,
            "rows": lane_bits,
        }
    )


class LoadWriter(wiring.Component):
    """Write side of LOAD, which writes items in order and reports the last write of each command.

    The input buffer stores two items, so that a refused write does not stop the preceding components in the same
    cycle.

    Latency: two cycles from an item to its write. Throughput: one item per cycle; a change of tag waits for
    `tag_busy`.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    item : In(stream of item_layout)
        Beats with the information about their lines.
    sp_write : Out(SpWritePort), slot_write : Out(SlotWritePort)
        Write ports of the scratchpad, and of the parameter slots and tables.
    visible : Out
        High if the last write of a command is granted in this cycle; with `pipelined`, equal to `done`.
    done : Out
        High if the last write of a command was granted in the previous cycle.
    kept : Out
        Number of bytes from DRAM that were written in the previous cycle.
    expanded : Out
        High if a group of packed weights was written in the previous cycle.
    tag : Out
        Tag of `done`, `kept` and `expanded`.
    next_valid, next_tag : In
        `next_valid` is high if the command of the next item is known. `next_tag` is the tag of this command, to which
        `tag` may change before the item arrives.
    tag_busy : In
        High while the tag must not change.
    clear : In
        Discard all buffered data.
    busy : Out
        High while an item is waiting to be written.
    """

    def __init__(self, config: MlaConfig):
        self._config = config
        super().__init__(
            {
                "item": In(stream.Signature(item_layout(config))),
                "sp_write": Out(SpWritePort(config, pairs=loads_pairs(config))),
                "slot_write": Out(SlotWritePort(config)),
                "visible": Out(1),
                "done": Out(1),
                "kept": Out((2 * config.n + 1).bit_length()),
                "expanded": Out(1),
                "tag": Out(6),
                "next_valid": In(1),
                "next_tag": In(6),
                "tag_busy": In(1),
                "clear": In(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.transposer = transposer = Transposer(self._config)
        m.submodules.entry = entry = SkidBuffer(item_layout(self._config))
        wiring.connect(m, wiring.flipped(self.item), entry.i)
        valid, item = Signal(), Signal(item_layout(self._config))
        turn, line = Signal(len(item.offset)), Signal(len(item.offset))
        go, may, to_sp = Signal(), Signal(), Signal()
        column, port = transposer.sp_write, self.sp_write
        rotated, rotated_mask = self._rotate(m, item, turn)
        last_column = Signal()
        m.d.comb += [
            transposer.clear.eq(self.clear),
            entry.clear.eq(self.clear),
            last_column.eq(column.valid & transposer.end),
            # Commands retire in order, one per cycle, so no item may overtake columns that have not yet been written.
            may.eq(valid & (item.tag == self.tag) & Mux(item.collect, ~last_column, ~transposer.busy)),
            to_sp.eq(may & ~item.slot & ~item.collect & ~item.bad),
            port.valid.eq(column.valid | to_sp),
            port.addr.eq(Mux(column.valid, column.addr, item.addr)),
            port.data.eq(Mux(column.valid, column.data, item.data)),
            port.mask.eq(Mux(column.valid, column.mask, item.mask)),
            column.ready.eq(port.ready),
            column.waits.eq(port.waits),
            go.eq(may & Mux(item.collect, transposer.beat.ready, port.ready & (to_sp | ~port.waits))),
            entry.o.ready.eq(vacancy(valid, go, self._config.pipelined)),
            self.busy.eq(entry.o.valid | valid | transposer.busy | port.waits),
        ]
        if loads_pairs(self._config):
            m.d.comb += [port.pair.eq(~column.valid & item.pair), port.next.eq(item.next)]
        expands = item.pair
        if self._config.beat_bytes > self._config.n:
            m.d.comb += port.next_mask.eq(item.next_mask)
            expands = item.group
        self._feed(m, transposer, item, line, rotated, rotated_mask, may)
        self._slot(m, item, rotated, go)
        # A command is done when its last write, which waits in a register of the scratchpad, is granted.
        waiting_end, end = Signal(), Signal()
        m.d.comb += end.eq(Mux(column.valid, transposer.end, item.end & to_sp))
        with m.If(self.clear | port.ready):
            m.d.sync += waiting_end.eq(end & port.valid & ~self.clear)
        ends = Signal()
        m.d.comb += [
            ends.eq(~self.clear & ((go & item.end & ~item.collect & ~to_sp) | (waiting_end & port.ready))),
            self.visible.eq(self.done if self._config.pipelined else ends),
        ]
        m.d.sync += [
            self.done.eq(ends),
            self.kept.eq(Mux(go & ~item.bad & ~self.clear, item.kept, 0)),
            self.expanded.eq(go & expands & ~item.bad & ~self.clear),
        ]
        wanted = Signal(6)
        coming = Mux(entry.o.valid, entry.o.payload.tag, self.next_tag)
        m.d.comb += wanted.eq(Mux(valid, item.tag, coming))
        written = ~transposer.busy & ~port.waits & ~go
        with m.If((valid | entry.o.valid | self.next_valid) & written & ~self.tag_busy):
            m.d.sync += self.tag.eq(wanted)
        self._take(m, entry, valid, go, item, turn, line)
        return m

    def _rotate(self, m: Module, item: Signal, turn: Signal) -> tuple[Signal, Signal]:
        n = self._config.n
        return rotate_left(m, "turned", item.data, turn, n), rotate_left(m, "turned_mask", item.mask, turn, n)

    def _take(
        self,
        m: Module,
        entry: SkidBuffer,
        valid: Signal,
        go: Signal,
        item: Signal,
        turn: Signal,
        line: Signal,
    ) -> None:
        """Update the item register, and the line index of the next beat to transpose."""
        following, new = Signal(len(line)), entry.o.payload
        with m.If(self.clear):
            m.d.sync += [valid.eq(0), following.eq(0)]
        with m.Elif(entry.o.ready):
            m.d.sync += [
                valid.eq(entry.o.valid),
                item.eq(new),
                line.eq(following),
                turn.eq(Mux(new.collect, following, 0) - new.offset),
            ]
            with m.If(entry.o.valid & new.collect & new.line_end):
                m.d.sync += following.eq(Mux(new.plane_end, 0, following + 1))

    def _feed(
        self,
        m: Module,
        transposer: Transposer,
        item: Signal,
        line: Signal,
        rotated: Signal,
        mask: Signal,
        may: Signal,
    ) -> None:
        beat = transposer.beat.payload
        m.d.comb += [
            transposer.beat.valid.eq(may & item.collect),
            beat.data.eq(rotated),
            beat.mask.eq(Mux(item.bad, 0, mask)),
            beat.line.eq(line),
            beat.plane_end.eq(item.plane_end),
            beat.end.eq(item.end),
            beat.dst.eq(item.dst),
            beat.dst_step.eq(item.dst_step),
            beat.columns.eq(item.columns),
            beat.rows.eq(item.rows),
        ]

    def _slot(self, m: Module, item: Signal, rotated: Signal, go: Signal) -> None:
        """Drive the slot writes.

        A row contains bytes of two beats if the line does not start at a multiple of n in DRAM.
        """
        n, port = self._config.n, self.slot_write
        held = Signal(8 * n)
        aligned = Signal()
        fresh = Signal(n)
        m.d.comb += [
            aligned.eq(item.offset == 0),
            fresh.eq(Cat(aligned | (item.offset + i >= n) for i in range(n))),
            port.valid.eq(go & item.slot & (aligned | ~item.first) & ~item.bad & ~self.clear),
            port.table.eq(item.table),
            port.addr.eq(item.addr[len(item.offset) :] << len(item.offset)),
            port.data.eq(
                Cat(Mux(fresh[i], rotated.word_select(i, 8), held.word_select(i, 8)) for i in range(n))
            ),
        ]
        with m.If(go):
            m.d.sync += held.eq(rotated)


class PipelinedLoadWriter(LoadWriter):
    """`LoadWriter` that accepts an item only when it holds none.

    Throughput: one item every two cycles. Latency, parameters and members are the same as for `LoadWriter`.
    """

    def _take(
        self,
        m: Module,
        entry: SkidBuffer,
        valid: Signal,
        go: Signal,
        item: Signal,
        turn: Signal,
        line: Signal,
    ) -> None:
        super()._take(m, entry, valid, go, item, turn, line)
        with m.If(go):
            m.d.sync += valid.eq(0)
