"""Top level of the machine: sequencer, queues, units and counters between the AXI pins."""

from amaranth.hdl import Cat, Elaboratable, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import Out, connect

from hw.bus.axi import AxiMaster, drive_pins, pin_members
from hw.bus.axi_arbiter import ReadArbiter, WriteArbiter
from hw.bus.axi_lite import join_lite_pins, lite_pins
from hw.config import MlaConfig
from hw.control.control import Control
from hw.counters.event_router import EventRouter
from hw.datapath import MATRIX_STATE, Datapath
from hw.isa.enums import Unit
from hw.layouts import limit_ports
from hw.lib.pipeline import pipeline_domain
from hw.sequencer.core import PULSES, Core
from hw.sequencer.semaphores import Semaphores
from hw.units.command_queue import CommandQueue, command_queue

Queues = list[CommandQueue]


def chip_ports(config: MlaConfig) -> dict[str, wiring.Member]:
    """Return the ports of the chip by name, as the members of its signature.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    """
    return pin_members(config) | lite_pins() | {"irq": Out(1)}


class Chip(wiring.Component):
    """Top level of the design.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    m_axi_* : Out, In
        Pins of the AXI4 master for DRAM. The data bus is n bytes wide.
    s_axil_* : In, Out
        Pins of the AXI4-Lite slave; `hw.bus.register_map` lists its registers.
    irq : Out
        Interrupt pin, level-sensitive and active high.
    """

    def __init__(self, config: MlaConfig):
        self._config = config
        super().__init__(chip_ports(config))

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.control = control = Control(self._config)
        m.submodules.core = core = Core(self._config)
        m.submodules.datapath = datapath = Datapath(self._config)
        m.submodules.semaphores = semaphores = Semaphores(pipelined=self._config.pipelined)
        m.submodules.meter = meter = EventRouter(self._config)
        queues = [command_queue(unit, self._config) for unit in Unit]
        for unit, queue in zip(Unit, queues, strict=True):
            m.submodules[f"{unit.name.lower()}_queue"] = queue
            self._queue(m, unit, queue, core, datapath, semaphores, control, meter)
        self._program(m, control, core, semaphores, queues, meter)
        self._faults(m, control, datapath, queues)
        self._results(m, control, core, datapath)
        self._bus(m, control, datapath)
        self._counters(m, control, core, datapath, queues, meter)
        join_lite_pins(m, self, control)
        m.d.comb += self.irq.eq(control.irq)
        return m

    def _queue(
        self,
        m: Module,
        unit: Unit,
        queue: CommandQueue,
        core: Core,
        datapath: Datapath,
        semaphores: Semaphores,
        control: Control,
        meter: EventRouter,
    ) -> None:
        """Connect a unit's queue to the sequencer and the unit."""
        name = unit.name.lower()
        engine = getattr(datapath, name)
        may_start = meter.may_start[unit]
        connect(m, getattr(core, name), queue.input)
        connect(m, queue.semaphores, semaphores.units[unit])
        m.d.comb += [
            engine.payload.eq(queue.output.payload),
            queue.visible.eq(datapath.visible[unit]),
            queue.done.eq(datapath.done[unit]),
            queue.flush.eq(control.flush),
            queue.word_valid.eq(core.word_valid[unit]),
            queue.word.eq(core.word),
        ]
        queue.connect_engine(m, engine, may_start)

    def _program(
        self,
        m: Module,
        control: Control,
        core: Core,
        semaphores: Semaphores,
        queues: Queues,
        meter: EventRouter,
    ) -> None:
        """Connect the control side, which starts programs, to the core."""
        may_start = Signal()
        fits = meter.ready & (~meter.seq_hold | (control.start.payload.tag == core.tag))
        late = pipeline_domain(m, self._config.pipelined)
        late += may_start.eq(fits & control.start.valid if self._config.pipelined else fits)
        m.d.comb += [
            core.start.payload.eq(control.start.payload),
            core.start.valid.eq(control.start.valid & may_start),
            control.start.ready.eq(core.start.ready & may_start),
            core.tag_hold.eq(meter.seq_hold),
        ]
        outputs = ("fetch_addr", "fetch_en", "operand_addr", "seg_index", "in_use", "halted", "steps", "trap")
        for name in (*outputs, "blocked_pc", *limit_ports(self._config, requests=True)):
            m.d.comb += getattr(control, name).eq(getattr(core, name))
        for name in ("fetch_data", "operand_data", "seg_info", "stop", "step_limit", "windows"):
            m.d.comb += getattr(core, name).eq(getattr(control, name))
        m.d.comb += [
            control.core_blocked.eq(core.blocked),
            control.core_pc.eq(core.pc),
            control.core_segment.eq(core.segment),
            control.core_tag.eq(core.tag),
            core.clear.eq(control.flush),
            semaphores.clear.eq(control.flush),
            semaphores.seq_take.eq(core.seq_take),
        ]
        late = pipeline_domain(m, self._config.pipelined)
        # Instructions are far enough apart that each observes the tokens and commands of the previous one.
        late += [
            core.seq_tokens.eq(semaphores.seq_tokens),
            core.unit_idle.eq(Cat(queue.idle for queue in queues)),
        ]

    def _faults(self, m: Module, control: Control, datapath: Datapath, queues: Queues) -> None:
        m.d.comb += [
            control.issued.eq(Cat(queue.input.valid & queue.input.ready for queue in queues)),
            control.retired.eq(Cat(queue.retired for queue in queues)),
            datapath.abort.eq(control.abort),
        ]
        # A delay is permitted, because deadlock conditions must hold for several cycles in any case.
        late = pipeline_domain(m, self._config.pipelined)
        late += [
            control.idle.eq(Cat(queue.idle for queue in queues)),
            control.stuck.eq(Cat(queue.stuck for queue in queues)),
        ]
        busy: dict[Unit, Value] = {unit: ~queue.stuck for unit, queue in zip(Unit, queues, strict=True)}
        busy[Unit.LOAD], busy[Unit.STORE] = datapath.dma_busy[0], datapath.dma_busy[1]
        late += control.busy.eq(Cat(busy[unit] for unit in Unit))
        for name in ("load", "store"):
            error = getattr(control, f"{name}_error")
            m.d.comb += [
                error.valid.eq(getattr(datapath, f"{name}_error")),
                error.address.eq(getattr(datapath, f"{name}_error_addr")),
            ]

    def _results(self, m: Module, control: Control, core: Core, datapath: Datapath) -> None:
        for target in (core.statistics, control.statistics):
            m.d.comb += [target[name].eq(datapath.results[name]) for name in datapath.results.shape().members]
            m.d.comb += target.cycle.eq(control.cycle)

    def _bus(self, m: Module, control: Control, datapath: Datapath) -> None:
        m.submodules.reads = reads = ReadArbiter(self._config)
        m.submodules.writes = writes = WriteArbiter(self._config)
        bus = AxiMaster(self._config).create(path=("bus",))
        connect(m, datapath.ar, reads.load_ar)
        connect(m, reads.load_r, datapath.r)
        for name in ("fetch", "loader"):
            connect(m, getattr(control, f"{name}_ar"), getattr(reads, f"{name}_ar"))
            connect(m, getattr(reads, f"{name}_r"), getattr(control, f"{name}_r"))
        connect(m, datapath.aw, writes.store_aw)
        connect(m, datapath.w, writes.store_w)
        connect(m, writes.store_b, datapath.b)
        connect(m, control.record_aw, writes.record_aw)
        connect(m, control.record_w, writes.record_w)
        connect(m, writes.record_b, control.record_b)
        for channel, arbiter in (("ar", reads), ("r", reads), ("aw", writes), ("w", writes), ("b", writes)):
            outer, inner = getattr(bus, channel), getattr(arbiter, channel)
            source, target = (outer, inner) if channel in ("r", "b") else (inner, outer)
            m.d.comb += [
                target.valid.eq(source.valid),
                target.payload.eq(source.payload),
                source.ready.eq(target.ready),
            ]
        drive_pins(m, self._config, self, bus)

    def _counters(
        self, m: Module, control: Control, core: Core, datapath: Datapath, queues: Queues, meter: EventRouter
    ) -> None:
        for unit, queue in zip(Unit, queues, strict=True):
            name, state = unit.name.lower(), meter.units[unit]
            active, begins = getattr(datapath, f"{name}_active"), getattr(datapath, name).valid
            m.d.comb += [
                state.active.eq(queue.engine_active(active, begins)),
                state.tag.eq(getattr(datapath, f"{name}_tag")),
                state.queued.eq(queue.queued != 0),
                state.started.eq(queue.started),
                state.next_tag.eq(queue.output.payload.meta.tag),
                state.retired.eq(queue.retired),
                state.retired_tag.eq(queue.retired_tag),
                getattr(meter, f"{name}_events").eq(getattr(datapath, f"{name}_events")),
            ]
        state, matrix_queue, seq = meter.state, queues[Unit.MATRIX], meter.seq_events
        m.d.comb += [
            meter.fuse_out_events.eq(datapath.fuse_out_events),
            meter.seq_tag.eq(core.tag),
            meter.counting.eq(~control.gated | ~control.status[0]),
            datapath.tag_busy.eq(meter.dma_busy),
        ]
        # With `pipelined`, the state of the array is valid one cycle later.
        late = pipeline_domain(m, self._config.pipelined)
        late += [
            *(state[name].eq(datapath.matrix_state[name]) for name in MATRIX_STATE),
            state.head_queued.eq(matrix_queue.queued != 0),
            state.head_waits.eq(matrix_queue.head_waits),
            state.program_runs.eq(core.running),
            state.program_blocked.eq(core.blocked),
            state.fuse_busy.eq(~queues[Unit.FUSE].idle),
            state.dma_busy.eq(~queues[Unit.LOAD].idle | ~queues[Unit.STORE].idle),
            state.macro_in_flight.eq(~control.status[0]),
        ]
        m.d.comb += [seq[name].eq(datapath.sp_events[name]) for name in datapath.sp_events.shape().members]
        self._dispatches(m, control, core, meter)
        m.d.comb += [
            *(seq[name].eq(getattr(core, name)) for name in PULSES),
            seq.acc_reads.eq(datapath.acc_reads),
            seq.acc_conflicts.eq(datapath.acc_conflicts),
            meter.select.eq(control.counter_select),
            meter.read.eq(control.counter_read),
            control.counter_done.eq(meter.done),
            control.counter_value.eq(meter.value),
        ]
        m.d.comb += meter.units[Unit.MATRIX].tagged.eq(datapath.matrix_tagged)
        with m.Switch(control.maximum_select):
            with m.Case(0):
                m.d.comb += control.maximum_value.eq(datapath.in_flight_max)
            with m.Case(1):
                m.d.comb += control.maximum_value.eq(datapath.latency_max)

    def _dispatches(self, m: Module, control: Control, core: Core, meter: EventRouter) -> None:
        """Count a dispatch in the cycle in which the program's tag becomes the sequencer's tag."""
        first, other, begun = Signal(), Signal(), Signal()
        m.d.sync += [
            begun.eq(core.start.valid & core.start.ready),
            first.eq(control.events.dispatch_first | (first & ~begun)),
            other.eq(control.events.dispatch_other | (other & ~begun)),
        ]
        m.d.comb += [
            meter.seq_events.dispatch_first.eq(first & begun),
            meter.seq_events.dispatch_other.eq(other & begun),
            meter.seq_events.macros.eq(begun),
            meter.seq_events.wis_words.eq(control.events.wis_words),
            meter.seq_events.wis_loads.eq(control.events.wis_loads),
            meter.trap_events.traps.eq(control.events.traps),
            meter.trap_tag.eq(control.trap_tag),
        ]
