"""In-order completion of macro-instructions: retirement of their commands, and their completion records in DRAM."""

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hw.bus.axi import BURST, RESP_ERROR_BIT, RESPONSE, write_beat
from hw.config import MlaConfig
from hw.control.layouts import BUS_ERROR_LAYOUT, IN_FLIGHT, OLDEST_LAYOUT, PUSH_LAYOUT, RECORD_LAYOUT
from hw.isa.enums import Unit
from hw.isa.macro_instruction import RECORD_WORD, RECORD_WORDS
from hw.lib.ram import Ram

_INDEX_BITS = (IN_FLIGHT - 1).bit_length()

_RECORD_BYTES = 4 * RECORD_WORDS

#: A completion record, and the address of the slot that it is written to.
WRITE_LAYOUT = data.StructLayout({"slot": 32, "record": RECORD_LAYOUT, "begin": 32, "end": 32, "steps": 32})


class RecordWriter(wiring.Component):
    """Writes each completion record with one AXI burst.

    Latency: `aw` and the first beat are valid 1 cycle after `record`. Throughput: one record every 16 / (bytes of a
    beat) + 1 cycles, or every 2 cycles if a record fits one beat.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses the width of the bus.

    Members
    -------
    record : In
        Completion records to write.
    aw, w : Out
        Write master of the bus: addresses and data.
    """

    def __init__(self, config: MlaConfig):
        self.n = config.beat_bytes
        self.beats = max(1, _RECORD_BYTES // self.n)
        super().__init__(
            {
                "record": In(stream.Signature(WRITE_LAYOUT)),
                "aw": Out(stream.Signature(BURST)),
                "w": Out(stream.Signature(write_beat(config))),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        record = self.record.p
        first_byte = RECORD_WORD * 4 // self.n * self.n  # a burst starts at the first byte of a beat
        skip = RECORD_WORD * 4 - first_byte
        width = 8 * self.n * self.beats
        words, left, address = Signal(width), Signal(range(self.beats + 1)), Signal(32)
        m.d.comb += [
            self.record.ready.eq(~self.aw.valid & ~self.w.valid),
            self.w.p.data.eq(words),
            self.w.p.strb.eq(((1 << min(self.n, _RECORD_BYTES)) - 1) << skip),
            self.w.p.last.eq(left == 0),
            self.aw.p.addr.eq(address),
            self.aw.p.len.eq(self.beats - 1),
        ]
        with m.If(self.aw.ready):
            m.d.sync += self.aw.valid.eq(0)
        with m.If(self.w.valid & self.w.ready):
            m.d.sync += [
                words.eq(words >> 8 * self.n),
                left.eq(Mux(left == 0, 0, left - 1)),
                self.w.valid.eq(left != 0),
            ]
        with m.If(self.record.valid & self.record.ready):
            m.d.sync += [
                self.aw.valid.eq(1),
                address.eq(record.slot + first_byte),
                self.w.valid.eq(1),
                left.eq(self.beats - 1),
                words.eq(
                    Cat(Const(0, 8 * skip), record.record.as_value(), record.begin, record.end, record.steps)
                ),
            ]
        return m


#: Width of a count of commands. The number of commands of a unit that are issued and not retired is far below half of
#: 2**_COUNT_BITS.
_COUNT_BITS = 8


class RetireTracker(wiring.Component):
    """Counts the commands of one unit to detect when the unit has retired all commands of each macro-instruction in
    flight.

    When a program halts, the number of commands issued up to then is recorded. Once this number of commands has
    retired, the unit has *passed* the macro-instruction. Commands of one unit retire in order, so a unit passes
    macro-instructions in order.

    Latency: `passed` is set 1 cycle after the last retirement, but no earlier than 1 cycle after the halt.
    Throughput: one event of each type per cycle, one macro-instruction passed per cycle.

    Members
    -------
    issued, retired : In
        High if a command is issued in this cycle; high if a command retires in this cycle.
    halt : In
        High if the oldest program that has not halted halts in this cycle; its last command is issued in this cycle at
        the latest.
    flush : In
        Discard all commands that are issued and not retired.
    spared : Out
        Valid with `halt`: high if the macro-instruction has no commands of this unit.
    passed, index : Out
        One-cycle pulse when all commands of macro-instruction `index`, which has at least one, have retired.
    """

    issued: In(1)
    retired: In(1)
    halt: In(1)
    flush: In(1)
    spared: Out(1)
    passed: Out(1)
    index: Out(_INDEX_BITS)

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.ends = ends = Ram(width=_COUNT_BITS + 1, depth=IN_FLIGHT, comb=True)
        issues, issues_next = Signal(_COUNT_BITS), Signal(_COUNT_BITS)
        retires, some = Signal(_COUNT_BITS), Signal()
        halts, passes = Signal(_INDEX_BITS + 1), Signal(_INDEX_BITS + 1)
        ahead, over = Signal(_COUNT_BITS), Signal()
        m.d.comb += [
            issues_next.eq(issues + self.issued),
            ends.w_addr.eq(halts),
            ends.w_en.eq(self.halt),
            ends.w_data[:_COUNT_BITS].eq(issues_next),
            ends.w_data[_COUNT_BITS].eq(~self.spared),
            # The counts alone are not sufficient, because they wrap around.
            self.spared.eq(~(some | self.issued)),
            ends.r0_addr.eq(passes),
            ahead.eq(retires - ends.r0_data[:_COUNT_BITS]),
            self.index.eq(passes),
            over.eq((passes != halts) & ~ahead[-1]),
            self.passed.eq(over & ends.r0_data[_COUNT_BITS]),
        ]
        m.d.sync += [
            issues.eq(issues_next),
            retires.eq(Mux(self.flush, issues_next, retires + self.retired)),
            halts.eq(halts + self.halt),
            passes.eq(passes + over),
        ]
        with m.If(self.halt):
            m.d.sync += some.eq(0)
        with m.Elif(self.issued):
            m.d.sync += some.eq(1)
        return m


#: State of a macro-instruction from its start to its completion record.
_ENTRY_LAYOUT = data.StructLayout({"program": 8, "candidate": 4, "tag": 6, "begin": 32})


class Completion(wiring.Component):
    """Tracks macro-instructions in flight, from dispatch until the bus has answered their completion records.

    A macro-instruction is complete when its program has halted and every command that it issued has retired.
    Records are written in order without waiting for the answers of earlier ones.

    Latency: `aw` is valid 4 cycles after the last command of the oldest macro-instruction retires, or 3 cycles after
    its halt if all its commands have already retired. Throughput: one record every 2 cycles (beats of 16 bytes or
    more).

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses the width of the bus.

    Members
    -------
    push : In
        Macro-instruction that starts; `push.valid` must not be set while `full` is high.
    halt, steps : In
        High if the program of the macro-instruction pushed last ends; number of micro-instructions that the program
        executed.
    issued, retired : In
        One bit for each unit: high if a command is issued (retires) in this cycle.
    flush, cause : In
        `flush` ends the running macro-instruction; `cause` is written to the records of macro-instructions that are
        not complete.
    cycle : In
        Low 32 bits of the cycle counter.
    base, mask : In
        Address of the command ring, and mask of its slot numbers.
    aw, w, b : Out, Out, In
        Write master of the bus: addresses, data, responses.
    full, empty : Out
        High if no further macro-instruction may be pushed; high if no macro-instruction is in flight.
    waiting : Out
        High if the oldest macro-instruction is not complete, and the records of those before it have been answered.
    oldest : Out
        The oldest macro-instruction whose record has not been sent.
    tail : Out
        Number of macro-instructions since reset whose records the bus has answered.
    progress, irq : Out
        One-cycle pulses when the bus answers a record, and when it answers the record of a macro-instruction whose irq
        flag is set.
    error : Out
        High if the bus answers a record with an error.
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
        # A flush also ends the running program.
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
        """Drive `complete`, and return, for each macro-instruction in flight, the cycle in which it became complete."""
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
