"""Bodies of queued commands that come word by word."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.isa.commands import UNIT_FIELDS
from hw.isa.enums import Unit
from hw.layouts import CLEAR_WORD, DERIVED, END_WORD, META_LAYOUT, WORD_LAYOUT, command_layout
from hw.lib.ram import Ram


class WordQueue(wiring.Component):
    """Holds the words of queued commands and puts those of the oldest into its fields.

    While the unit works on a command the next one's words arrive in the fields; from `loaded` on they stand until
    `take`.

    Latency: a word is in its field four cycles after it came. Throughput: one word a cycle.

    Parameters
    ----------
    unit : Unit
        Whose commands these are.
    commands : int
        Commands whose words fit; one more, not complete, always does.

    Members
    -------
    valid, word : In
        A word.
    take : In
        The unit starts the command in `body`; only while `loaded`.
    flush : In
        Forgets all words.
    body : Out
        Fields and increments.
    loaded : Out
        They are complete.
    """

    def __init__(self, unit: Unit, commands: int):
        self.unit = unit
        layout = command_layout(unit)
        most = len(UNIT_FIELDS[unit]) + len(DERIVED[unit]) + 2
        self.depth = 1 << ((commands + 1) * most - 1).bit_length()
        super().__init__(
            {
                "valid": In(1),
                "word": In(WORD_LAYOUT),
                "take": In(1),
                "flush": In(1),
                "body": Out(layout.size - META_LAYOUT.size),
                "loaded": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.words = ram = Ram(width=WORD_LAYOUT.size, depth=self.depth, exclusive=True)
        write, read = Signal(range(self.depth)), Signal(range(self.depth))
        fetch, got, move, held = Signal(), Signal(), Signal(), Signal()
        word = Signal(WORD_LAYOUT)
        use, ends = Signal(), Signal()
        m.d.comb += [
            ram.w_addr.eq(write),
            ram.w_data.eq(self.word),
            ram.w_en.eq(self.valid),
            ram.r0_addr.eq(read),
            ram.r0_en.eq(fetch),
            use.eq(held & ~self.loaded),
            ends.eq(use & (word.index == END_WORD)),
            move.eq(~held | use),
            fetch.eq((write != read) & (~got | move)),
        ]
        with m.If(move):
            m.d.sync += word.eq(ram.r0_data)
        with m.If(self.flush):
            m.d.sync += [write.eq(0), read.eq(0), got.eq(0), held.eq(0), self.loaded.eq(0)]
        with m.Else():
            m.d.sync += [
                write.eq(write + self.valid),
                read.eq(read + fetch),
                got.eq(fetch | (got & ~move)),
                held.eq(Mux(move, got, held)),
                self.loaded.eq((self.loaded & ~self.take) | ends),
            ]
        self._fields(m, use, word)
        return m

    def _fields(self, m: Module, use: Signal, word: Signal) -> None:
        """Registers of the fields."""
        widths = [(field.width, field.default) for field in UNIT_FIELDS[self.unit]]
        widths += [(width, 0) for width in DERIVED[self.unit].values()]
        parts, clear = [], Signal()
        m.d.comb += clear.eq(word.index == CLEAR_WORD)
        for number, (width, default) in enumerate(widths):
            part = Signal(width, name=f"field{number}", init=default & ((1 << width) - 1))
            with m.If(use & (clear | (word.index == number))):
                # The word that clears carries 0: only bits that become 1 then need logic.
                m.d.sync += part.eq(word.data | Mux(clear, part.init, 0))
            parts.append(part)
        m.d.comb += self.body.eq(Cat(parts))
