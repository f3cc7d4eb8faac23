"""Dispatch, which chooses the program of each macro-instruction and starts it."""

from collections.abc import Callable
from itertools import pairwise

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, Value, ValueLike
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.control.dispatch_guard import DispatchGuard
from hw.control.layouts import ENTRY_LAYOUT, MACRO_LAYOUT, NO_SEGMENT, PUSH_LAYOUT
from hw.isa.enums import Compare, Trap
from hw.isa.macro_instruction import MAGIC
from hw.isa.micro_instruction import MAX_OPERANDS
from hw.layouts import SEGMENT_LAYOUT, START_LAYOUT, STATISTICS_LAYOUT, TRAP_LAYOUT


class Lookup:
    """Registers of one look-up."""

    def __init__(self, candidate_bits: int):
        self.entry = Signal(ENTRY_LAYOUT)
        self.candidate = Signal(candidate_bits)
        #: Candidate requested in this cycle.
        self.asked = Signal(candidate_bits)
        #: High if the look-up ended in a trap in the previous cycle.
        self.trapped = Signal()
        self.cause, self.segment, self.address = Signal(5), Signal(8), Signal(32)


class Dispatch(wiring.Component):
    """Dispatches macro-instructions one at a time: looks up the candidates of the opcode in order, starts the first
    candidate whose guard holds, and releases the macro-instruction when its program ends.

    A look-up begins after the previous program has halted, so that guards observe its statistics. The chosen segment is
    claimed from the cycle in which its state is evaluated until the program ends.

    Latency: 3 cycles from `macro` to `start` if the first candidate is chosen without a guard, 6 with a guard; each
    candidate before the chosen one takes 2 cycles if it is not valid, else 4. Throughput: one macro-instruction at a
    time.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses `opcodes` and `candidates`.

    Members
    -------
    macro : In
        Macro-instructions to run; the transfer takes place when the program ends.
    enable : In
        High if a dispatch may begin and a program may start.
    table_hold, table_addr, table_en : Out, table_entry, table_ready : In
        Look-up port of the dispatch table.
    operand_taken, operand_addr : Out, operand_data : In
        Read port of the operand buffer, which the guard uses while `operand_taken` is high.
    statistics : In
        Statistics that guards compare.
    lookup_index : Out, lookup_info : In
        Look-up port of the segment table.
    claim, claim_segment : Out
        High if a segment is claimed, so that its state must not change; index of this segment.
    start : Out
        Programs for the core to run.
    halted : In
        High if the core's program has ended.
    push : Out
        One-cycle pulse when a macro-instruction begins, either because its program starts or because its dispatch
        traps.
    running : Out
        High if a program has been started and has not ended.
    waiting : Out
        High if no macro-instruction is being looked up or run.
    trap : Out
        Trap of a dispatch, held until `clear`.
    clear : In
        After a trap: ends a macro-instruction that has been pushed and discards all other state. An offer on `start`
        that the core has not accepted yet is withdrawn, which happens in no other case.
    first, other : Out
        Counter events: the program of the first candidate has started; the program of a later candidate has started.
    """

    #: States from the choice of a segment to the state before `CLAIM`; the segment is claimed in these states.
    _CLAIM_STATES: tuple[str, ...] = ()
    #: States from the read of the value that a guard compares to the state before `COMPARE`.
    _VALUE_STATES: tuple[str, ...] = ("VALUE",)

    def __init__(self, config: MlaConfig):
        self.config = config
        self.candidate_bits = (config.candidates - 1).bit_length()
        self.index_bits = (config.opcodes - 1).bit_length() + self.candidate_bits
        super().__init__(
            {
                "macro": In(stream.Signature(MACRO_LAYOUT)),
                "enable": In(1),
                "table_hold": Out(1),
                "table_addr": Out(self.index_bits),
                "table_en": Out(1),
                "table_entry": In(ENTRY_LAYOUT),
                "table_ready": In(1),
                "operand_taken": Out(1),
                "operand_addr": Out(6),
                "operand_data": In(32),
                "statistics": In(STATISTICS_LAYOUT),
                "lookup_index": Out(8),
                "lookup_info": In(SEGMENT_LAYOUT),
                "claim": Out(1),
                "claim_segment": Out(8),
                "start": Out(stream.Signature(START_LAYOUT)),
                "halted": In(1),
                "push": Out(PUSH_LAYOUT),
                "running": Out(1),
                "waiting": Out(1),
                "trap": Out(TRAP_LAYOUT),
                "clear": In(1),
                "first": Out(1),
                "other": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.guard = guard = DispatchGuard(self.config)
        header = self.macro.p.header
        at = Lookup(self.candidate_bits)
        opcode = header.opcode[: self.index_bits - self.candidate_bits]
        bad, beyond, in_trap = Signal(), Signal(), Signal()
        m.d.comb += [
            bad.eq((header.magic != MAGIC) | (header.operands > MAX_OPERANDS)),
            beyond.eq(header.opcode >= self.config.opcodes),
            self.table_addr.eq(Cat(at.asked, opcode)),
            self.claim_segment.eq(self.lookup_index),
        ]
        m.d.sync += at.trapped.eq(0)
        with m.FSM(name="dispatch") as fsm:
            m.d.comb += [
                self.waiting.eq(fsm.ongoing("IDLE")),
                self.running.eq(fsm.ongoing("RUN")),
                in_trap.eq(fsm.ongoing("TRAP")),
                self.claim.eq(self._claims(fsm.ongoing)),
                self.operand_taken.eq(fsm.ongoing("GUARD") | fsm.ongoing("VALUE")),
                self.start.valid.eq(fsm.ongoing("START")),
            ]
            with m.State("IDLE"), m.If(self.macro.valid & self.enable & self.table_ready):
                with m.If(self.macro.p.fault):
                    self._trap(m, at, Trap.BUS_READ, NO_SEGMENT, self.macro.p.address)
                with m.Elif(bad):
                    self._trap(m, at, Trap.BAD_MACRO, NO_SEGMENT, header.as_value())
                with m.Elif(beyond):
                    self._trap(m, at, Trap.UNBOUND, NO_SEGMENT, header.opcode)
                with m.Else():
                    self._read(m, at, 0)
            info = self._claim_states(m)
            self._guard_states(m, guard, at)
            with m.State("CLAIM"):
                self._load_start(m, info)
                with m.If(~self.enable):
                    m.next = "IDLE"
                with m.Elif(info.valid):
                    m.next = "START"
                with m.Else():
                    self._trap(m, at, Trap.SEGMENT_INVALID, self.lookup_index, self.lookup_index)
            with m.State("START"):
                with m.If(self.start.ready):
                    m.next = "RUN"
                with m.Elif(self.clear):
                    m.next = "IDLE"
            with m.State("RUN"), m.If(self.halted | self.clear):
                m.d.comb += self.macro.ready.eq(1)
                m.next = "IDLE"
            with m.State("TRAP"), m.If(self.clear):
                m.d.comb += self.macro.ready.eq(1)
                m.next = "IDLE"
        self._report(m, at, in_trap)
        self._push(m, at)
        return m

    def _claims(self, ongoing: Callable[[str], Value]) -> Value:
        """Return a value that is high if the chosen segment is claimed; `ongoing` returns a value that is high in the
        named state.
        """
        claimed = ongoing("CLAIM") | ongoing("START") | ongoing("RUN")
        for state in self._CLAIM_STATES:
            claimed |= ongoing(state)
        return claimed

    def _claim_states(self, m: Module) -> data.View:
        """Add the states before `CLAIM`, and return the entry of the chosen segment for evaluation in `CLAIM`."""
        return self.lookup_info

    def _guard_states(self, m: Module, guard: DispatchGuard, at: Lookup) -> None:
        """Add the states from the look-up of a candidate to its choice; if `enable` is low, the look-up is abandoned
        and restarted later.
        """
        header = self.macro.p.header
        last = self.config.candidates - 1
        chosen = (*self._CLAIM_STATES, "CLAIM")[0]
        m.d.comb += [
            guard.selector.eq(at.entry.candidate.selector),
            guard.compare.eq(at.entry.candidate.compare),
            guard.value.eq(at.entry.value),
            guard.operands.eq(header.operands),
            guard.tag.eq(header.tag),
            guard.statistics.eq(self.statistics),
            self.operand_addr.eq(guard.operand_addr),
            guard.operand_data.eq(self.operand_data),
        ]
        rejected = Signal()
        with m.State("READ"):
            m.d.comb += self.table_hold.eq(1)
            m.d.sync += at.entry.eq(self.table_entry)
            m.next = "GUARD"
            self._unguarded(m)
        with m.State("GUARD"):
            m.d.comb += [self.table_hold.eq(1), rejected.eq(~at.entry.candidate.valid)]
            m.d.sync += self.lookup_index.eq(at.entry.candidate.segment)
            with m.If(at.entry.candidate.compare == int(Compare.ALWAYS)):
                m.next = chosen
            with m.Else():
                m.next = "VALUE"
            self._reject(m, rejected, at, last)
        for state, following in pairwise((*self._VALUE_STATES, "COMPARE")):
            with m.State(state):
                m.d.comb += self.table_hold.eq(1)
                m.next = following
        with m.State("COMPARE"):
            m.d.comb += [self.table_hold.eq(1), rejected.eq(~guard.holds)]
            m.next = chosen
            self._reject(m, rejected, at, last)

    def _unguarded(self, m: Module) -> None:
        """In the cycle in which an entry is read, choose it if it has no guard."""
        candidate = self.table_entry.candidate
        with m.If(self.enable & candidate.valid & (candidate.compare == int(Compare.ALWAYS))):
            m.d.sync += self.lookup_index.eq(candidate.segment)
            m.next = "CLAIM"

    def _reject(self, m: Module, rejected: Signal, at: Lookup, last: int) -> None:
        with m.If(~self.enable):
            m.next = "IDLE"
        with m.Elif(rejected & (at.candidate == last)):
            self._trap(m, at, Trap.UNBOUND, NO_SEGMENT, self.macro.p.header.opcode)
        with m.Elif(rejected):
            self._read(m, at, at.candidate + 1)

    def _read(self, m: Module, at: Lookup, number: ValueLike) -> None:
        m.d.comb += [self.table_hold.eq(1), self.table_en.eq(1), at.asked.eq(number)]
        m.d.sync += at.candidate.eq(at.asked)
        m.next = "READ"

    def _trap(self, m: Module, at: Lookup, cause: Trap, segment: ValueLike, address: ValueLike) -> None:
        m.d.sync += [
            at.trapped.eq(1),
            at.cause.eq(int(cause)),
            at.segment.eq(segment),
            at.address.eq(address),
            at.candidate.eq(0),
        ]
        m.next = "TRAP"

    def _report(self, m: Module, at: Lookup, in_trap: Signal) -> None:
        m.d.comb += [
            self.trap.valid.eq(in_trap),
            self.trap.cause.eq(at.cause),
            self.trap.segment.eq(at.segment),
            self.trap.tag.eq(self.macro.p.header.tag),
            self.trap.macro.eq(self.macro.p.number),
            self.trap.address.eq(at.address),
        ]

    def _load_start(self, m: Module, info: data.View) -> None:
        start, macro = self.start.p, self.macro.p
        m.d.sync += [
            start.segment.eq(self.lookup_index),
            start.base.eq(info.base),
            start.length.eq(info.length),
            start.tag.eq(macro.header.tag),
            start.macro.eq(macro.number),
            start.operands.eq(macro.header.operands),
        ]

    def _push(self, m: Module, at: Lookup) -> None:
        header, started = self.macro.p.header, Signal()
        m.d.comb += [
            started.eq(self.start.valid & self.start.ready),
            self.push.valid.eq(started | at.trapped),
            self.push.program.eq(Mux(at.trapped, NO_SEGMENT, self.start.p.segment)),
            self.push.candidate.eq(at.candidate),
            self.push.irq.eq(header.irq),
            self.push.tag.eq(header.tag),
            self.first.eq(started & (at.candidate == 0)),
            self.other.eq(started & (at.candidate != 0)),
        ]


class PipelinedDispatch(Dispatch):
    """`Dispatch` with more states, so that the look-ups of segments and guards are registered.

    `SegmentHost` receives a claim two cycles late. The segment is therefore claimed for two cycles before its entry
    is evaluated; the entry is read in the last of these cycles.

    Latency: three cycles more than `Dispatch` from the choice to `start`, and one cycle more for a guard and for a
    choice without a guard. Throughput:
    as for `Dispatch`. Parameters and members are those of `Dispatch`.
    """

    _CLAIM_STATES = ("HOLD", "STAND", "LOOK")
    _VALUE_STATES = ("VALUE", "DECIDE")

    def _claim_states(self, m: Module) -> data.View:
        info = Signal(self.lookup_info.shape())
        m.d.sync += info.eq(self.lookup_info)
        for state, following in pairwise((*self._CLAIM_STATES, "CLAIM")):
            with m.State(state):
                m.next = following
        return info

    def _unguarded(self, m: Module) -> None:
        pass
