"""STORE, which copies lines from the scratchpad to DRAM."""

from amaranth.hdl import Elaboratable, Module, Signal, Value, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.bus.axi import BURST, RESP_ERROR_BIT, RESPONSE, write_beat
from hw.bus.axi_outstanding import OutstandingBursts
from hw.bus.dma_bursts import BurstWalk
from hw.bus.dma_lines import walk_layout
from hw.config import MlaConfig
from hw.isa.enums import Unit
from hw.layouts import command_stream, event_layout
from hw.lib.fifo import StreamFifo
from hw.lib.pipeline import pipeline_domain
from hw.memory.ports import SpReadPort
from hw.units.store.data import CONTEXT, PipelinedStoreData, StoreData, data_addresses

#: Maximum number of commands in progress or waiting for the bus's answer.
COMMANDS = 16
#: Width of the counts of bursts, which have more values than the maximum number of bursts in flight.
_COUNT_BITS = 12


class StoreUnit(wiring.Component):
    """STORE unit, which executes STORE commands as defined in docs/machine.md.

    One walker sends the requests ahead of the data. The data path generates the same lines and reads a row for each
    beat of an offered request. A command retires when the bus has answered its last burst. Latency: 4 cycles from a
    command to its first request. Throughput: one request and one beat per cycle, without a gap between lines or
    commands, except that a command with another tag waits until the commands before it have retired.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    cmd : In(command_stream(Unit.STORE))
        Legal commands whose semaphore tokens have been taken.
    done : Out
        One-cycle pulse when a command retires.
    sp_read : Out(SpReadPort)
        Read port of the scratchpad.
    aw : Out(stream of BURST), w : Out(stream of write_beat), b : In(stream of RESPONSE)
        Write channels of the bus: addresses, data and responses.
    abort : In
        Discard all commands. Offered requests remain valid, and their beats are sent with the write strobes deasserted.
    busy : Out
        High while a command is in progress or a burst is in flight; after `abort`, low once no burst is in flight.
    error, error_addr : Out
        `error` is a one-cycle pulse for a burst that was answered with an error; `error_addr` is the byte address of
        this burst.
    events : Out(event_layout("store"))
        Increments of this cycle; the increments of the counters commands, busy, stall_empty and stall_semaphore are 0.
    active, active_tag : Out
        `active` is high while a command is in progress; `active_tag` is the tag of `events` and `done` in this cycle.
    tag_busy : In
        High while `active_tag` must not change.
    """

    def __init__(self, config: MlaConfig):
        self._config = config
        super().__init__(
            {
                "cmd": In(command_stream(Unit.STORE)),
                "done": Out(1),
                "sp_read": Out(SpReadPort(config)),
                "aw": Out(stream.Signature(BURST)),
                "w": Out(stream.Signature(write_beat(config))),
                "b": In(stream.Signature(RESPONSE)),
                "abort": In(1),
                "busy": Out(1),
                "error": Out(1),
                "error_addr": Out(32),
                "events": Out(event_layout("store")),
                "active": Out(1),
                "active_tag": Out(6),
                "tag_busy": In(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        config = self._config
        m.submodules.requests = requests = BurstWalk(config)
        m.submodules.commands = commands = StreamFifo(walk_layout(data_addresses(config), CONTEXT), COMMANDS)
        m.submodules.targets = targets = StreamFifo(unsigned(_COUNT_BITS), COMMANDS)
        m.submodules.data = store = config.variant(StoreData, PipelinedStoreData)(config)
        m.submodules.log = log = OutstandingBursts(config)
        drain, draining, clear = Signal(), Signal(), Signal()
        held = Signal(range(COMMANDS + 1))
        m.d.comb += [
            drain.eq(self.abort | draining),
            requests.stop.eq(drain),
            store.blank.eq(drain),
            requests.allow.eq(log.allow),
            commands.clear.eq(clear),
            store.clear.eq(clear),
            targets.clear.eq(clear),
            self.active.eq((held != 0) | self.done),
            self.busy.eq(self.active | self.aw.valid | store.owes | (log.in_flight != 0)),
            self.error.eq(log.error),
            self.error_addr.eq(log.error_addr),
        ]
        # While commands are discarded, no new command begins, so with `pipelined` this signal may be one cycle late.
        late = self._config.pipelined
        domain = pipeline_domain(m, late)
        domain += clear.eq(drain & ~self.aw.valid & ~store.owes & (log.in_flight == 0))
        m.d.sync += draining.eq(drain & ~clear)
        wiring.connect(m, commands.r, store.walk)
        wiring.connect(m, store.sp_read, wiring.flipped(self.sp_read))
        wiring.connect(m, store.w, wiring.flipped(self.w))
        self._accept(m, requests, commands, drain | clear if late else drain, held)
        retire = self._retire(m, requests, targets, store, log, drain)
        with m.If(clear):
            m.d.sync += held.eq(0)
        with m.Else():
            m.d.sync += held.eq(held + (self.cmd.valid & self.cmd.ready) - retire)
        self._follow_tag(m, store, retire, clear)
        return m

    def _accept(
        self, m: Module, requests: BurstWalk, commands: StreamFifo, closed: Value, held: Signal
    ) -> None:
        """Send a command to both walkers in the same cycle, unless commands are discarded."""
        cmd, walk, stored = self.cmd.payload, requests.walk.payload, commands.w.payload
        room = Signal()
        m.d.comb += [
            room.eq((held != COMMANDS) & ~closed),
            self.cmd.ready.eq(room & requests.walk.ready),
            requests.walk.valid.eq(self.cmd.valid & room),
            commands.w.valid.eq(self.cmd.valid & room & requests.walk.ready),
            walk.y_count.eq(cmd.y_count),
            walk.z_count.eq(cmd.z_count),
            walk.context.rest.eq(cmd.len - 1),
            walk.dram.eq(cmd.dram),
            walk.dram_y.eq(cmd.dram_y),
            walk.dram_z.eq(cmd.dram_z),
            stored.y_count.eq(cmd.y_count),
            stored.z_count.eq(cmd.z_count),
            stored.context.rest.eq(cmd.len - 1),
            stored.dram.eq(cmd.dram),
            stored.dram_y.eq(cmd.dram_y),
            stored.dram_z.eq(cmd.dram_z),
            stored.src.eq(cmd.src),
            stored.src_y.eq(cmd.src_y),
            stored.src_z.eq(cmd.src_z),
            stored.context.tag.eq(cmd.meta.tag),
        ]

    def _retire(
        self,
        m: Module,
        requests: BurstWalk,
        targets: StreamFifo,
        store: StoreData,
        log: OutstandingBursts,
        drain: Signal,
    ) -> Signal:
        """Retire a command when the number of answers has reached the number of its last burst; return the retirement
        pulse.
        """
        issued, answered, excess = Signal(_COUNT_BITS), Signal(_COUNT_BITS), Signal(_COUNT_BITS)
        asked, answer, retire, answers = Signal(), Signal(), Signal(), Signal(_COUNT_BITS)
        late = self._config.pipelined
        failed = self.b.payload.resp[RESP_ERROR_BIT]
        m.d.comb += [
            self.aw.valid.eq(requests.request.valid),
            requests.request.ready.eq(self.aw.ready),
            self.aw.payload.addr.eq(requests.request.payload.addr),
            self.aw.payload.len.eq(requests.request.payload.len),
            asked.eq(self.aw.valid & self.aw.ready),
            self.b.ready.eq(1),
            answer.eq(self.b.valid),
            answers.eq(answered + answer),
            store.issued.eq(asked if late else requests.emits),
            store.issued_len.eq(self.aw.payload.len if late else requests.emitted_len),
            targets.w.valid.eq(asked & requests.request.payload.end),
            targets.w.payload.eq(issued + 1),
            excess.eq((answered if late else answers) - targets.r.payload),
            retire.eq(targets.r.valid & ~excess[-1] & ~drain),
            targets.r.ready.eq(retire),
            log.issued.eq(asked),
            log.issued_addr.eq(self.aw.payload.addr),
            log.answered.eq(answer),
            log.beat_error.eq(answer & failed),
            self.events.store_bytes.eq(store.kept),
        ]
        m.d.sync += [
            issued.eq(issued + asked),
            answered.eq(answers),
            self.done.eq(retire),
            self.events.store_requests.eq(asked),
            self.events.store_beats.eq(self.w.valid & self.w.ready),
            self.events.store_stall_bank.eq(self.sp_read.waits & ~self.sp_read.ready),
            self.events.store_stall_bus.eq(
                (self.w.valid & ~self.w.ready) | (~store.active & (log.in_flight != 0))
            ),
        ]
        return retire

    def _follow_tag(self, m: Module, store: StoreData, retire: Signal, clear: Signal) -> None:
        """Change the tag once all commands whose beats have been read have retired.

        With `pipelined`, the signal that indicates that all beats of a command have been read is one cycle late.
        """
        waiting, ended = Signal(range(COMMANDS + 1)), Signal()
        late = self._config.pipelined
        domain = pipeline_domain(m, late)
        domain += ended.eq(store.sent_end & ~clear)
        m.d.comb += store.tag.eq(self.active_tag)
        with m.If(clear):
            m.d.sync += waiting.eq(0)
        with m.Else():
            m.d.sync += waiting.eq(waiting + ended - retire)
        with m.If(store.next_valid & (waiting == 0) & ~(ended & bool(late)) & ~self.tag_busy):
            m.d.sync += self.active_tag.eq(store.next_tag)
