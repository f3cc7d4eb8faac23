"""Receiving side of LOAD, which matches the beats of the bus with the lines of commands."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.bus.axi import RESP_ERROR_BIT, read_beat
from hw.bus.dma_beats import BeatWalk
from hw.bus.dma_lines import LineWalk, PipelinedLineWalk, walk_layout
from hw.config import SP_ADDR_BITS, MlaConfig
from hw.units.load.writer import item_layout


def _addresses(config: MlaConfig) -> dict[str, int]:
    """Return the widths of the addresses of the walk; of the DRAM address, only the position within a beat is used."""
    return {"dram": (config.n - 1).bit_length(), "dst": SP_ADDR_BITS}


def replay_layout(config: MlaConfig) -> data.StructLayout:
    """Return the layout of a command at the input of LoadReceiver."""
    return walk_layout(_addresses(config), _mode_layout(config))


def _mode_layout(config: MlaConfig) -> data.StructLayout:
    """Return the layout of a command's settings for the write side.

    `rest` is the number of bytes of a line minus one; `rows` is the number of lines minus one.
    """
    lane_bits = (config.n - 1).bit_length()
    return data.StructLayout(
        {
            "slot": 1,
            "table": 1,
            "fill": 1,
            "collect": 1,
            "int4": 1,
            "fill_value": 8,
            "tag": 6,
            "rest": 20,
            "rows": lane_bits,
            "dst_step": SP_ADDR_BITS,
        }
    )


def _line_context(config: MlaConfig) -> data.StructLayout:
    """Return the layout of the information about a line that accompanies each of its beats."""
    lane_bits = (config.n - 1).bit_length()
    return data.StructLayout(
        {
            "mode": _mode_layout(config),
            "offset": lane_bits,
            "dst": SP_ADDR_BITS,
            "plane_end": 1,
            "end": 1,
        }
    )


class LoadReceiver(wiring.Component):
    """Converter from beats of the bus to items that LOAD writes.

    Lines of a fill need no beats; with int4, each beat becomes two items.

    Latency: two cycles from a command to its first beat, none from a beat to its item. Throughput: one item per cycle,
    without a gap between lines or commands.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    walk : In(stream of replay_layout)
        Commands, in the order of their requests.
    r : In(stream of read_beat)
        Read data of the bus.
    item : Out(stream of item_layout)
        Beats with their destinations.
    clear : In
        Discard all commands and all beats that arrive.
    next_valid, next_tag : Out
        `next_valid` is high if the next item is known; `next_tag` is the tag of its command.
    waits : Out
        High while an item waits only for the bus.
    active : Out
        High while a command is in progress.
    """

    def __init__(self, config: MlaConfig):
        self._config = config
        self._lane_bits = (config.n - 1).bit_length()
        super().__init__(
            {
                "walk": In(stream.Signature(replay_layout(config))),
                "r": In(stream.Signature(read_beat(config))),
                "item": Out(stream.Signature(item_layout(config))),
                "clear": In(1),
                "next_valid": Out(1),
                "next_tag": Out(6),
                "waits": Out(1),
                "active": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        config = self._config
        line_walk = config.variant(LineWalk, PipelinedLineWalk)
        m.submodules.lines = lines = line_walk(addresses=_addresses(config), context=_mode_layout(config))
        m.submodules.beats = beats = BeatWalk(config, _line_context(config))
        wiring.connect(m, wiring.flipped(self.walk), lines.walk)
        mode = beats.beat.payload.context.mode
        m.d.comb += [
            lines.clear.eq(self.clear),
            beats.clear.eq(self.clear),
            self.next_valid.eq(beats.beat.valid),
            self.next_tag.eq(mode.tag),
            self.waits.eq(beats.beat.valid & ~mode.fill & self.item.ready & ~self.r.valid & ~self.clear),
            self.active.eq(lines.line.valid | beats.beat.valid),
        ]
        self._span(m, lines, beats)
        self._join(m, beats)
        return m

    def _span(self, m: Module, lines: LineWalk, beats: BeatWalk) -> None:
        """Compute the position of a line within the beats of the bus."""
        line, span = lines.line.payload, beats.line.payload
        offset, mode = line.dram, line.context
        before = Signal(self._lane_bits + 1)
        m.d.comb += [
            beats.line.valid.eq(lines.line.valid),
            lines.line.ready.eq(beats.line.ready),
            before.eq(Mux(mode.int4, offset << 1, offset)),
            span.start.eq(offset),
            span.last.eq(mode.rest + offset),
            span.addr.eq(line.dst - before),
            span.double.eq(mode.int4),
            span.context.mode.eq(mode),
            span.context.offset.eq(offset),
            span.context.dst.eq(line.dst),
            span.context.plane_end.eq(line.plane_end),
            span.context.end.eq(line.end),
        ]

    def _join(self, m: Module, beats: BeatWalk) -> None:
        """Combine beats of the walk with beats of the bus; with int4, each beat is used twice, low half first."""
        n, half_bits = self._config.n, 4 * self._config.n
        beat, item = beats.beat.payload, self.item.payload
        context, mode = beat.context, beat.context.mode
        bus, upper, final = self.r.payload, Signal(), Signal()
        packed, packed_mask = Signal(half_bits), Signal(n // 2)
        m.d.comb += [
            final.eq(~mode.int4 | upper),
            self.item.valid.eq(beats.beat.valid & (mode.fill | self.r.valid)),
            beats.beat.ready.eq((mode.fill | self.r.valid) & self.item.ready & final),
            self.r.ready.eq(self.clear | (beats.beat.valid & ~mode.fill & self.item.ready & final)),
            packed.eq(Mux(upper, bus.data[half_bits:], bus.data[:half_bits])),
            packed_mask.eq(Mux(upper, beat.mask[n // 2 :], beat.mask[: n // 2])),
            item.data.eq(
                Mux(mode.fill, mode.fill_value.replicate(n), Mux(mode.int4, _expand(packed), bus.data))
            ),
            item.mask.eq(Mux(mode.int4, Cat(bit.replicate(2) for bit in packed_mask), beat.mask)),
            item.addr.eq(Mux(upper, beat.addr + n, beat.addr)),
            item.kept.eq(Mux(mode.fill | ~final, 0, beat.bytes)),
            item.tag.eq(mode.tag),
            item.slot.eq(mode.slot),
            item.table.eq(mode.table),
            item.collect.eq(mode.collect),
            item.bad.eq(~mode.fill & bus.resp[RESP_ERROR_BIT]),
            item.offset.eq(context.offset),
            item.first.eq(beat.first),
            item.line_end.eq(beat.line_end),
            item.plane_end.eq(beat.line_end & context.plane_end),
            item.end.eq(beat.line_end & context.end & final),
            item.dst.eq(context.dst),
            item.dst_step.eq(mode.dst_step),
            item.columns.eq(mode.rest),
            item.rows.eq(mode.rows),
        ]
        with m.If(self.clear):
            m.d.sync += upper.eq(0)
        with m.Elif(self.item.valid & self.item.ready):
            m.d.sync += upper.eq(~final)


def _expand(packed: Value) -> Value:
    """Return the nibbles of `packed`, each sign-extended to a byte."""
    nibbles = [packed.word_select(i, 4) for i in range(len(packed) // 4)]
    return Cat(Cat(nibble, nibble[3].replicate(4)) for nibble in nibbles)
