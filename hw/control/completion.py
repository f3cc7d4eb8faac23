"""In-order completion of macro-instructions."""

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hw.bus.axi import BURST, RESP_ERROR_BIT, RESPONSE, write_beat
from hw.config import MlaConfig
from hw.control.completion_record import RecordWriter
from hw.control.completion_tracker import RetireTracker
from hw.control.layouts import BUS_ERROR_LAYOUT, IN_FLIGHT, OLDEST_LAYOUT, PUSH_LAYOUT
from hw.isa.enums import Unit
from hw.isa.macro_instruction import RECORD_WORD
from hw.lib.ram import Ram

_INDEX_BITS = (IN_FLIGHT - 1).bit_length()

#: What is kept of a macro-instruction from its start on.
_ENTRY_LAYOUT = data.StructLayout({"program": 8, "candidate": 4, "tag": 6, "begin": 32})


class Completion(wiring.Component):
    """Macro-instructions in flight, from dispatch until the bus has answered their completion records.

    A macro-instruction is complete when its program has halted and every command that it issued has retired.
    Records are written in order without waiting for the answers of earlier ones.

    Latency: `aw` comes 4 cycles after the last retirement of the oldest macro-instruction, 3 after the halt
    if all retired before. Throughput: a record every 2 cycles (n >= 16).

    Parameters
    ----------
    config : MlaConfig
        `n` is the width of the bus in bytes.

    Members
    -------
    push : In
        A macro-instruction starts. Not while `full`.
    halt, steps : In
        The one pushed last ends, having taken so many micro-instructions.
    issued, retired : In
        Commands, a bit for each unit.
    flush, cause : In
        `flush` ends what is running; macro-instructions that are not complete take `cause` into their
        records.
    cycle : In
        Low half of the cycle counter.
    base, mask : In
        Ring.
    aw, w, b : Out, Out, In
        Write master.
    full, empty : Out
        No room for a further macro-instruction; none in flight.
    waiting : Out
        The oldest macro-instruction is not complete, and the records of those before it have been answered.
    oldest : Out
        The oldest macro-instruction whose record has not been sent.
    tail : Out
        Macro-instructions whose records have been answered, since reset.
    progress, irq : Out
        One was answered; one with its irq flag set.
    error : Out
        The bus refused a record.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        super().__init__(
            {
                "push": In(PUSH_LAYOUT),
                "halt": In(1),
                "steps": In(32),
                "issued": In(len(Unit)),
                "retired": In(len(Unit)),
                "flush": In(1),
                "cause": In(5),
                "cycle": In(32),
                "base": In(32),
                "mask": In(16),
                "aw": Out(stream.Signature(BURST)),
                "w": Out(stream.Signature(write_beat(config))),
                "b": In(stream.Signature(RESPONSE)),
                "full": Out(1),
                "empty": Out(1),
                "waiting": Out(1),
                "oldest": Out(OLDEST_LAYOUT),
                "tail": Out(32),
                "progress": Out(1),
                "irq": Out(1),
                "error": Out(BUS_ERROR_LAYOUT),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        pushes, halts, writes = (Signal(_INDEX_BITS + 1, name=name) for name in ("pushes", "halts", "writes"))
        flying = Signal(range(IN_FLIGHT + 1))
        finish, sent, answered = Signal(), Signal(), Signal()
        complete, trapped = Signal(IN_FLIGHT), Signal(IN_FLIGHT)
        # A flush ends the program that was running, too.
        m.d.comb += [
            finish.eq(self.halt | self.flush & (pushes != halts)),
            answered.eq(self.b.valid),
            self.b.ready.eq(1),
            self.full.eq(flying == IN_FLIGHT),
            self.empty.eq(flying == 0),
            self.progress.eq(answered),
            self.waiting.eq(
                (writes != pushes)
                & ~complete.bit_select(writes[:_INDEX_BITS], 1)
                & (flying == (pushes - writes)[: _INDEX_BITS + 1])
            ),
        ]
        m.d.sync += [
            pushes.eq(pushes + self.push.valid),
            halts.eq(halts + finish),
            writes.eq(writes + sent),
            flying.eq(flying + self.push.valid - answered),
            self.tail.eq(self.tail + answered),
        ]
        ends = self._track(m, pushes, halts, finish, complete)
        with m.If(self.flush):
            m.d.sync += trapped.eq(~complete)
        with m.If(self.push.valid):
            m.d.sync += trapped.bit_select(pushes[:_INDEX_BITS], 1).eq(0)
        self._write(m, pushes, halts, writes, finish, complete, trapped, ends, sent)
        self._answer(m)
        return m

    def _track(
        self, m: Module, pushes: Signal, halts: Signal, finish: Signal, complete: Signal
    ) -> list[Signal]:
        """Sets `complete`; returns the cycles in which the macro-instructions became complete."""
        ends = [Signal(32, name=f"end{i}") for i in range(IN_FLIGHT)]
        passed = [Signal(IN_FLIGHT, name=f"passed_{unit.name.lower()}") for unit in Unit]
        stamps = [Signal(IN_FLIGHT, name=f"stamps_{unit.name.lower()}") for unit in Unit]
        stamp, halted = Signal(IN_FLIGHT), Signal(IN_FLIGHT)
        for unit in Unit:
            tracker = RetireTracker()
            m.submodules[f"tracker_{unit.name.lower()}"] = tracker
            index, mine = tracker.index, passed[unit]
            m.d.comb += [
                tracker.issued.eq(self.issued[unit]),
                tracker.retired.eq(self.retired[unit]),
                tracker.halt.eq(finish),
                tracker.flush.eq(self.flush),
                stamps[unit].eq(tracker.passed << index),
            ]
            with m.If(tracker.passed):
                m.d.sync += mine.bit_select(index, 1).eq(1)
            with m.If(finish & tracker.spared):
                m.d.sync += mine.bit_select(halts[:_INDEX_BITS], 1).eq(1)
            with m.If(self.push.valid):
                m.d.sync += mine.bit_select(pushes[:_INDEX_BITS], 1).eq(0)
        m.d.comb += [
            complete.eq((passed[0] & passed[1]) & (passed[2] & passed[3])),
            halted.eq(finish << halts[:_INDEX_BITS]),
            stamp.eq((stamps[0] | stamps[1]) | (stamps[2] | stamps[3]) | halted),
        ]
        for i, end in enumerate(ends):
            with m.If(stamp[i]):
                m.d.sync += end.eq(self.cycle)
        return ends

    def _write(
        self,
        m: Module,
        pushes: Signal,
        halts: Signal,
        writes: Signal,
        finish: Signal,
        complete: Signal,
        trapped: Signal,
        ends: list[Signal],
        sent: Signal,
    ) -> None:
        m.submodules.entries = entries = Ram(width=_ENTRY_LAYOUT.size, depth=IN_FLIGHT, comb=True)
        m.submodules.steps = steps = Ram(width=32, depth=IN_FLIGHT, comb=True)
        m.submodules.writer = writer = RecordWriter(self.config)
        entry, pushed = data.View(_ENTRY_LAYOUT, entries.r0_data), Signal(_ENTRY_LAYOUT)
        number, index = Signal(32), writes[:_INDEX_BITS]
        m.d.comb += [
            pushed.program.eq(self.push.program),
            pushed.candidate.eq(self.push.candidate),
            pushed.tag.eq(self.push.tag),
            pushed.begin.eq(self.cycle),
            entries.w_addr.eq(pushes),
            entries.w_data.eq(pushed),
            entries.w_en.eq(self.push.valid),
            entries.r0_addr.eq(index),
            steps.w_addr.eq(halts),
            steps.w_data.eq(self.steps),
            steps.w_en.eq(finish),
            steps.r0_addr.eq(index),
            self.oldest.program.eq(entry.program),
            self.oldest.tag.eq(entry.tag),
            self.oldest.number.eq(number),
        ]
        end = Signal(32)
        with m.Switch(index):
            for i, cycle in enumerate(ends):
                with m.Case(i):
                    m.d.comb += end.eq(cycle)
        out, record = writer.record, writer.record.p.record
        m.d.comb += [
            out.valid.eq((writes != pushes) & complete.bit_select(index, 1)),
            sent.eq(out.valid & out.ready),
            out.p.slot.eq(self.base + Cat(Const(0, 8), number[:16] & self.mask)),
            record.program.eq(entry.program),
            record.candidate.eq(entry.candidate),
            record.done.eq(1),
            record.sequence.eq(number),
            record.trap.eq(Mux(trapped.bit_select(index, 1), self.cause, 0)),
            out.p.begin.eq(entry.begin),
            out.p.end.eq(end),
            out.p.steps.eq(steps.r0_data),
        ]
        m.d.sync += number.eq(number + sent)
        connect(m, writer.aw, flipped(self.aw))
        connect(m, writer.w, flipped(self.w))

    def _answer(self, m: Module) -> None:
        wants_irq = Signal(IN_FLIGHT)
        pushed, answered = Signal(_INDEX_BITS), Signal(_INDEX_BITS)
        m.d.sync += [pushed.eq(pushed + self.push.valid), answered.eq(answered + self.b.valid)]
        with m.If(self.push.valid):
            m.d.sync += wants_irq.bit_select(pushed, 1).eq(self.push.irq)
        m.d.comb += [
            self.irq.eq(self.b.valid & wants_irq.bit_select(answered, 1)),
            self.error.valid.eq(self.b.valid & self.b.p.resp[RESP_ERROR_BIT]),
            self.error.address.eq(self.base + Cat(Const(4 * RECORD_WORD, 8), self.tail[:16] & self.mask)),
        ]
