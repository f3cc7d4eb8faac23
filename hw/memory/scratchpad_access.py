"""What one scratchpad access touches, and the data path of one read port."""

from copy import copy

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import SP_ADDR_BITS, MlaConfig
from hw.lib.pipeline import held
from hw.lib.rotate import rotate_right
from hw.lib.trees import select_tree


class SpAccess:
    """Which word of which half a row access at a byte address needs; adds its named signals to `m`.

    Rows alternate between the even and the odd half, so the row that holds the first byte and the row after
    it never meet in one half. An access at a multiple of n needs one half only.

    Parameters
    ----------
    m : Module
        Module that the signals are added to.
    config : MlaConfig
        Sizes.
    name : str
        Prefix of the signals' names.
    addr : Value
        Byte address; its high bits beyond the memory's size are ignored.

    Attributes
    ----------
    offset : Value
        Position of the first byte in its row.
    odd : Value
        The first byte's row lies in the odd half.
    bank : Value
        Bank of the first byte.
    index : tuple of Signal
        Word address (bank in the high bits) in the even and in the odd half.
    word, banks : tuple of Value
        The two parts of `index`: word within its bank, and bank.
    want : tuple of Signal
        One bit for each bank: the access needs that bank's even, odd half.
    """

    def __init__(self, m: Module, config: MlaConfig, name: str, addr: Value):
        lane_bits = (config.n - 1).bit_length()
        pair_bits = (config.sp_rows // 2 - 1).bit_length()
        self.offset = addr[:lane_bits]
        self.odd = addr[lane_bits]
        pair = addr[lane_bits + 1 : lane_bits + 1 + pair_bits]
        self._bank_bits = (config.sp_banks - 1).bit_length()
        self.bank = pair[-self._bank_bits :]
        self._split(tuple(Signal(pair_bits, name=f"{name}_index_{half}") for half in ("even", "odd")))
        self.want = tuple(Signal(config.sp_banks, name=f"{name}_want_{half}") for half in ("even", "odd"))
        crosses = Signal(name=f"{name}_crosses")
        m.d.comb += [
            crosses.eq(self.offset.any()),
            self.index[0].eq(pair + self.odd),
            self.index[1].eq(pair),
            self.want[0].eq(Mux(~self.odd | crosses, 1 << self.banks[0], 0)),
            self.want[1].eq(Mux(self.odd | crosses, 1 << self.banks[1], 0)),
        ]

    def _split(self, index: tuple[Signal, ...]) -> None:
        self.index = index
        self.word = tuple(i[: -self._bank_bits] for i in index)
        self.banks = tuple(i[-self._bank_bits :] for i in index)

    def held(self, m: Module, name: str, take: Value) -> "SpAccess":
        """The same in registers, loaded with `take`; their names begin with `name`."""
        later = copy(self)
        later.offset, later.odd, later.bank = (
            held(m, f"{name}_{part}", getattr(self, part), take) for part in ("offset", "odd", "bank")
        )
        later._split(tuple(held(m, f"{name}_index_{h}", v, take) for h, v in enumerate(self.index)))
        later.want = tuple(held(m, f"{name}_want_{h}", v, take) for h, v in enumerate(self.want))
        return later


class SpReadLane(wiring.Component):
    """From the banks' words to the row that one read port asked for.

    Latency: the row is at `data` two cycles after `capture`, whose memory words are at `even`, `odd` one
    cycle after it. Throughput: one row per cycle.

    Parameters
    ----------
    config : MlaConfig
        Sizes.

    Members
    -------
    capture : In
        An access is granted in this cycle.
    addr : In
        Byte address of the access granted in this cycle.
    even_bank, odd_bank : In
        Banks that its words come from.
    even, odd : In
        Words read by the banks, bank 0 lowest, one cycle later.
    data : Out
        The row.
    """

    def __init__(self, config: MlaConfig):
        self._config = config
        words = In(8 * config.n * config.sp_banks)
        self._bank_bits = (config.sp_banks - 1).bit_length()
        super().__init__(
            {
                "capture": In(1),
                "addr": In(SP_ADDR_BITS),
                "even_bank": In(self._bank_bits),
                "odd_bank": In(self._bank_bits),
                "even": words,
                "odd": words,
                "data": Out(8 * config.n),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        n = self._config.n
        lane_bits = (n - 1).bit_length()
        offset, offset_2 = Signal(lane_bits), Signal(lane_bits)
        odd, captured = Signal(), Signal()
        from_even = Signal(n)
        banks = tuple(Signal(self._bank_bits, name=f"bank_{half}") for half in ("even", "odd"))
        m.d.sync += [
            Cat(offset, odd).eq(self.addr[: lane_bits + 1]),
            offset_2.eq(offset),
            from_even.eq(Cat(offset <= j for j in range(n)) ^ odd.replicate(n)),
            banks[0].eq(self.even_bank),
            banks[1].eq(self.odd_bank),
        ]
        m.d.sync += captured.eq(self.capture)
        # Registered as early as can be: memories give their words late in a cycle, and from far away.
        even, odd_word = (
            # Two-way choices, which an FPGA packs into its wide multiplexers.
            held(m, f"{half}_held", select_tree(m, f"word_{half}", bank, self._words(source)), captured)
            for half, source, bank in zip(("even", "odd"), (self.even, self.odd), banks, strict=True)
        )
        merged = Signal(8 * n)
        # Byte j comes from the row of the first byte if j >= offset, else from the row after it.
        m.d.comb += [
            merged.eq(
                Cat(Mux(from_even[j], even.word_select(j, 8), odd_word.word_select(j, 8)) for j in range(n))
            ),
            self.data.eq(rotate_right(m, "rotated", merged, offset_2, n)),
        ]
        return m

    def _words(self, source: Value) -> dict[int, Value]:
        """The word of each bank."""
        return {b: source.word_select(b, 8 * self._config.n) for b in range(self._config.sp_banks)}
