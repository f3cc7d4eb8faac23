"""Deadlock and watchdog detection."""

from amaranth.hdl import Elaboratable, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.isa.enums import Unit
from hw.lib.pipeline import pipeline_domain


class Watchdog(wiring.Component):
    """Detects deadlock and expiry of the watchdog, and determines when the machine has stopped.

    Latency: conditions must hold for `settle` cycles; with `pipelined`, a deadlock is reported one cycle later.
    Throughput: not applicable.

    Parameters
    ----------
    settle : int
        Number of cycles without a change after which no signal is still in a pipeline register.
    pipelined : int
        Option `pipelined` of MlaConfig, 0 or 1.

    Members
    -------
    stuck, idle, busy, program_running, core_blocked, dispatch_idle : In
        State of units and control, as for `Traps`.
    flight_empty, flight_waiting, progress, limit : In
        State of macro-instructions, and limit of the watchdog, as for `Traps`.
    running, counting, aborting : In
        Modes: high if a deadlock may be reported; high if the watchdog counts; high while the machine is being aborted.
    still : Out
        High if all units have been stuck (while aborting: not busy) for `settle` cycles.
    deadlock : Out
        High if the machine is in a deadlock, in which no action is possible without the host.
    expired : Out
        One-cycle pulse when the limit of the watchdog is reached.
    """

    stuck: In(len(Unit))
    idle: In(len(Unit))
    busy: In(len(Unit))
    program_running: In(1)
    core_blocked: In(1)
    dispatch_idle: In(1)
    flight_empty: In(1)
    flight_waiting: In(1)
    progress: In(1)
    limit: In(32)
    running: In(1)
    counting: In(1)
    aborting: In(1)
    still: Out(1)
    deadlock: Out(1)
    expired: Out(1)

    def __init__(self, *, settle: int, pipelined: int = 0):
        self.settle, self._late = settle, pipelined
        super().__init__()

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        quiet, blocked, dead = Signal(), Signal(), Signal()
        domain = pipeline_domain(m, self._late)
        domain += self.deadlock.eq(dead)
        m.d.comb += [
            quiet.eq((self.stuck.all() & ~self.aborting) | (~self.busy.any() & self.aborting)),
            blocked.eq(
                self.running
                & self.stuck.all()
                & (
                    (self.program_running & self.core_blocked)
                    | (self.dispatch_idle & self.flight_waiting & ~self.idle.all())
                )
            ),
        ]
        self._hold(m, "still", quiet & ~self.running, self.still)
        self._hold(m, "deadlock", blocked, dead)
        cycles, reached, restart = Signal(32), Signal(), Signal()
        m.d.comb += restart.eq(self.flight_empty | self.progress | ~self.counting | self.expired)
        # A completion in the cycle in which the limit is reached prevents the expiry.
        m.d.comb += self.expired.eq(reached & self.counting & ~self.flight_empty)
        # This condition is registered for speed; a restart clears it together with the count.
        m.d.sync += reached.eq((cycles >= self.limit) & (self.limit != 0) & ~restart)
        with m.If(restart):
            m.d.sync += cycles.eq(0)
        with m.Else():
            m.d.sync += cycles.eq(cycles + 1)
        return m

    def _hold(self, m: Module, name: str, condition: Signal, outcome: Signal) -> None:
        """Drive `outcome`, which rises when `condition` has held for `settle` cycles."""
        count = Signal(range(self.settle + 1), name=f"{name}_count")
        with m.If(~condition):
            m.d.sync += count.eq(0)
        with m.Elif(count != self.settle):
            m.d.sync += count.eq(count + 1)
        m.d.comb += outcome.eq(condition & (count == self.settle))
