"""Attribution of each cycle of the array to exactly one cause."""

from amaranth.hdl import Elaboratable, Module
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.isa.counters import CAUSES
from hw.isa.enums import Unit

#: Inputs of the classification; all are values in the current cycle.
STATE_LAYOUT = data.StructLayout(
    {
        "row_entering": 1,  # high if a row enters the array
        "wait_weights": 1,  # high if a tile cannot start, because weight reads were refused
        "weight_shift": 1,  # high if a tile cannot start, because its weights have not arrived
        "in_flight": 1,  # high if rows are in the array or between the array and the accumulator
        "head_queued": 1,  # high if a MATRIX command waits in the queue
        "head_waits": 4,  # producers for whose tokens the head of the queue waits
        "program_runs": 1,  # high if the sequencer executes instructions
        "program_blocked": 1,  # high if the running program waits for a semaphore, a fence or a full queue
        "fuse_busy": 1,
        "dma_busy": 1,  # high if LOAD or STORE has work
        "macro_in_flight": 1,  # high if a macro-instruction is fetched, running or not completed
    }
)


class StallCause(wiring.Component):
    """Selects, combinationally, the first cause that applies.

    The order is: the state of the array; the semaphores for which the head of the MATRIX queue waits; without a
    command, the component for which the machine waits. Causes wait_activations and wait_accumulator never occur: the
    scratchpad always grants MATRIX its activations, and the accumulator forwards updates.

    Members
    -------
    state : In
        State of the array in this cycle (STATE_LAYOUT).
    cause : Out
        One bit for each of hw.isa.counters.CAUSES, exactly one set.
    """

    state: In(STATE_LAYOUT)
    cause: Out(data.StructLayout(dict.fromkeys(CAUSES, 1)))

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        s, waits = self.state, self.state.head_waits
        dma_waits = waits[Unit.LOAD] | waits[Unit.STORE]
        choices = (
            (s.row_entering, "useful"),
            (s.wait_weights, "wait_weights"),
            (s.weight_shift, "weight_shift"),
            (s.head_queued & waits[Unit.FUSE], "wait_fuse"),
            (s.head_queued & dma_waits, "wait_bus"),
            (s.in_flight, "fill_drain"),
            (s.head_queued, "fill_drain"),
            (s.program_runs & ~s.program_blocked, "wait_sequencer"),
            (s.fuse_busy, "wait_fuse"),
            (s.dma_busy, "wait_bus"),
            (s.macro_in_flight, "wait_sequencer"),
        )
        with m.If(choices[0][0]):
            m.d.comb += self.cause.useful.eq(1)
        for condition, cause in choices[1:]:
            with m.Elif(condition):
                m.d.comb += self.cause[cause].eq(1)
        with m.Else():
            m.d.comb += self.cause.idle.eq(1)
        return m
