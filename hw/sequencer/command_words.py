"""Transfer of commands as words: the fields of a command are sent to its unit one after another."""

from amaranth.hdl import Array, Cat, Elaboratable, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.checker.values import INCREMENT_OF, INCREMENTS_LAYOUT
from hw.isa.commands import FIELD_INDEX_BITS, UNIT_FIELDS
from hw.isa.enums import Unit
from hw.layouts import CLEAR_WORD, DERIVED, END_WORD, WORD_LAYOUT
from hw.lib.ram import Ram


class CommandWords(wiring.Component):
    """Sender of commands: changed fields first, then derived increments, then an end mark, one word at a time.

    A unit keeps its fields from one command to the next, so only the fields written since its last command are sent.
    The connection to the units is one word wide.

    Latency: if the fields have been reset to their defaults, a reset word is sent one cycle after `start`. The first
    field is sent five cycles after `start`, and the following fields one per cycle. The increments are sent only after
    `passed`. Throughput: one command at a time.

    Members
    -------
    w_en, w_field, w_data, clear : In
        Writes and clears of fields; see `ConfigRegisters`.
    start, unit : In
        `start` begins the transfer; `unit` and its fields must be held until `sent`.
    passed, increments : In
        `passed` is high if the command is legal; `increments` are its derived increments.
    stop : In
        Abandon the command in progress.
    valid : Out
        One-hot mask of the unit that `word` is for.
    word : Out
        Word for the unit's queue, which always has room.
    sent : Out
        High if all words have been sent; remains high until the next `start`.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "w_en": In(1),
                "w_field": In(2 + FIELD_INDEX_BITS),
                "w_data": In(32),
                "clear": In(len(Unit)),
                "start": In(1),
                "unit": In(2),
                "passed": In(1),
                "increments": In(INCREMENTS_LAYOUT),
                "stop": In(1),
                "valid": Out(len(Unit)),
                "word": Out(WORD_LAYOUT),
                "sent": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        changed, cleared = self._changes(m)
        busy, next_word = Signal(), Signal(WORD_LAYOUT)
        present, ends = Signal(), Signal()
        found = self._fields(m, changed, next_word, present)
        self._tail(m, busy, found, next_word, present, ends)
        with m.If(self.start & Array(cleared)[self.unit]):
            m.d.comb += [present.eq(1), next_word.index.eq(CLEAR_WORD)]
        m.d.sync += [
            self.word.eq(next_word),
            self.valid.eq(Cat(present & ~self.stop & (self.unit == int(unit)) for unit in Unit)),
        ]
        with m.If(self.stop | ends):
            m.d.sync += busy.eq(0)
        with m.Elif(self.start):
            m.d.sync += busy.eq(1)
        with m.If(self.stop | self.start):
            m.d.sync += self.sent.eq(0)
        with m.Elif(ends):
            m.d.sync += self.sent.eq(1)
        return m

    def _changes(self, m: Module) -> tuple[list[Signal], list[Signal]]:
        """Return the state of each unit's fields.

        The state consists of the mask of fields written since the unit's last command or clear, and a signal that is
        high if its fields have been cleared since its last command.
        """
        changed, cleared = [], []
        for unit in Unit:
            name = unit.name.lower()
            fields, all_of = (
                Signal(len(UNIT_FIELDS[unit]), name=f"{name}_changed"),
                Signal(name=f"{name}_cleared"),
            )
            here = self.w_en & (self.w_field[FIELD_INDEX_BITS:] == int(unit))
            with m.If(self.clear[unit]):
                m.d.sync += [fields.eq(0), all_of.eq(1)]
            with m.Elif(self.start & (self.unit == int(unit))):
                m.d.sync += [fields.eq(0), all_of.eq(0)]
            with m.Elif(here):
                m.d.sync += fields.eq(fields | (1 << self.w_field[:FIELD_INDEX_BITS]))
            changed.append(fields)
            cleared.append(all_of)
        return changed, cleared

    def _fields(self, m: Module, changed: list[Signal], word: data.View, present: Signal) -> Signal:
        """Send the words of the changed fields; return a signal that is high if all of them have been sent."""
        most = max(len(fields) for fields in UNIT_FIELDS)
        m.submodules.values = values = Ram(width=32, depth=len(Unit) << FIELD_INDEX_BITS, exclusive=True)
        m.d.comb += [
            values.w_en.eq(self.w_en),
            values.w_addr.eq(self.w_field),
            values.w_data.eq(self.w_data),
        ]
        # The selection of a field, the encoding of its index and the read of its value take one cycle each.
        left, first = Signal(most), Signal(most)
        lowest, number = Signal(most), Signal(FIELD_INDEX_BITS)
        index, numbered, read = Signal(FIELD_INDEX_BITS), Signal(), Signal()
        m.d.comb += first.eq(left & -left)
        m.d.sync += [
            lowest.eq(Mux(self.stop, 0, first)),
            number.eq(
                Cat(
                    Cat(lowest[i] for i in range(most) if i >> bit & 1).any()
                    for bit in range(FIELD_INDEX_BITS)
                )
            ),
            numbered.eq(lowest.any() & ~self.stop),
            index.eq(number),
            read.eq(numbered & ~self.stop),
        ]
        with m.If(self.stop):
            m.d.sync += left.eq(0)
        with m.Elif(self.start):
            m.d.sync += left.eq(Array(changed)[self.unit])
        with m.Else():
            m.d.sync += left.eq(left & ~first)
        m.d.comb += values.r0_addr.eq(Cat(number, self.unit))
        with m.If(read):
            m.d.comb += [present.eq(1), word.index.eq(index), word.data.eq(values.r0_data)]
        out = Signal()
        m.d.comb += out.eq(~(left.any() | lowest.any() | numbered | read))
        return out

    def _tail(
        self, m: Module, busy: Signal, found: Signal, word: data.View, present: Signal, ends: Signal
    ) -> None:
        """Send the increments, if the unit has any, and the end mark."""
        position, ready = Signal(range(8)), Signal()
        m.d.comb += ready.eq(busy & found & self.passed)
        with m.If(~ready):
            m.d.sync += position.eq(0)
        with m.Else():
            m.d.sync += position.eq(position + 1)
        with m.If(ready), m.Switch(self.unit):
            for unit in Unit:
                with m.Case(int(unit)), m.Switch(position):
                    for k, name in enumerate(DERIVED[unit]):
                        with m.Case(k):
                            m.d.comb += [
                                present.eq(1),
                                word.index.eq(len(UNIT_FIELDS[unit]) + k),
                                word.data.eq(self.increments[INCREMENT_OF[name]]),
                            ]
                    with m.Case(len(DERIVED[unit])):
                        m.d.comb += [present.eq(1), ends.eq(1), word.index.eq(END_WORD)]
