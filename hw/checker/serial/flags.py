"""Checks of the serial checker on single fields: flags of the packed words, tile size, and rules."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data

from hw.checker.rules import fuse_word_rules
from hw.checker.serial.layouts import Early, Flag, Rule
from hw.checker.values import times_groups
from hw.config import MlaConfig
from hw.isa.commands import FUSE_DIMS, PACKED_FIELDS
from hw.isa.enums import BSource, Dtype, Post, Requant, Space
from hw.layouts import packed_layout


def _view(name: str, word: Signal) -> data.View:
    layout = packed_layout(PACKED_FIELDS[name])
    return data.View(layout, word[: layout.size])


def check_flags(
    m: Module, first: Signal, second: Signal, quotient: Value, config: MlaConfig
) -> tuple[Signal, Signal, Value]:
    """Return the flags, and for a depthwise command the number of taps of all groups and of one group.

    Parameters
    ----------
    m : Module
        Module that the logic is added to.
    first, second : Signal
        First and second packed word of the command.
    quotient : Value
        Result of the last division.
    config : MlaConfig
        Configuration of the machine.
    """
    load, matrix = _view("load.word", first), _view("matrix.word", first)
    src, stage = _view("fuse.src", first), _view("fuse.stage", second)
    taps = Signal(7)
    m.d.comb += taps.eq(times_groups(matrix.taps, matrix.groups))
    away = load.space != Space.SP
    uses_b, b_sp = src.b_src != BSource.NONE, src.b_src == BSource.SP
    not_paired = matrix.dw | matrix.w_transpose | matrix.w_unsigned
    wide_conflict = not_paired if config.wide else 1
    sparse_conflict = (not_paired | matrix.wide) if config.sparse else 1
    scaled_conflict = (matrix.dw | matrix.w_transpose) if config.wide else 1
    values: dict[Flag, Value | int] = {
        Flag.ALWAYS: 1,
        Flag.FILL: load.fill,
        Flag.TRANSPOSE: load.transpose,
        Flag.PACKED: load.packed,
        Flag.COPIES: ~load.transpose & ~load.packed,
        Flag.AWAY: away,
        Flag.PARAM: load.space == Space.PARAM,
        Flag.TABLE: load.space[1],
        Flag.BAD_LOAD: (load.space > Space.TABLE)
        | (load.transpose & (load.fill | away))
        | (load.packed & (load.fill | load.transpose | away if config.packed_loads else Const(1))),
        Flag.DW: matrix.dw,
        Flag.DW_KEEP: matrix.dw & matrix.keep,
        Flag.DW_GROUPS: matrix.dw & matrix.groups[1],
        Flag.BAD_TAPS: matrix.dw & ((taps == 0) | (taps > config.n)),
        Flag.W_TRANSPOSE: matrix.w_transpose,
        Flag.A_UNSIGNED: matrix.a_unsigned,
        Flag.W_UNSIGNED: matrix.w_unsigned,
        Flag.ONE_GROUP: matrix.groups[0],
        Flag.TWO_GROUPS: matrix.groups[1],
        Flag.BAD_MATRIX: (matrix.dw & matrix.w_transpose)
        | (matrix.wide & wide_conflict)
        | (matrix.scaled & scaled_conflict)
        | (matrix.sparse & sparse_conflict),
        Flag.PAIRED: matrix.wide | (matrix.sparse if config.sparse else 0),
        Flag.SPARSE: matrix.sparse,
        Flag.SCALED: matrix.scaled,
        Flag.A_SP: src.a_src,
        Flag.A_16: src.a_src & src.a_dtype[1],
        Flag.A_32: src.a_src & (src.a_dtype == Dtype.I32),
        Flag.B: uses_b,
        Flag.B_SP: b_sp,
        Flag.B_16: b_sp & src.b_dtype[1],
        Flag.B_32: b_sp & (src.b_dtype == Dtype.I32),
        Flag.B_ACC: uses_b & ~b_sp,
        Flag.R: stage.residual,
        Flag.R_16: stage.residual & stage.r_dtype[1],
        Flag.D_SP: stage.d_dst,
        Flag.D_16: stage.d_dst & stage.d_dtype[1],
        Flag.D_32: stage.d_dst & (stage.d_dtype == Dtype.I32),
        Flag.SLOTS: (src.requant == Requant.SLOT) | (stage.post == Post.SLOT),
        Flag.COUNT: stage.post == Post.COUNT,
        Flag.TAIL: stage.tail_dim < len(FUSE_DIMS),
        Flag.REDUCES: stage.lane_reduce != 0,
        Flag.SHORT: matrix.dw & (quotient == 0),
        Flag.BAD_FUSE: Cat(*fuse_word_rules(src, stage, config)).any(),
    }
    flags = Signal(1 << (len(Flag) - 1).bit_length())
    m.d.comb += [flags[flag].eq(value) for flag, value in values.items()]
    return flags, taps, matrix.taps


def weigh_tile(
    m: Module, met: Value, line: data.View, value: Signal, taps: Value, group: Value, config: MlaConfig
) -> Signal:
    """Update the tile size, which is computed from several fields (see `Early`), and return it."""
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
    """Return a signal that is high one cycle after a line whose field violates its `Rule`."""
    broken, hit = Signal(), Signal()
    low = (config.n - 1).bit_length()
    rules = {
        Rule.ZERO: value[:20] == 0,
        Rule.ABOVE_N: value[:20] > config.n,
        Rule.NOT_ONE: value[:16] != 1,
        Rule.UNALIGNED: value[:low].any(),
        Rule.UNPAIRED: value[: low + 1].any(),
        Rule.NOT_ZERO: value[:20] != 0,
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
