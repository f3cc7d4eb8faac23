"""Rules of BAD_COMMAND: illegal values of a command's fields that do not depend on the sizes of its walks."""

from amaranth.hdl import Cat, Const, Value
from amaranth.lib import data

from hw.checker.values import times_groups
from hw.config import MlaConfig
from hw.isa.enums import PAIRS, BSource, Dtype, Op, Post, Reduce, Requant, Space, Unit

#: Fields of MATRIX that must be multiples of 2 * n in wide and sparse mode.
MATRIX_A_ADDRESSES = ("a_base", "a_u", "a_v", "a_ic", "a_oc")


def _zero(fields: data.View, *names: str) -> list[Value]:
    return [getattr(fields, name) == 0 for name in names]


def load_rules(fields: data.View, config: MlaConfig) -> list[Value]:
    """Return conditions, any of which makes a LOAD command illegal."""
    word, n = fields.word, config.n
    elsewhere = word.space != Space.SP
    low = (n - 1).bit_length()
    rows = Cat(getattr(fields, name).as_unsigned()[:low] for name in ("dst", "dst_y", "dst_z")).any()
    unaligned = rows | fields.len[:low].any()
    return [
        *_zero(fields, "len", "y_count", "z_count"),
        word.space > Space.TABLE,
        word.transpose & (word.fill | elsewhere | (fields.len > n) | (fields.y_count > n)),
        elsewhere & unaligned,
        word.packed & (word.fill | word.transpose | elsewhere | rows if config.packed_loads else Const(1)),
    ]


def store_rules(fields: data.View, config: MlaConfig) -> list[Value]:
    """Return conditions, any of which makes a STORE command illegal."""
    return _zero(fields, "len", "y_count", "z_count")


def matrix_rules(fields: data.View, config: MlaConfig) -> list[Value]:
    """Return conditions, any of which makes a MATRIX command illegal."""
    word, n = fields.word, config.n
    zero_points = [
        # Zero points have nine bits; the zero point of an unsigned operand must not be negative, that of a signed
        # operand must fit eight bits.
        (unsigned & value[8]) | (~unsigned & (value[8] ^ value[7]))
        for value, unsigned in (
            (fields.a_zp.as_unsigned(), word.a_unsigned),
            (fields.w_zp.as_unsigned(), word.w_unsigned),
        )
    ]
    taps = times_groups(word.taps, word.groups)
    depth = times_groups(fields.x_count, word.groups) + (word.taps << 1)
    depthwise = [
        *_zero(word, "taps", "groups"),
        *_zero(fields, "dw_sx", "dw_sy", "dw_out_w", "dw_len"),
        taps > n,
        (word.groups > 1) & (depth > config.line_depth),
        *(getattr(fields, name) != 1 for name in ("y_count", "kx_count", "ky_count", "ic_count")),
        word.w_transpose,
        fields.dw_len <= fields.dw_lead,
        word.keep & (fields.oc_count != 1),
    ]
    pair_bits = n.bit_length()
    unaligned = Cat(getattr(fields, name).as_unsigned()[:pair_bits] for name in MATRIX_A_ADDRESSES).any()
    not_paired = word.dw | word.w_transpose | word.w_unsigned | (fields.w_zp != 0) | unaligned
    return [
        *_zero(fields, "x_count", "y_count", "kx_count", "ky_count", "ic_count", "oc_count"),
        *(getattr(fields, name) > n for name in ("k_rows", "k_tail", "n_cols", "n_tail")),
        *zero_points,
        word.dw & Cat(*depthwise).any(),
        word.wide & (not_paired if config.wide else 1),
        word.sparse & ((not_paired | word.wide) if config.sparse else 1),
        word.scaled & ((word.dw | word.w_transpose) if config.wide else 1),
    ]


def fuse_word_rules(src: data.View, stage: data.View, config: MlaConfig) -> list[Value]:
    """Return conditions on the packed words, any of which makes a FUSE command illegal."""
    n = config.n
    none = src.b_src == BSource.NONE
    pair = Cat(stage.post == each for each in PAIRS).any()
    of_row = (src.requant == Requant.ROW) | (stage.post == Post.ROW) | (stage.post == Post.VAR_RSQRT)
    reduces = stage.lane_reduce != Reduce.NONE
    return [
        of_row & (none | (src.rq_lane >= n - 1)),
        src.b_bcast & (src.b_lane >= n),
        none & (src.op != Op.PASS) & (src.op != Op.SQUARE),
        src.b_src > BSource.SP,
        src.op > Op.MUL_SUB,
        stage.r_dtype == Dtype.I32,
        stage.table_slot + stage.table_wide >= config.table_slots,
        stage.table_wide & (~stage.table | stage.residual | stage.table2),
        reduces & ~stage.d_dst & ((src.d_lane >= n) | (pair & (src.d_lane == n - 1))),
        pair & (~reduces | stage.d_dst),
        (stage.post == Post.SLOT) & reduces,
        stage.r_ls > 30,
        (stage.tail_dim == 5) | (stage.tail_dim == 6),
    ]


def fuse_rules(fields: data.View, config: MlaConfig) -> list[Value]:
    """Return conditions, any of which makes a FUSE command illegal."""
    return [
        *_zero(fields, "wx_count", "wy_count", "x_count", "y_count", "n_count"),
        fields.lanes > config.n,
        fields.lanes_tail > config.n,
        *fuse_word_rules(fields.src, fields.stage, config),
    ]


RULES = {Unit.LOAD: load_rules, Unit.MATRIX: matrix_rules, Unit.FUSE: fuse_rules, Unit.STORE: store_rules}
