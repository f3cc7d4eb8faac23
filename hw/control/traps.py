"""Trap control: stops the machine, clears it and records the cause."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.control.layouts import BUS_ERROR_LAYOUT, IN_USE_TRAP_LAYOUT, NO_SEGMENT, OLDEST_LAYOUT
from hw.control.watchdog import Watchdog
from hw.isa.enums import Trap, Unit
from hw.layouts import PC_BITS, TRAP_LAYOUT

#: Number of cycles for which all units must have been idle or blocked before the machine counts as stopped; a semaphore
#: signal takes a few cycles to reach the head of a queue.
SETTLE = 16


class Traps(wiring.Component):
    """Handles a trap from its first event to RESUME, in these states:

    - RUN: monitoring for traps.
    - DRAIN, after an exact trap: commands issued before the trap run until every unit is stuck.
    - ABORT, after a bus error or the watchdog: the core is stopped, and units complete their bus transfers without
      effect.
    - FLUSH, one cycle: queues, semaphores, core and dispatch are cleared.
    - RECORDS: completion records of macro-instructions in flight are written.
    - TRAPPED: the trap has been recorded and the interrupt raised; the machine waits for RESUME.

    A bus error or the watchdog replaces an exact trap that waits in DRAIN. WIS_IN_USE does not stop the machine. It is
    counted, and it raises the interrupt; it is recorded only in RUN and DRAIN, so it never replaces the record of a
    trap that waits for RESUME.

    Latency: SETTLE cycles from the last event of a unit to FLUSH; with `pipelined`, one more cycle after a deadlock.
    Throughput: one trap at a time.

    Parameters
    ----------
    pipelined : int
        Option `pipelined` of MlaConfig, 0 or 1.

    Members
    -------
    core, dispatch : In
        Exact traps of core and dispatch, held until `flush`.
    in_use : In
        One-cycle pulse when a change to a segment in use is refused.
    errors : In
        Bus errors of LOAD, STORE and the completion records (`load_error`, `store_error`, `record_error`).
    stuck, idle, busy : In
        One bit for each unit, high if: no command is started, and the queue is empty or its head cannot start
        (`stuck`); no command is queued or started (`idle`); the engine is active or waits for the bus (`busy`, only
        used in ABORT).
    program_running, core_blocked, core_pc, blocked_pc, core_segment, core_tag, macro : In
        State of the running program.
    dispatch_idle : In
        High if no macro-instruction is being looked up and none can be, because the ring is empty or the maximum number
        is in flight.
    flight_empty, flight_waiting, oldest, progress : In
        State of the macro-instructions in flight.
    watchdog : In
        Maximum number of cycles without a completion; 0: no limit.
    resume : In
        Request from the host to continue.
    enable : Out
        High if a dispatch may begin.
    stop, abort, flush : Out
        `stop` freezes the core, from the cycle before `abort` to the end of `abort`; `abort` goes to the units; `flush`
        goes to the queues, semaphores, core, dispatch and completion.
    cause : Out
        Cause for the completion records, valid from FLUSH to the last record.
    trapped, record, count, event : Out
        High if the machine waits for RESUME; record of the last trap; number of traps since reset; one-cycle pulse for
        each trap.
    """

    core: In(TRAP_LAYOUT)
    dispatch: In(TRAP_LAYOUT)
    in_use: In(IN_USE_TRAP_LAYOUT)
    load_error: In(BUS_ERROR_LAYOUT)
    store_error: In(BUS_ERROR_LAYOUT)
    record_error: In(BUS_ERROR_LAYOUT)
    stuck: In(len(Unit))
    idle: In(len(Unit))
    busy: In(len(Unit))
    program_running: In(1)
    core_blocked: In(1)
    core_pc: In(PC_BITS)
    blocked_pc: In(PC_BITS)
    core_segment: In(8)
    core_tag: In(6)
    macro: In(32)
    dispatch_idle: In(1)
    flight_empty: In(1)
    flight_waiting: In(1)
    oldest: In(OLDEST_LAYOUT)
    progress: In(1)
    watchdog: In(32)
    resume: In(1)
    enable: Out(1)
    stop: Out(1)
    abort: Out(1)
    flush: Out(1)
    cause: Out(5)
    trapped: Out(1)
    record: Out(TRAP_LAYOUT)
    count: Out(32)
    event: Out(1)

    def __init__(self, *, pipelined: int = 0):
        self._late = pipelined
        super().__init__()

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.watch = watch = Watchdog(settle=SETTLE, pipelined=self._late)
        held, report = Signal(TRAP_LAYOUT), Signal()
        running, draining, aborting = Signal(), Signal(), Signal()
        m.d.comb += [
            watch.stuck.eq(self.stuck),
            watch.idle.eq(self.idle),
            watch.busy.eq(self.busy),
            watch.program_running.eq(self.program_running),
            watch.core_blocked.eq(self.core_blocked),
            watch.dispatch_idle.eq(self.dispatch_idle),
            watch.flight_empty.eq(self.flight_empty),
            watch.flight_waiting.eq(self.flight_waiting),
            watch.progress.eq(self.progress),
            watch.limit.eq(self.watchdog),
            watch.running.eq(running),
            watch.counting.eq(running | draining),
            watch.aborting.eq(aborting),
            self.cause.eq(held.cause),
            self.enable.eq(running),
        ]
        imprecise = self._imprecise(m, watch)
        with m.FSM(name="trap") as fsm:
            m.d.comb += [
                running.eq(fsm.ongoing("RUN")),
                draining.eq(fsm.ongoing("DRAIN")),
                aborting.eq(fsm.ongoing("ABORT")),
                self.trapped.eq(fsm.ongoing("TRAPPED")),
                self.stop.eq(aborting),
            ]
            # These flags depend on the next state and are registered, because they are distributed to the whole
            # machine.
            m.d.sync += [self.abort.eq(self.stop), self.flush.eq(0)]
            with m.State("RUN"):
                with m.If(imprecise.valid):
                    m.d.sync += held.eq(imprecise)
                    m.d.comb += self.stop.eq(1)
                    m.next = "ABORT"
                with m.Elif(self.core.valid | self.dispatch.valid):
                    m.d.sync += held.eq(Mux(self.core.valid, self.core.as_value(), self.dispatch.as_value()))
                    m.next = "DRAIN"
                with m.Elif(watch.deadlock):
                    self._deadlock(m, held)
                    self._flush(m)
            with m.State("DRAIN"):
                with m.If(imprecise.valid):
                    m.d.sync += held.eq(imprecise)
                    m.d.comb += self.stop.eq(1)
                    m.next = "ABORT"
                with m.Elif(watch.still):
                    self._flush(m)
            with m.State("ABORT"), m.If(watch.still):
                self._flush(m)
            with m.State("FLUSH"):
                m.next = "RECORDS"
            with m.State("RECORDS"), m.If(self.flight_empty):
                m.d.comb += report.eq(1)
                m.next = "TRAPPED"
            with m.State("TRAPPED"), m.If(self.resume):
                m.next = "RUN"
        self._record(m, held, report, running | draining)
        return m

    def _flush(self, m: Module) -> None:
        m.d.comb += self.stop.eq(1)
        m.d.sync += self.flush.eq(1)
        m.next = "FLUSH"

    def _imprecise(self, m: Module, watch: Watchdog) -> data.View:
        """Return the trap record for a bus error or the expiry of the watchdog in this cycle, with `valid` set if there
        is one.
        """
        trap = Signal(TRAP_LAYOUT)
        m.d.comb += [
            trap.segment.eq(NO_SEGMENT),
            trap.macro.eq(self.oldest.number),
            trap.valid.eq(
                self.load_error.valid | self.store_error.valid | self.record_error.valid | watch.expired
            ),
        ]
        with m.If(self.program_running):
            m.d.comb += [
                trap.pc.eq(self.core_pc),
                trap.segment.eq(self.core_segment),
                trap.tag.eq(self.core_tag),
            ]
        with m.If(self.load_error.valid):
            m.d.comb += [trap.cause.eq(int(Trap.BUS_READ)), trap.address.eq(self.load_error.address)]
        with m.Elif(self.store_error.valid):
            m.d.comb += [trap.cause.eq(int(Trap.BUS_WRITE)), trap.address.eq(self.store_error.address)]
        with m.Elif(self.record_error.valid):
            m.d.comb += [trap.cause.eq(int(Trap.BUS_WRITE)), trap.address.eq(self.record_error.address)]
        with m.Else():
            m.d.comb += trap.cause.eq(int(Trap.WATCHDOG))
        return trap

    def _deadlock(self, m: Module, held: data.View) -> None:
        m.d.sync += [held.cause.eq(int(Trap.DEADLOCK)), held.address.eq(0)]
        with m.If(self.program_running):
            m.d.sync += [
                held.pc.eq(self.blocked_pc),
                held.segment.eq(self.core_segment),
                held.tag.eq(self.core_tag),
                held.macro.eq(self.macro),
            ]
        with m.Else():
            m.d.sync += [
                held.pc.eq(0),
                held.segment.eq(self.oldest.program),
                held.tag.eq(self.oldest.tag),
                held.macro.eq(self.oldest.number),
            ]

    def _record(self, m: Module, held: data.View, report: Signal, quiet: Signal) -> None:
        refused = Signal(IN_USE_TRAP_LAYOUT)
        m.d.sync += self.event.eq(0)
        with m.If(report):
            m.d.sync += [self.record.eq(held), self.event.eq(1), self.count.eq(self.count + 1)]
        with m.Elif(refused.valid):
            m.d.sync += [self.event.eq(1), self.count.eq(self.count + 1), refused.valid.eq(0)]
            with m.If(quiet):
                m.d.sync += [
                    self.record.cause.eq(int(Trap.WIS_IN_USE)),
                    self.record.pc.eq(0),
                    self.record.segment.eq(refused.segment),
                    self.record.tag.eq(0),
                    self.record.macro.eq(0),
                    self.record.address.eq(refused.address),
                ]
        with m.If(self.in_use.valid):
            m.d.sync += refused.eq(self.in_use)
