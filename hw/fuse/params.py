"""Requantization parameter slots: bias, multipliers and exponents of every lane."""

from amaranth.hdl import Elaboratable, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.fuse.layouts import PART_BITS, lanes, lanes_of, part_of
from hw.layouts import SlotWritePort
from hw.memory.ram import Ram
from hw.registers import register

#: Cycles from a slot's number to its parameters.
LATENCY = 2
#: Rows of N bytes in a slot.
_ROW_BITS = 4


class Params(wiring.Component):
    """The slots, read for steps' needs at two moments: the bias first, the multipliers and exponents later.

    Latency: LATENCY cycles from `bias_slot` or `scale_slot`. Throughput: one read of each and one write in
    each cycle.

    Parameters
    ----------
    config : MlaConfig
        Lanes and number of slots.

    Members
    -------
    write : In
        Writes of N bytes; those of tables are ignored.
    bias_en, bias_slot, bias_part : In; bias : Out(lanes)
        Read of the bias.
    scale_en, scale_slot, scale_part : In; mult, exponent, neg_mult, neg_exponent : Out(lanes)
        Read of multipliers and exponents.
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
        self._part(m, "bias", 0, 4, (("bias", 32),))
        self._part(m, "scale", 4, 5, (("mult", 32), ("exponent", 8)))
        self._part(m, "scale", 9, 5, (("neg_mult", 32), ("neg_exponent", 8)))
        return m

    def _part(
        self, m: Module, read: str, first: int, rows: int, outputs: tuple[tuple[str, int], ...]
    ) -> None:
        """A memory of some rows of each slot; each output takes its bytes in turn, all N lanes of it."""
        n = self._n
        m.submodules[f"{outputs[0][0]}_ram"] = ram = Ram(
            width=8 * n * rows, depth=self._slots, granularity=8 * n, exclusive=True
        )
        row_shift = n.bit_length() - 1
        row = self.write.addr[row_shift : row_shift + _ROW_BITS]
        hit = self.write.valid & ~self.write.table
        m.d.comb += [
            ram.w_addr.eq(self.write.addr[row_shift + _ROW_BITS :]),
            ram.w_data.eq(self.write.data.replicate(rows)),
            *(ram.w_en[i].eq(hit & (row == first + i)) for i in range(rows)),
            ram.r0_addr.eq(getattr(self, f"{read}_slot")),
            ram.r0_en.eq(getattr(self, f"{read}_en")),
        ]
        part = Signal(PART_BITS, name=f"{outputs[0][0]}_part")
        m.d.sync += part.eq(getattr(self, f"{read}_part"))
        position = 0
        for name, width in outputs:
            target = getattr(self, name)
            row = [ram.r0_data[position + i * width : position + (i + 1) * width] for i in range(n)]
            for lane, value in enumerate(part_of(row, part, self._lanes)):
                m.d.comb += target[lane].eq(register(m, f"{name}_{lane}", value))
            position += n * width
