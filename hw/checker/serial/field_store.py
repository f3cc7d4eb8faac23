"""Memory for the command fields for the serial checker; the units also store the fields."""

from amaranth.hdl import Array, Cat, Elaboratable, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.isa.commands import FIELD_INDEX_BITS, UNIT_FIELDS
from hw.isa.enums import Unit
from hw.lib.ram import Ram


class FieldStore(wiring.Component):
    """Stores the field values that `set` has written since the fields of their unit were last cleared.

    Latency: 1 cycle. Throughput: one write and one read per cycle; a field must not be read in the cycle in which it is
    written.

    Parameters
    ----------
    counts : dict of Unit and int
        Number of leading fields of each unit that are read.

    Members
    -------
    w_en, w_field, w_data, clear : In
        Write port and clear inputs, as in `ConfigRegisters`.
    unit, index : In
        Unit and index of the field to read; `unit` must be held for one more cycle.
    written : Out
        High if the field has been written since the fields of its unit were last cleared.
    data : Out
        Written value, 32 bits; valid only if `written` is high.
    """

    def __init__(self, counts: dict[Unit, int]):
        self._counts = counts
        super().__init__(
            {
                "w_en": In(1),
                "w_field": In(2 + FIELD_INDEX_BITS),
                "w_data": In(32),
                "clear": In(len(Unit)),
                "unit": In(2),
                "index": In(FIELD_INDEX_BITS),
                "written": Out(1),
                "data": Out(32),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.values = values = Ram(width=32, depth=len(Unit) << FIELD_INDEX_BITS, exclusive=True)
        m.d.comb += [
            values.w_en.eq(self.w_en),
            values.w_addr.eq(self.w_field),
            values.w_data.eq(self.w_data),
            values.r0_addr.eq(Cat(self.index, self.unit)),
            self.data.eq(values.r0_data),
        ]
        found = []
        for unit in Unit:
            name = unit.name.lower()
            written, here = (
                Signal(len(UNIT_FIELDS[unit]), name=f"{name}_written"),
                Signal(name=f"{name}_here"),
            )
            with m.If(self.clear[unit]):
                m.d.sync += written.eq(0)
            with m.Elif(self.w_en & (self.w_field[FIELD_INDEX_BITS:] == int(unit))):
                m.d.sync += written.eq(written | (1 << self.w_field[:FIELD_INDEX_BITS]))
            m.d.sync += here.eq(written[: self._counts[unit]].bit_select(self.index, 1))
            found.append(here)
        m.d.comb += self.written.eq(Array(found)[self.unit])
        return m
