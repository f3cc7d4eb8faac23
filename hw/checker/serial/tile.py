"""What the serial checker finds out of a field at once: rules, and rows or lanes of a tile."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data

from hw.checker.serial.layouts import Early, Rule
from hw.config import MlaConfig


def weigh_tile(
    m: Module, met: Value, line: data.View, value: Signal, taps: Value, group: Value, config: MlaConfig
) -> Signal:
    """The tile: a number that several fields have a part in (`Early`)."""
    tile, one, given = Signal(7), Signal(), Signal(7)
    larger = Signal(7)
    default = Mux(line.early == Early.TAIL, tile, config.n)
    m.d.comb += [
        given.eq(Mux(value[:6] == 0, default, value[:6])),
        larger.eq(Mux(tile > given, tile, given)),
    ]
    with m.If(met), m.Switch(line.early):
        with m.Case(Early.ONE):
            m.d.sync += one.eq(value[:16] == 1)
        with m.Case(Early.TILE):
            m.d.sync += tile.eq(given)
        with m.Case(Early.TAIL):
            m.d.sync += tile.eq(Mux(one, given, larger))
        with m.Case(Early.LANES):
            m.d.sync += tile.eq(larger)
        with m.Case(Early.TAPS):
            m.d.sync += tile.eq(taps)
        with m.Case(Early.GROUP):
            m.d.sync += tile.eq(group)
        with m.Case(Early.SINGLE):
            m.d.sync += tile.eq(1)
    return tile


def early_rules(m: Module, met: Value, line: data.View, value: Signal, config: MlaConfig) -> Signal:
    """Whether the field of a line broke its rule (`Rule`), a cycle later."""
    broken, hit = Signal(), Signal()
    low = (config.n - 1).bit_length()
    rules = {
        Rule.ZERO: value[:20] == 0,
        Rule.ABOVE_N: value[:20] > config.n,
        Rule.NOT_ONE: value[:16] != 1,
        Rule.UNALIGNED: value[:low].any(),
        Rule.NEGATIVE_U8: value[8],
        Rule.BEYOND_I8: value[8] ^ value[7],
        Rule.ALWAYS: 1,
    }
    with m.Switch(line.rule):
        for rule, condition in rules.items():
            with m.Case(rule):
                m.d.comb += hit.eq(condition)
    m.d.sync += broken.eq(met & hit)
    return broken
