"""Registers of the units' command fields."""

from amaranth.hdl import Elaboratable, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.isa.commands import FIELD_INDEX_BITS, UNIT_FIELDS
from hw.isa.enums import Unit
from hw.layouts import config_layout, default_word


class UnitRegisters(wiring.Component):
    """Registers of the fields that `set` writes for one unit.

    Latency: a write is visible in the next cycle. Throughput: one write per cycle.

    Parameters
    ----------
    unit : Unit
        Unit that the fields belong to.

    Members
    -------
    w_en, w_index, w_data : In
        Write port: stores the low bits of `w_data` in a field.
    clear : In
        Reset all fields to their defaults.
    fields : Out
        Current values of the unit's fields.
    """

    def __init__(self, unit: Unit):
        self.unit = unit
        super().__init__(
            {
                "w_en": In(1),
                "w_index": In(FIELD_INDEX_BITS),
                "w_data": In(32),
                "clear": In(1),
                "fields": Out(config_layout(unit)),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        # The registers are one wide signal, because a simulator would evaluate each of several registers in every
        # cycle.
        values = Signal(self.fields.as_value().shape(), init=default_word(self.unit))
        m.d.comb += self.fields.as_value().eq(values)
        with m.If(self.clear):
            m.d.sync += values.eq(values.init)
        with m.Elif(self.w_en), m.Switch(self.w_index):
            offset = 0
            for index, field in enumerate(UNIT_FIELDS[self.unit]):
                with m.Case(index):
                    m.d.sync += values[offset : offset + field.width].eq(self.w_data)
                offset += field.width
        return m


class ConfigRegisters(wiring.Component):
    """Registers of the command fields of all units.

    Latency: a write is visible in the next cycle. Throughput: one write per cycle.

    Members
    -------
    w_en, w_field, w_data : In
        Write port for `set`: enable, field number (unit << FIELD_INDEX_BITS | index) and value.
    clear : In
        Mask of the units whose fields are reset to their defaults.
    load, matrix, fuse, store : Out
        Current fields of each unit.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "w_en": In(1),
                "w_field": In(2 + FIELD_INDEX_BITS),
                "w_data": In(32),
                "clear": In(len(Unit)),
                **{unit.name.lower(): Out(config_layout(unit)) for unit in Unit},
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        for unit in Unit:
            m.submodules[unit.name.lower()] = registers = UnitRegisters(unit)
            m.d.comb += [
                registers.w_en.eq(self.w_en & (self.w_field[FIELD_INDEX_BITS:] == int(unit))),
                registers.w_index.eq(self.w_field[:FIELD_INDEX_BITS]),
                registers.w_data.eq(self.w_data),
                registers.clear.eq(self.clear[unit]),
                getattr(self, unit.name.lower()).eq(registers.fields),
            ]
        return m
