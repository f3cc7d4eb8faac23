"""LOAD, which copies lines from DRAM to the scratchpad, parameter slots and tables."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.bus.axi import BURST, RESP_ERROR_BIT, read_beat
from hw.bus.axi_outstanding import OutstandingBursts
from hw.bus.dma_bursts import BurstWalk
from hw.config import MlaConfig
from hw.isa.enums import Space, Unit
from hw.layouts import command_stream, event_layout
from hw.lib.fifo import StreamFifo
from hw.memory.ports import SlotWritePort, SpWritePort, loads_pairs
from hw.units.load.receiver import LoadReceiver, WideLoadReceiver, replay_layout
from hw.units.load.writer import LoadWriter, PipelinedLoadWriter

#: Maximum number of commands whose requests have been sent and whose beats have not all arrived.
COMMANDS = 16


class LoadUnit(wiring.Component):
    """LOAD unit, which executes LOAD commands as defined in docs/machine.md.

    One walker converts commands to bursts, up to COMMANDS commands ahead of their data. A second walker generates the
    same lines when their beats arrive. The beats arrive in order, and each beat becomes one write (of packed
    weights, bytes of several beats become writes of two rows). On a bus of 2 * n bytes, a beat becomes a write of two
    rows if its bytes go to the scratchpad at multiples of n, and otherwise two writes.
    Latency: 4 cycles from a command to its first request, plus the latencies of LoadReceiver and LoadWriter.
    Throughput: one request and one beat per cycle, without a gap between lines or commands; a fill writes one row per
    cycle. The columns of a transposed plane are written while the next plane arrives.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    cmd : In(command_stream(Unit.LOAD))
        Legal commands whose semaphore tokens have been taken.
    visible, done : Out
        One-cycle pulses: when the data of a command are visible to reads that are granted in the next cycle or later,
        and when a command retires, at the earliest one cycle later (with `pipelined`, in the same cycle).
    ar : Out(stream of BURST), r : In(stream of read_beat)
        Read channels of the bus: addresses and data.
    sp_write : Out(SpWritePort), slot_write : Out(SlotWritePort)
        Write ports of the scratchpad, and of the parameter slots and tables.
    abort : In
        Discard all commands. Offered requests remain valid; their beats are received and discarded.
    busy : Out
        High while a command is in progress or a burst is in flight; after `abort`, low once no burst is in flight.
    error, error_addr : Out
        `error` is a one-cycle pulse for a beat that arrived with an error and was not written; `error_addr` is the byte
        address of this beat.
    events : Out(event_layout("load"))
        Increments of this cycle; the increments of the counters commands, busy, stall_empty and stall_semaphore are 0.
    active, active_tag : Out
        `active` is high while a command is in progress; `active_tag` is the tag of `events` and `done` in this cycle.
    tag_busy : In
        High while `active_tag` must not change.
    in_flight_max, latency_max : Out
        Maximum number of bursts in flight, and maximum latency; see `OutstandingBursts`.
    """

    def __init__(self, config: MlaConfig):
        self._config = config
        super().__init__(
            {
                "cmd": In(command_stream(Unit.LOAD)),
                "visible": Out(1),
                "done": Out(1),
                "ar": Out(stream.Signature(BURST)),
                "r": In(stream.Signature(read_beat(config))),
                "sp_write": Out(SpWritePort(config, pairs=loads_pairs(config))),
                "slot_write": Out(SlotWritePort(config)),
                "abort": In(1),
                "busy": Out(1),
                "error": Out(1),
                "error_addr": Out(32),
                "events": Out(event_layout("load")),
                "active": Out(1),
                "active_tag": Out(6),
                "tag_busy": In(1),
                "in_flight_max": Out(16),
                "latency_max": Out(16),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        config = self._config
        m.submodules.requests = requests = BurstWalk(config)
        m.submodules.commands = commands = StreamFifo(replay_layout(config), COMMANDS)
        m.submodules.receiver = receiver = (
            WideLoadReceiver(config) if config.beat_bytes > config.n else LoadReceiver(config)
        )
        m.submodules.writer = writer = config.variant(LoadWriter, PipelinedLoadWriter)(config)
        m.submodules.log = log = OutstandingBursts(config)
        drain, draining = Signal(), Signal()
        m.d.comb += drain.eq(self.abort | draining)
        m.d.sync += draining.eq(drain & (self.ar.valid | (log.in_flight != 0)))
        self._accept(m, requests, commands, drain)
        m.d.comb += [
            requests.stop.eq(drain),
            commands.clear.eq(drain),
            receiver.clear.eq(drain),
            writer.clear.eq(drain),
            requests.allow.eq(log.allow),
            self.ar.valid.eq(requests.request.valid),
            requests.request.ready.eq(self.ar.ready),
            self.ar.payload.addr.eq(requests.request.payload.addr),
            self.ar.payload.len.eq(requests.request.payload.len),
            self.active_tag.eq(writer.tag),
            self.visible.eq(writer.visible),
            self.done.eq(writer.done),
            writer.tag_busy.eq(self.tag_busy),
            writer.next_valid.eq(receiver.next_valid),
            writer.next_tag.eq(receiver.next_tag),
            self.active.eq(commands.r.valid | receiver.active | writer.busy | self.done),
            self.busy.eq(self.active | requests.active | (log.in_flight != 0)),
            self.error.eq(log.error),
            self.error_addr.eq(log.error_addr),
            self.in_flight_max.eq(log.in_flight_max),
            self.latency_max.eq(log.latency_max),
        ]
        wiring.connect(m, commands.r, receiver.walk)
        wiring.connect(m, wiring.flipped(self.r), receiver.r)
        wiring.connect(m, receiver.item, writer.item)
        wiring.connect(m, writer.sp_write, wiring.flipped(self.sp_write))
        wiring.connect(m, writer.slot_write, wiring.flipped(self.slot_write))
        self._observe(m, receiver, writer, log)
        return m

    def _accept(self, m: Module, requests: BurstWalk, commands: StreamFifo, drain: Signal) -> None:
        """Send a command to both walkers in the same cycle; a fill needs no requests."""
        cmd, walk, stored = self.cmd.payload, requests.walk.payload, commands.w.payload
        mode, word = stored.context, cmd.word
        m.d.comb += [
            self.cmd.ready.eq(commands.w.ready & (word.fill | requests.walk.ready) & ~drain),
            requests.walk.valid.eq(self.cmd.valid & commands.w.ready & ~word.fill & ~drain),
            commands.w.valid.eq(self.cmd.valid & (word.fill | requests.walk.ready) & ~drain),
            walk.y_count.eq(cmd.y_count),
            walk.z_count.eq(Mux(word.packed, 1, cmd.z_count)),
            walk.context.rest.eq(cmd.len - 1),
            walk.dram.eq(cmd.dram),
            walk.dram_y.eq(cmd.dram_y),
            walk.dram_z.eq(cmd.dram_z),
            stored.y_count.eq(cmd.y_count),
            stored.z_count.eq(Mux(word.packed, 1, cmd.z_count)),
            # A fill starts each line at the first byte of a separate row; the columns of a transposed plane share the
            # base address of the plane.
            stored.dram.eq(Mux(word.fill, 0, cmd.dram)),
            stored.dram_y.eq(Mux(word.fill, 0, cmd.dram_y)),
            stored.dram_z.eq(Mux(word.fill, 0, cmd.dram_z)),
            stored.dst.eq(cmd.dst),
            stored.dst_y.eq(Mux(word.transpose, 0, cmd.dst_y)),
            stored.dst_z.eq(cmd.dst_z),
            mode.slot.eq(word.space != Space.SP),
            mode.table.eq(word.space == Space.TABLE),
            mode.fill.eq(word.fill),
            mode.collect.eq(word.transpose),
            mode.packed.eq(word.packed),
            mode.groups.eq(cmd.z_count - 1),
            mode.fill_value.eq(word.fill_value),
            mode.tag.eq(cmd.meta.tag),
            mode.rest.eq(cmd.len - 1),
            mode.rows.eq(cmd.y_count - 1),
            mode.dst_step.eq(Mux(word.packed, cmd.dst_z, cmd.dst_y)),
        ]

    def _observe(self, m: Module, receiver: LoadReceiver, writer: LoadWriter, log: OutstandingBursts) -> None:
        """Connect the log of outstanding bursts, and drive the events."""
        events, taken, asked = self.events, Signal(), Signal()
        m.d.comb += [
            taken.eq(self.r.valid & self.r.ready),
            asked.eq(self.ar.valid & self.ar.ready),
            log.issued.eq(asked),
            log.issued_addr.eq(self.ar.payload.addr),
            log.beat.eq(taken),
            log.answered.eq(taken & self.r.payload.last),
            log.beat_error.eq(taken & self.r.payload.resp[RESP_ERROR_BIT]),
            events.load_bytes.eq(writer.kept),
            events.load_expanded.eq(Mux(writer.expanded, 2 * self._config.n, 0)),
            events.load_latency.eq(log.in_flight),
        ]
        m.d.sync += [
            events.load_requests.eq(asked),
            events.load_beats.eq(taken),
            events.load_stall_bank.eq(self.sp_write.waits & ~self.sp_write.ready),
            events.load_stall_bus.eq(receiver.waits),
        ]
