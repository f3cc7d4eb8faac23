"""LOAD: copies lines from DRAM to the scratchpad and the slots."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.bus.axi import BURST, RESP_ERROR_BIT, read_beat
from hw.bus.axi_beats import BeatWalk
from hw.bus.axi_bursts import BurstWalk
from hw.bus.axi_lines import LineWalk, walk_layout
from hw.bus.axi_log import BurstLog
from hw.config import SP_ADDR_BITS, MlaConfig
from hw.isa.enums import Space, Unit
from hw.layouts import SlotWritePort, SpWritePort, command_stream, event_layout
from hw.memory.stream_fifo import StreamFifo
from hw.units.load_writer import LoadWriter

#: Commands whose requests went out and whose beats have not all come.
COMMANDS = 16


def _mode_layout(config: MlaConfig) -> data.StructLayout:
    """What the write side keeps of a command beside its walk; `columns`, `rows`: bytes of a line, lines of a plane, less one."""
    lane_bits = (config.n - 1).bit_length()
    return data.StructLayout({
        "slot": 1, "table": 1, "fill": 1, "collect": 1, "int4": 1, "fill_value": 8, "tag": 6,
        "rest": 20, "rows": lane_bits, "dst_step": SP_ADDR_BITS,
    })


def _line_context(config: MlaConfig) -> data.StructLayout:
    """What each beat carries of its line."""
    lane_bits = (config.n - 1).bit_length()
    return data.StructLayout({
        "mode": _mode_layout(config), "offset": lane_bits, "dst": SP_ADDR_BITS, "plane_end": 1, "end": 1,
    })


class LoadUnit(wiring.Component):
    """Executes LOAD commands as docs/machine.md defines them.

    One walker turns commands into bursts and runs ahead over up to COMMANDS of them; another replays the same lines as their beats come
    back, in order, and each beat becomes one write (two with int4). Nothing is buffered: a beat is taken when the write before
    it has been granted.
    Latency: 4 cycles from a command to its first request, 1 from a beat to its write, 1 from the last write to `done`.
    Throughput: one request and one beat per cycle, with no gap between lines and commands; filling writes a row per cycle. The columns
    of a transposed plane are written while the next plane comes.

    Parameters
    ----------
    config : MlaConfig
        Sizes.

    Members
    -------
    cmd : In(command_stream(Unit.LOAD))
        Legal commands that have taken their semaphores.
    done : Out
        A command has retired: reads granted from this cycle on see all it wrote.
    ar : Out(stream of BURST), r : In(stream of read_beat)
        The bus.
    sp_write : Out(SpWritePort), slot_write : Out(SlotWritePort)
        Writes.
    abort : In
        Drop all commands. Offered requests are kept up and their beats taken and dropped.
    busy : Out
        A command is in progress or a burst in flight; after `abort` low when the bus is quiet.
    error, error_addr : Out
        A beat came with an error and was not written; byte address of that beat.
    events : Out(event_layout("load"))
        Increments of this cycle; commands, busy, stall_empty and stall_semaphore are left 0.
    active, active_tag : Out
        A command is in progress; the tag that `events` and `done` of this cycle belong to.
    tag_busy : In
        `active_tag` may not change.
    in_flight_max, latency_max : Out
        See BurstLog.
    """

    def __init__(self, config: MlaConfig):
        self._config = config
        self._lane_bits = (config.n - 1).bit_length()
        super().__init__({
            "cmd": In(command_stream(Unit.LOAD)), "done": Out(1),
            "ar": Out(stream.Signature(BURST)), "r": In(stream.Signature(read_beat(config))),
            "sp_write": Out(SpWritePort(config)), "slot_write": Out(SlotWritePort(config)),
            "abort": In(1), "busy": Out(1), "error": Out(1), "error_addr": Out(32),
            "events": Out(event_layout("load")), "active": Out(1), "active_tag": Out(6), "tag_busy": In(1),
            "in_flight_max": Out(16), "latency_max": Out(16),
        })

    def elaborate(self, platform) -> Elaboratable:
        m = Module()
        config = self._config
        walk = walk_layout({"dram": self._lane_bits, "dst": SP_ADDR_BITS}, _mode_layout(config))
        m.submodules.requests = requests = BurstWalk(config)
        m.submodules.commands = commands = StreamFifo(walk, COMMANDS)
        m.submodules.lines = lines = LineWalk(
            addresses={"dram": self._lane_bits, "dst": SP_ADDR_BITS}, context=_mode_layout(config))
        m.submodules.beats = beats = BeatWalk(config, _line_context(config))
        m.submodules.writer = writer = LoadWriter(config)
        m.submodules.log = log = BurstLog(config)
        drain, draining = Signal(), Signal()
        m.d.comb += drain.eq(self.abort | draining)
        m.d.sync += draining.eq(drain & (self.ar.valid | (log.in_flight != 0)))
        self._accept(m, requests, commands, drain)
        m.d.comb += [
            requests.stop.eq(drain), commands.clear.eq(drain), lines.clear.eq(drain), beats.clear.eq(drain), writer.clear.eq(drain),
            requests.allow.eq(log.allow),
            self.ar.valid.eq(requests.request.valid), requests.request.ready.eq(self.ar.ready),
            self.ar.payload.addr.eq(requests.request.payload.addr), self.ar.payload.len.eq(requests.request.payload.len),
            self.active_tag.eq(writer.tag), self.done.eq(writer.done), writer.tag_busy.eq(self.tag_busy),
            writer.next_valid.eq(beats.beat.valid), writer.next_tag.eq(beats.beat.payload.context.mode.tag),
            self.active.eq(commands.r.valid | lines.line.valid | beats.beat.valid | writer.busy | self.done),
            self.busy.eq(self.active | requests.active | (log.in_flight != 0)),
            self.error.eq(log.error), self.error_addr.eq(log.error_addr),
            self.in_flight_max.eq(log.in_flight_max), self.latency_max.eq(log.latency_max),
        ]
        wiring.connect(m, commands.r, lines.walk)
        wiring.connect(m, writer.sp_write, wiring.flipped(self.sp_write))
        wiring.connect(m, writer.slot_write, wiring.flipped(self.slot_write))
        self._span(m, lines, beats)
        self._receive(m, beats, writer, drain)
        self._observe(m, beats, writer, log, drain)
        return m

    def _accept(self, m: Module, requests: BurstWalk, commands: StreamFifo, drain: Signal) -> None:
        """Send a command to both walkers at once; a fill needs no requests."""
        cmd, walk, kept = self.cmd.payload, requests.walk.payload, commands.w.payload
        mode, word = kept.context, cmd.word
        m.d.comb += [
            self.cmd.ready.eq(commands.w.ready & (word.fill | requests.walk.ready) & ~drain),
            requests.walk.valid.eq(self.cmd.valid & commands.w.ready & ~word.fill & ~drain),
            commands.w.valid.eq(self.cmd.valid & (word.fill | requests.walk.ready) & ~drain),
            walk.y_count.eq(cmd.y_count), walk.z_count.eq(cmd.z_count), walk.context.rest.eq(cmd.len - 1),
            walk.dram.eq(cmd.dram), walk.dram_y.eq(cmd.dram_y), walk.dram_z.eq(cmd.dram_z),
            kept.y_count.eq(cmd.y_count), kept.z_count.eq(cmd.z_count),
            # A fill starts each line at the first byte of a row of its own; columns of a transposed plane share its base.
            kept.dram.eq(Mux(word.fill, 0, cmd.dram)), kept.dram_y.eq(Mux(word.fill, 0, cmd.dram_y)),
            kept.dram_z.eq(Mux(word.fill, 0, cmd.dram_z)),
            kept.dst.eq(cmd.dst), kept.dst_y.eq(Mux(word.transpose, 0, cmd.dst_y)), kept.dst_z.eq(cmd.dst_z),
            mode.slot.eq(word.space != Space.SP), mode.table.eq(word.space == Space.TABLE), mode.fill.eq(word.fill),
            mode.collect.eq(word.transpose), mode.int4.eq(word.int4 & ~word.fill), mode.fill_value.eq(word.fill_value),
            mode.tag.eq(cmd.meta.tag), mode.rest.eq(cmd.len - 1), mode.rows.eq(cmd.y_count - 1), mode.dst_step.eq(cmd.dst_y),
        ]

    def _span(self, m: Module, lines: LineWalk, beats: BeatWalk) -> None:
        """A line's place among the bus's beats."""
        line, span = lines.line.payload, beats.line.payload
        offset, mode = line.dram, line.context
        before = Signal(self._lane_bits + 1)
        m.d.comb += [
            beats.line.valid.eq(lines.line.valid), lines.line.ready.eq(beats.line.ready),
            before.eq(Mux(mode.int4, offset << 1, offset)),
            span.start.eq(offset), span.last.eq(mode.rest + offset), span.addr.eq(line.dst - before), span.double.eq(mode.int4),
            span.context.mode.eq(mode), span.context.offset.eq(offset), span.context.dst.eq(line.dst),
            span.context.plane_end.eq(line.plane_end), span.context.end.eq(line.end),
        ]

    def _receive(self, m: Module, beats: BeatWalk, writer: LoadWriter, drain: Signal) -> None:
        """Join beats of the walk with beats of the bus; with int4 a beat is used twice, low half first."""
        n, half_bits = self._config.n, 4 * self._config.n
        beat, item = beats.beat.payload, writer.item.payload
        context, mode = beat.context, beat.context.mode
        bus, upper, final = self.r.payload, Signal(), Signal()
        packed, packed_mask = Signal(half_bits), Signal(n // 2)
        m.d.comb += [
            final.eq(~mode.int4 | upper),
            writer.item.valid.eq(beats.beat.valid & (mode.fill | self.r.valid)),
            beats.beat.ready.eq((mode.fill | self.r.valid) & writer.item.ready & final),
            self.r.ready.eq(drain | (beats.beat.valid & ~mode.fill & writer.item.ready & final)),
            packed.eq(Mux(upper, bus.data[half_bits:], bus.data[:half_bits])),
            packed_mask.eq(Mux(upper, beat.mask[n // 2 :], beat.mask[: n // 2])),
            item.data.eq(Mux(mode.fill, mode.fill_value.replicate(n), Mux(mode.int4, _expand(packed), bus.data))),
            item.mask.eq(Mux(mode.int4, Cat(bit.replicate(2) for bit in packed_mask), beat.mask)),
            item.addr.eq(Mux(upper, beat.addr + n, beat.addr)), item.kept.eq(Mux(mode.fill | ~final, 0, beat.bytes)),
            item.tag.eq(mode.tag), item.slot.eq(mode.slot), item.table.eq(mode.table), item.collect.eq(mode.collect),
            item.bad.eq(~mode.fill & bus.resp[RESP_ERROR_BIT]), item.offset.eq(context.offset), item.first.eq(beat.first),
            item.line_end.eq(beat.line_end), item.plane_end.eq(beat.line_end & context.plane_end),
            item.end.eq(beat.line_end & context.end & final),
            item.dst.eq(context.dst), item.dst_step.eq(mode.dst_step), item.columns.eq(mode.rest), item.rows.eq(mode.rows),
        ]
        with m.If(drain):
            m.d.sync += upper.eq(0)
        with m.Elif(writer.item.valid & writer.item.ready):
            m.d.sync += upper.eq(~final)

    def _observe(self, m: Module, beats: BeatWalk, writer: LoadWriter, log: BurstLog, drain: Signal) -> None:
        """Book-keeping of bursts and events."""
        events, taken, asked = self.events, Signal(), Signal()
        m.d.comb += [
            taken.eq(self.r.valid & self.r.ready), asked.eq(self.ar.valid & self.ar.ready),
            log.issued.eq(asked), log.issued_addr.eq(self.ar.payload.addr), log.beat.eq(taken),
            log.answered.eq(taken & self.r.payload.last), log.beat_error.eq(taken & self.r.payload.resp[RESP_ERROR_BIT]),
            events.load_bytes.eq(writer.kept), events.load_latency.eq(log.in_flight),
        ]
        m.d.sync += [
            events.load_requests.eq(asked), events.load_beats.eq(taken),
            events.load_stall_bank.eq(self.sp_write.valid & ~self.sp_write.ready),
            events.load_stall_bus.eq(
                beats.beat.valid & ~beats.beat.payload.context.mode.fill & writer.item.ready & ~self.r.valid & ~drain),
        ]


def _expand(packed: Value) -> Value:
    """Bytes with the sign-extended nibbles of `packed`."""
    nibbles = [packed.word_select(i, 4) for i in range(len(packed) // 4)]
    return Cat(Cat(nibble, nibble[3].replicate(4)) for nibble in nibbles)
