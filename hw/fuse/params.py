"""Requantization parameter slots: bias, multipliers and exponents of every lane."""

from amaranth.hdl import Cat, Elaboratable, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.fuse.layouts import PART_BITS, lanes, lanes_of, part_of
from hw.lib.pipeline import pipeline_register
from hw.lib.ram import Ram
from hw.memory.ports import SlotWritePort

#: Cycles from the index of a slot to its parameters.
LATENCY = 2
#: log2 of the number of rows of N bytes in a slot.
_ROW_BITS = 4


class Params(wiring.Component):
    """Memory of the parameter slots with two read ports: one for the bias, and one, used in a later cycle, for
    multipliers and exponents.

    Latency: LATENCY cycles from `bias_slot` or `scale_slot`. Throughput: one read of each and one write per cycle.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses the number of lanes and of slots.

    Members
    -------
    write : In
        Writes of N bytes; writes to tables are ignored.
    bias_en, bias_slot, bias_part : In; bias : Out(lanes)
        Read port of the bias.
    scale_en, scale_slot, scale_part : In; mult, exponent, neg_mult, neg_exponent : Out(lanes)
        Read port of the multipliers and exponents.
    """

    def __init__(self, config: MlaConfig):
        self._n, self._lanes, self._slots = config.n, lanes_of(config), config.param_slots
        read = {}
        for name in ("bias", "scale"):
            read |= {f"{name}_en": In(1), f"{name}_slot": In(8), f"{name}_part": In(PART_BITS)}
        wide, narrow = lanes(self._lanes), lanes(self._lanes, 8)
        super().__init__(
            {
                "write": In(SlotWritePort(config)),
                **read,
                "bias": Out(wide),
                "mult": Out(wide),
                "exponent": Out(narrow),
                "neg_mult": Out(wide),
                "neg_exponent": Out(narrow),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        self._memory(m, "bias", "bias", 0, 32)
        self._memory(m, "scale", "mult", 4, 32)
        self._memory(m, "scale", "exponent", 8, 8)
        self._memory(m, "scale", "neg_mult", 9, 32)
        self._memory(m, "scale", "neg_exponent", 13, 8)
        return m

    def _memory(self, m: Module, read: str, name: str, first: int, width: int) -> None:
        """Add the memory of one parameter of `width` bits per lane, which begins at row `first` of each slot.

        A word of the memory is the smallest number of rows that contains the lanes of a beat.
        """
        n, rows = self._n, width // 8
        in_word = max(1, self._lanes * rows // n)
        beats = in_word * n // (self._lanes * rows)  # number of beats whose parameters are in one word
        row_bits, word_bits = (rows - 1).bit_length(), (rows // in_word - 1).bit_length()
        m.submodules[f"{name}_ram"] = ram = Ram(
            width=8 * n * in_word, depth=self._slots * rows // in_word, granularity=8 * n, exclusive=True
        )
        shift, beat_bits = n.bit_length() - 1, (beats - 1).bit_length()
        row, slot = self.write.addr[shift : shift + _ROW_BITS], self.write.addr[shift + _ROW_BITS :]
        index = Signal(max(row_bits, 1), name=f"{name}_place")
        hit = self.write.valid & ~self.write.table
        wanted = getattr(self, f"{read}_part")
        m.d.comb += [
            index.eq(row - first),
            ram.w_addr.eq(Cat(index[row_bits - word_bits : row_bits], slot)),
            ram.w_data.eq(self.write.data.replicate(in_word)),
            *(
                ram.w_en[i].eq(hit & Cat(row == r for r in range(first + i, first + rows, in_word)).any())
                for i in range(in_word)
            ),
            ram.r0_addr.eq(Cat(wanted[beat_bits : beat_bits + word_bits], getattr(self, f"{read}_slot"))),
            ram.r0_en.eq(getattr(self, f"{read}_en")),
        ]
        part = Signal(PART_BITS, name=f"{name}_part")
        m.d.sync += part.eq(wanted)
        lanes_in_word = [ram.r0_data[i : i + width] for i in range(0, len(ram.r0_data), width)]
        for lane, value in enumerate(part_of(lanes_in_word, part, self._lanes)):
            m.d.comb += getattr(self, name)[lane].eq(pipeline_register(m, f"{name}_{lane}", value))
