"""The control side of the machine: everything around the core that executes programs."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hw.bus.axi import BURST, RESPONSE, read_beat, write_beat
from hw.bus.axi_lite import AxiLite, join_lite_pins, lite_pins
from hw.config import MlaConfig
from hw.control.completion import Completion
from hw.control.csr import Csr, host_registers
from hw.control.dispatch import Dispatch, PipelinedDispatch
from hw.control.dispatch_table import DispatchTable
from hw.control.layouts import BUS_ERROR_LAYOUT
from hw.control.program_store import ProgramStore
from hw.control.ring_fetch import RingFetch
from hw.control.traps import Traps
from hw.isa.enums import Unit
from hw.layouts import (
    PC_BITS,
    SEGMENT_LAYOUT,
    START_LAYOUT,
    STATISTICS_LAYOUT,
    TRAP_LAYOUT,
    limit_ports,
    windows_layout,
)
from hw.lib.pipeline import optional_register
from hw.memory.instruction_store import WIS_ADDR_BITS

#: Events of the control side, one-cycle pulses with the names of `hw.isa.counters`.
EVENT_LAYOUT = data.StructLayout(
    dict.fromkeys(("dispatch_first", "dispatch_other", "wis_words", "wis_loads", "traps"), 1)
)
_UNITS = len(Unit)


def control_ports(config: MlaConfig) -> dict[str, wiring.Member]:
    """Return the ports of `Control` by name; the docstring of `Control` describes them."""
    beats = stream.Signature(read_beat(config))
    return lite_pins() | {
        "irq": Out(1),
        "cycle": Out(64),
        "status": Out(5),
        "gated": Out(1),
        "trap_tag": Out(6),
        "events": Out(EVENT_LAYOUT),
        "start": Out(stream.Signature(START_LAYOUT)),
        "fetch_addr": In(WIS_ADDR_BITS),
        "fetch_en": In(1),
        "fetch_data": Out(64),
        "operand_addr": In(6),
        "operand_data": Out(32),
        "seg_index": In(8),
        "seg_info": Out(SEGMENT_LAYOUT),
        "in_use": In(config.segments),
        "halted": In(1),
        "steps": In(32),
        "trap": In(TRAP_LAYOUT),
        "core_blocked": In(1),
        "blocked_pc": In(PC_BITS),
        "core_pc": In(PC_BITS),
        "core_segment": In(8),
        "core_tag": In(6),
        "stop": Out(1),
        "flush": Out(1),
        "abort": Out(1),
        "step_limit": Out(32),
        "windows": Out(windows_layout(config)),
        **limit_ports(config, requests=False),
        "statistics": In(STATISTICS_LAYOUT),
        "issued": In(_UNITS),
        "retired": In(_UNITS),
        "idle": In(_UNITS),
        "stuck": In(_UNITS),
        "busy": In(_UNITS),
        "load_error": In(BUS_ERROR_LAYOUT),
        "store_error": In(BUS_ERROR_LAYOUT),
        "fetch_ar": Out(stream.Signature(BURST)),
        "fetch_r": In(beats),
        "loader_ar": Out(stream.Signature(BURST)),
        "loader_r": In(beats),
        "record_aw": Out(stream.Signature(BURST)),
        "record_w": Out(stream.Signature(write_beat(config))),
        "record_b": In(stream.Signature(RESPONSE)),
        "counter_select": Out(32),
        "counter_read": Out(1),
        "counter_done": In(1),
        "counter_value": In(64),
        "maximum_select": Out(32),
        "maximum_value": In(32),
    }


class Control(wiring.Component):
    """Host registers, command ring, dispatch, instruction store, completion records and trap control.

    Latency: 3 cycles from the doorbell to the bus request, 6 to 8 cycles from the last required beat to the start of
    the program, 4 cycles from the retirement of the last command to the completion record. Throughput: see the
    submodules.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    s_axil_* : In, Out
        Pins of the AXI4-Lite slave.
    irq : Out
        Level of the interrupt pin.
    cycle : Out
        Value of the cycle counter.
    start, fetch_addr, fetch_en, fetch_data, operand_addr, operand_data, seg_index, seg_info : In, Out
        Ports of the core with the same names.
    in_use, halted, steps, trap : In
        Ports of the core with the same names. `steps` is also sampled when a trap clears the machine.
    core_blocked, blocked_pc, core_pc, core_segment, core_tag : In
        Ports `blocked`, `blocked_pc`, `pc`, `segment` and `tag` of the core.
    stop, flush : Out
        `stop` freezes the core; `flush`, a one-cycle pulse, clears the core (through its `clear`), the queues and the
        semaphores.
    abort : Out
        Makes units complete their bus transfers and discard their commands; high up to and including the cycle of
        `flush`.
    step_limit, windows : Out, limit : In
        Register values for the core, and the index of the window limit that the core requests.
    statistics : In
        Statistics that guards compare.
    issued, retired, idle, stuck : In
        One bit per unit. `issued`: a command enters the unit's queue. `retired`: a command retires. `idle`: no command
        is queued or executing. `stuck`: no command is executing, and the queue is empty or its first command cannot
        start.
    busy : In
        One bit for each unit: high if the unit has not yet drained after `abort`; for a unit that cannot abort, the
        inverse of `stuck`.
    load_error, store_error : In
        Bus errors of LOAD and STORE.
    fetch_ar, fetch_r, loader_ar, loader_r, record_aw, record_w, record_b : Out, In
        Bus masters of ring, loader and completion records.
    counter_select, counter_read, counter_done, counter_value, maximum_select, maximum_value : Out, In
        Ports of the counter window, see `Csr`.
    events : Out
        Counter events of this component (EVENT_LAYOUT).
    status : Out
        Value of register STATUS.
    trap_tag : Out
        Tag of the trap that `events.traps` counts.
    gated : Out
        High if cycles are counted only while a macro-instruction is in flight.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        super().__init__(control_ports(config))

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        config = self.config
        m.submodules.axilite = axilite = AxiLite()
        m.submodules.csr = csr = host_registers(config)
        m.submodules.table = table = DispatchTable(entries=config.opcodes * config.candidates)
        m.submodules.ring = ring = RingFetch(config)
        m.submodules.dispatch = dispatch = config.variant(Dispatch, PipelinedDispatch)(config)
        m.submodules.completion = completion = Completion(config)
        m.submodules.traps = traps = Traps(pipelined=config.pipelined)
        self._registers(m, axilite, csr)
        m.submodules.store = store = ProgramStore(config)
        self._store(m, csr, dispatch, store)
        self._dispatch(m, csr, ring, table, dispatch, completion, traps)
        self._completion(m, csr, ring, dispatch, completion, traps)
        self._traps(m, csr, store, ring, dispatch, completion, traps)
        m.d.sync += self.cycle.eq(self.cycle + 1)
        settled = traps.enable | traps.trapped  # otherwise a trap is pending
        m.d.comb += [
            self.status.eq(
                Cat(
                    (completion.tail == csr.ring_head) & settled,
                    traps.trapped,
                    dispatch.running,
                    store.busy,
                    table.busy,
                )
            ),
            csr.status.eq(optional_register(m, "status_held", self.status, config.pipelined)),
            csr.irq_set.eq(Cat(completion.irq, traps.event, store.irq_check, store.irq_error)),
            self.events.dispatch_first.eq(dispatch.first),
            self.events.dispatch_other.eq(dispatch.other),
            self.events.traps.eq(traps.event),
            self.trap_tag.eq(traps.record.tag),
        ]
        return m

    def _registers(self, m: Module, axilite: AxiLite, csr: Csr) -> None:
        join_lite_pins(m, self, axilite)
        connect(m, axilite.write, csr.write)
        connect(m, axilite.read, csr.read)
        m.d.comb += [
            axilite.write_bad.eq(csr.write_bad),
            axilite.read_data.eq(csr.read_data),
            axilite.read_bad.eq(csr.read_bad),
            csr.cycle.eq(self.cycle),
            self.irq.eq(csr.irq),
            self.step_limit.eq(csr.step_limit),
            self.windows.eq(csr.windows),
            self.counter_select.eq(csr.counter_select),
            self.counter_read.eq(csr.counter_read),
            csr.counter_done.eq(self.counter_done),
            csr.counter_value.eq(self.counter_value),
            self.maximum_select.eq(csr.maximum_select),
            csr.maximum_value.eq(self.maximum_value),
            *([csr.limit.eq(self.limit)] if self.config.serial_commands else []),
        ]

    def _store(self, m: Module, csr: Csr, dispatch: Dispatch, store: ProgramStore) -> None:
        connect(m, csr.segment_op, store.op)
        connect(m, store.ar, flipped(self.loader_ar))
        connect(m, flipped(self.loader_r), store.r)
        m.d.comb += [
            store.fetch_addr.eq(self.fetch_addr),
            store.fetch_en.eq(self.fetch_en),
            self.fetch_data.eq(store.fetch_data),
            store.core_index.eq(self.seg_index),
            self.seg_info.eq(store.core_info),
            store.dispatch_index.eq(dispatch.lookup_index),
            dispatch.lookup_info.eq(store.dispatch_info),
            store.in_use.eq(self.in_use),
            store.claim.eq(dispatch.claim),
            store.claim_segment.eq(dispatch.claim_segment),
            store.select.eq(csr.segment_select),
            csr.segment_status.eq(store.segment_status),
            csr.loader_error.eq(store.error),
            self.events.wis_words.eq(store.written),
            self.events.wis_loads.eq(store.loaded),
        ]

    def _dispatch(
        self,
        m: Module,
        csr: Csr,
        ring: RingFetch,
        table: DispatchTable,
        dispatch: Dispatch,
        completion: Completion,
        traps: Traps,
    ) -> None:
        connect(m, csr.table_op, table.op)
        connect(m, ring.ar, flipped(self.fetch_ar))
        connect(m, flipped(self.fetch_r), ring.r)
        connect(m, ring.macro, dispatch.macro)
        connect(m, dispatch.start, flipped(self.start))
        m.d.comb += [
            self.gated.eq(csr.gated),
            ring.enable.eq(csr.control),
            ring.base.eq(csr.ring_base),
            ring.log2.eq(csr.ring_log2),
            ring.head.eq(csr.ring_head),
            ring.operand_addr.eq(Mux(dispatch.operand_taken, dispatch.operand_addr, self.operand_addr)),
            self.operand_data.eq(ring.operand_data),
            dispatch.operand_data.eq(ring.operand_data),
            table.hold.eq(dispatch.table_hold),
            table.addr.eq(dispatch.table_addr),
            table.en.eq(dispatch.table_en),
            dispatch.table_entry.eq(table.entry),
            dispatch.table_ready.eq(table.ready),
            dispatch.statistics.eq(self.statistics),
            dispatch.halted.eq(self.halted),
            dispatch.clear.eq(traps.flush),
            dispatch.enable.eq(csr.control & traps.enable & ~completion.full),
        ]

    def _completion(
        self, m: Module, csr: Csr, ring: RingFetch, dispatch: Dispatch, completion: Completion, traps: Traps
    ) -> None:
        connect(m, completion.aw, flipped(self.record_aw))
        connect(m, completion.w, flipped(self.record_w))
        connect(m, flipped(self.record_b), completion.b)
        m.d.comb += [
            completion.push.eq(dispatch.push),
            completion.halt.eq(self.halted & dispatch.running),
            completion.steps.eq(Mux(dispatch.running, self.steps, 0)),
            completion.issued.eq(self.issued),
            completion.retired.eq(self.retired),
            completion.flush.eq(traps.flush),
            completion.cause.eq(traps.cause),
            completion.cycle.eq(self.cycle),
            completion.base.eq(csr.ring_base),
            completion.mask.eq(ring.mask),
            csr.tail.eq(completion.tail),
        ]

    def _traps(
        self,
        m: Module,
        csr: Csr,
        store: ProgramStore,
        ring: RingFetch,
        dispatch: Dispatch,
        completion: Completion,
        traps: Traps,
    ) -> None:
        m.d.comb += [
            traps.core.eq(self.trap),
            traps.dispatch.eq(dispatch.trap),
            traps.in_use.eq(store.trap),
            traps.load_error.eq(self.load_error),
            traps.store_error.eq(self.store_error),
            traps.record_error.eq(completion.error),
            traps.stuck.eq(self.stuck),
            traps.idle.eq(self.idle),
            traps.busy.eq(self.busy),
            traps.program_running.eq(dispatch.running),
            traps.core_blocked.eq(self.core_blocked),
            traps.core_pc.eq(self.core_pc),
            traps.blocked_pc.eq(self.blocked_pc),
            traps.core_segment.eq(self.core_segment),
            traps.core_tag.eq(self.core_tag),
            traps.macro.eq(dispatch.start.p.macro),
            traps.dispatch_idle.eq(dispatch.waiting & (~ring.more | completion.full)),
            traps.flight_empty.eq(completion.empty),
            traps.flight_waiting.eq(completion.waiting),
            traps.oldest.eq(completion.oldest),
            traps.progress.eq(completion.progress),
            traps.watchdog.eq(csr.watchdog),
            traps.resume.eq(csr.resume),
            csr.trap.eq(traps.record),
            csr.trap_count.eq(traps.count),
            self.stop.eq(traps.stop),
            self.flush.eq(traps.flush),
            self.abort.eq(traps.abort),
        ]
