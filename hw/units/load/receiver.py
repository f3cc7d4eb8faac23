"""Receiving side of LOAD, which matches the beats of the bus with the lines of commands."""

from typing import NamedTuple

from amaranth.hdl import Const, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.bus.axi import RESP_ERROR_BIT, read_beat
from hw.bus.dma_beats import BeatWalk
from hw.bus.dma_lines import LineWalk, PipelinedLineWalk, walk_layout
from hw.config import SP_ADDR_BITS, MlaConfig
from hw.units.load.unpacker import Unpacker
from hw.units.load.writer import item_layout


def _addresses(config: MlaConfig) -> dict[str, int]:
    """Return the widths of the addresses of the walk; of the DRAM address, only the position within a beat is used."""
    return {"dram": (config.beat_bytes - 1).bit_length(), "dst": SP_ADDR_BITS}


def replay_layout(config: MlaConfig) -> data.StructLayout:
    """Return the layout of a command at the input of LoadReceiver."""
    return walk_layout(_addresses(config), _mode_layout(config))


def _mode_layout(config: MlaConfig) -> data.StructLayout:
    """Return the layout of a command's settings for the write side.

    `rest` is the number of bytes of a line minus one; `rows` is the number of lines minus one.
    `groups` is the number of groups of a line of packed weights minus one.
    """
    lane_bits = (config.n - 1).bit_length()
    return data.StructLayout(
        {
            "slot": 1,
            "table": 1,
            "fill": 1,
            "collect": 1,
            "packed": 1,
            "fill_value": 8,
            "tag": 6,
            "rest": 20,
            "rows": lane_bits,
            "groups": 16,
            "dst_step": SP_ADDR_BITS,
        }
    )


def _line_context(config: MlaConfig) -> data.StructLayout:
    """Return the layout of the information about a line that accompanies each of its beats."""
    lane_bits = (config.beat_bytes - 1).bit_length()
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

    Lines of a fill need no beats. Lines of packed weights pass through an `Unpacker`. Other beats become one item each.

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
        m.submodules.beats = beats = BeatWalk(config, _line_context(config), config.beat_bytes)
        wiring.connect(m, wiring.flipped(self.walk), lines.walk)
        mode = beats.beat.payload.context.mode
        m.d.comb += [
            lines.clear.eq(self.clear),
            beats.clear.eq(self.clear),
        ]
        unpacker: Unpacker | None = None
        if config.packed_loads:
            m.submodules.unpacker = unpacker = Unpacker(config)
            m.d.comb += unpacker.clear.eq(self.clear)
        # Items are in order: a beat waits until the groups of the packed line before it have been written.
        groups, takes = (unpacker.active, unpacker.beat.ready) if unpacker else (Const(0), Const(0))
        m.d.comb += [
            self.next_valid.eq(beats.beat.valid | groups),
            self.next_tag.eq(Mux(groups, unpacker.next_tag, mode.tag) if unpacker else mode.tag),
            self.waits.eq(
                beats.beat.valid
                & ~mode.fill
                & Mux(mode.packed, takes, self.item.ready & ~groups)
                & ~self.r.valid
                & ~self.clear
            ),
            self.active.eq(lines.line.valid | beats.beat.valid | groups),
        ]
        self._span(m, lines, beats)
        self._join(m, beats, groups, takes)
        if unpacker:
            self._unpack(m, beats, unpacker)
        return m

    def _span(self, m: Module, lines: LineWalk, beats: BeatWalk) -> None:
        """Compute the position of a line within the beats of the bus."""
        line, span = lines.line.payload, beats.line.payload
        offset, mode = line.dram, line.context
        m.d.comb += [
            beats.line.valid.eq(lines.line.valid),
            lines.line.ready.eq(beats.line.ready),
            span.start.eq(offset),
            span.last.eq(mode.rest + offset),
            span.addr.eq(line.dst - offset),
            span.context.mode.eq(mode),
            span.context.offset.eq(offset),
            span.context.dst.eq(line.dst),
            span.context.plane_end.eq(line.plane_end),
            span.context.end.eq(line.end),
        ]

    def _join(self, m: Module, beats: BeatWalk, groups: Value, takes: Value) -> None:
        """Combine beats of the walk with beats of the bus.

        Parameters
        ----------
        m : Module
            Module that the logic is added to.
        beats : BeatWalk
            Beats of the walk.
        groups : Value
            High while groups of packed weights, which become items, precede the beat.
        takes : Value
            High if the unpacker accepts a beat.
        """
        beat, item = beats.beat.payload, self.item.payload
        context, mode = beat.context, beat.context.mode
        bus = self.r.payload
        offered = beats.beat.valid & ~mode.packed & ~groups & (mode.fill | self.r.valid)
        rows = self._rows(m, beat, offered & self.item.ready)
        writes = self.item.ready & ~groups
        accepts = Mux(mode.packed, takes, writes if rows.last is None else writes & rows.last)
        m.d.comb += [
            self.item.valid.eq(offered),
            beats.beat.ready.eq((mode.fill | self.r.valid) & accepts),
            self.r.ready.eq(self.clear | (beats.beat.valid & ~mode.fill & accepts)),
            item.data.eq(Mux(mode.fill, mode.fill_value.replicate(self._config.n), rows.data)),
            item.mask.eq(rows.mask),
            item.addr.eq(rows.addr),
            item.kept.eq(Mux(mode.fill, 0, rows.bytes)),
            item.tag.eq(mode.tag),
            item.slot.eq(mode.slot),
            item.table.eq(mode.table),
            item.collect.eq(mode.collect),
            item.bad.eq(~mode.fill & bus.resp[RESP_ERROR_BIT]),
            item.offset.eq(context.offset),
            item.first.eq(rows.first),
            item.line_end.eq(rows.line_end),
            item.plane_end.eq(rows.line_end & context.plane_end),
            item.end.eq(rows.line_end & context.end),
            item.dst.eq(context.dst),
            item.dst_step.eq(mode.dst_step),
            item.columns.eq(mode.rest),
            item.rows.eq(mode.rows),
        ]

    def _rows(self, m: Module, beat: data.View, taken: Value) -> "_Rows":
        """Return the bytes of a beat of the walk that become the next item; `taken` is high if it is accepted."""
        return _Rows(
            data=self.r.payload.data,
            mask=beat.mask,
            addr=beat.addr,
            bytes=beat.bytes,
            first=beat.first,
            line_end=beat.line_end,
            last=None,
        )

    def _unpack(self, m: Module, beats: BeatWalk, unpacker: Unpacker) -> None:
        """Send beats of packed weights to the unpacker, and its groups to the output."""
        beat, item = beats.beat.payload, self.item.payload
        context, mode = beat.context, beat.context.mode
        bus, source, group = self.r.payload, unpacker.beat.payload, unpacker.group.payload
        m.d.comb += [
            unpacker.beat.valid.eq(beats.beat.valid & mode.packed & self.r.valid),
            source.data.eq(bus.data),
            source.start.eq(context.offset),
            source.stop.eq(context.offset + mode.rest),
            source.bad.eq(bus.resp[RESP_ERROR_BIT]),
            source.end.eq(beat.line_end),
            source.rest.eq(mode.rest),
            source.groups.eq(mode.groups),
            source.dst.eq(context.dst),
            source.step.eq(mode.dst_step),
            source.tag.eq(mode.tag),
            source.last.eq(context.end),
            unpacker.group.ready.eq(self.item.ready),
        ]
        with m.If(unpacker.active):
            m.d.comb += [
                self.item.valid.eq(unpacker.group.valid),
                item.data.eq(group.rows[0]),
                item.next.eq(group.rows[1]),
                item.pair.eq(~group.drops),
                item.mask.eq((~group.drops).replicate(self._config.n)),
                item.addr.eq(group.addr),
                item.kept.eq(group.kept),
                item.tag.eq(group.tag),
                item.slot.eq(0),
                item.collect.eq(0),
                item.bad.eq(group.bad),
                item.offset.eq(0),
                item.end.eq(group.end),
            ]


class WideLoadReceiver(LoadReceiver):
    """`LoadReceiver` of machines whose beats have 2 * n bytes.

    A beat whose bytes go to the scratchpad at multiples of n becomes one item with two rows; of other beats, each half
    that has bytes of the line becomes an item. Latency, throughput, parameters and members are the same as for
    `LoadReceiver`.
    """

    def _rows(self, m: Module, beat: data.View, taken: Value) -> "_Rows":
        n, item, mode = self._config.n, self.item, beat.context.mode
        low, high = beat.mask[:n], beat.mask[n:]
        # `second` is set while the second of two items of a beat is offered.
        both, second, upper, last = Signal(), Signal(), Signal(), Signal()
        aligned = Signal()
        m.d.comb += [
            both.eq(low.any() & high.any()),
            aligned.eq(~(mode.slot | mode.collect | beat.addr[: len(item.payload.offset)].any())),
            upper.eq(second | ~low.any()),
            last.eq(~both | aligned | second),
            item.payload.pair.eq(both & aligned),
            item.payload.next.eq(Mux(mode.fill, mode.fill_value.replicate(n), self.r.payload.data[8 * n :])),
            item.payload.next_mask.eq(high),
        ]
        with m.If(self.clear | taken):
            m.d.sync += second.eq(~self.clear & ~last)
        return _Rows(
            data=self.r.payload.data.word_select(upper, 8 * n),
            mask=Mux(upper, high, low),
            addr=beat.addr + Mux(upper, n, 0),
            bytes=Mux(last, beat.bytes, 0),  # the bytes of both halves are counted together
            first=beat.first & ~second,
            line_end=beat.line_end & last,
            last=last,
        )

    def _unpack(self, m: Module, beats: BeatWalk, unpacker: Unpacker) -> None:
        super()._unpack(m, beats, unpacker)
        item = self.item.payload
        with m.If(unpacker.active):
            m.d.comb += [
                item.group.eq(~unpacker.group.payload.drops),
                item.next_mask.eq((~unpacker.group.payload.drops).replicate(self._config.n)),
            ]


class _Rows(NamedTuple):
    """Bytes of a beat that become an item, and the fields of the item that depend on them.

    `last` is set if no further item of the beat follows; None if each beat is one item.
    """

    data: Value
    mask: Value
    addr: Value
    bytes: Value
    first: Value
    line_end: Value
    last: Value | None
