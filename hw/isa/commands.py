"""Unit commands: the configuration fields of each unit.

A micro-program writes fields with `set UNIT.FIELD, ...` and sends a snapshot of them with `issue UNIT`. All fields
return to their defaults at the start of every macro-instruction. The index of a field in its tuple is its index in the
encoding (`unit << FIELD_INDEX_BITS | index`). docs/machine.md specifies the effect of each command.
"""

from enum import Enum

from hw.isa.enums import BSource, Dtype, Op, Post, Reduce, Requant, Rounding, Space, Unit
from hw.isa.fields import Field, Packed


def names(members: type[Enum]) -> tuple[str, ...]:
    """Return the names of an enumeration's values in lower case, for use in a field."""
    return tuple(member.name.lower() for member in members)


def count(name: str, doc: str) -> Field:
    """Return a field for the number of steps of a loop, at least one."""
    return Field(name, 16, default=1, doc=doc)


def stride(name: str, doc: str) -> Field:
    """Return a field for the distance between two steps in bytes or rows."""
    return Field(name, 20, signed=True, doc=doc)


def acc_stride(name: str, doc: str) -> Field:
    """Return a field for the distance between two steps in accumulator rows."""
    return Field(name, 16, signed=True, doc=doc)


def step(name: str, doc: str) -> Field:
    """Return a field for the distance between two steps in image rows or columns."""
    return Field(name, 12, signed=True, default=1, doc=doc)


def word32(name: str, doc: str, default: int = 0) -> Field:
    """Return a field for a signed 32-bit number."""
    return Field(name, 32, signed=True, default=default, doc=doc)


#: First half of the fuse word: operands and requantization.
FUSE_SRC = Packed(
    "fuse.src",
    (
        Field("a_src", 1, doc="operand A", enum=("acc", "sp")),
        Field("a_dtype", 2, doc="element type of A in SP", enum=names(Dtype)),
        Field("b_src", 2, doc="operand B", enum=names(BSource)),
        Field("b_dtype", 2, doc="element type of B in SP", enum=names(Dtype)),
        Field("b_bcast", 1, doc="broadcast lane b_lane of B"),
        Field("b_lane", 5, doc="lane of B to broadcast"),
        Field("op", 3, doc="operator between A and B; mul_sub: A * mult - B", enum=names(Op)),
        Field("requant", 2, doc="source of multiplier and shift", enum=names(Requant)),
        Field(
            "rq_lane",
            5,
            doc="lane of B that contains the multiplier for requant=row and post=row (its shift is in the next lane), "
            "or the sum for post=var_rsqrt",
        ),
        Field("rounding", 2, doc="rounding of steps 2 and 4", enum=names(Rounding)),
        Field("bias_en", 1, doc="add the bias (from the slot, or the field bias)"),
        Field("neg_en", 1, doc="values below zero use the second multiplier and shift"),
        Field("d_lane", 5, doc="accumulator lane that receives a lane-reduced result"),
    ),
)

#: Second half of the fuse word: table, residual, reduction, result.
FUSE_STAGE = Packed(
    "fuse.stage",
    (
        Field("table", 1, doc="table lookup after step 2"),
        Field("table_slot", 3, doc="table used by both lookups"),
        Field("residual", 1, doc="residual add"),
        Field("r_dtype", 2, doc="element type of the residual in SP, not i32", enum=names(Dtype)),
        Field(
            "r_raw",
            1,
            doc="residual inputs are multiplied without shift or rounding, and their sum is rounded as in mode single",
        ),
        Field("r_ls", 5, default=20, doc="left shift of the residual inputs, 0..30"),
        Field("table2", 1, doc="table lookup after step 4"),
        Field("reduce", 2, doc="reduction over the window dimensions wy and wx", enum=names(Reduce)),
        Field("lane_reduce", 2, doc="reduction across lanes after the window", enum=names(Reduce)),
        Field("post", 3, doc="post-scale", enum=names(Post)),
        Field("post_rounding", 2, doc="rounding of the post-scale", enum=names(Rounding)),
        Field("d_dst", 1, doc="destination", enum=("acc", "sp")),
        Field("d_dtype", 2, doc="element type of the result in SP", enum=names(Dtype)),
        Field(
            "tail_dim",
            3,
            doc="dimension whose last step uses lanes_tail: 0 wx, 1 wy, 2 x, 3 y, 4 n, 7 none",
            default=7,
        ),
        Field("a_float", 1, doc="A's int32 are float32 bit patterns; their exponents are passed to step 2"),
        Field("to_float", 1, doc="step 2 returns float32 bit patterns, without zero point and clip"),
        Field(
            "table_wide",
            1,
            doc="entries of the lookup after step 2 are int32: low halves in table_slot, high halves in the next table",
        ),
    ),
)

#: Loop dimensions of FUSE, innermost first; tail_dim is an index into this tuple.
FUSE_DIMS = ("wx", "wy", "x", "y", "n")


def _fuse_strides(stream: str, doc: str) -> tuple[Field, ...]:
    return tuple(stride(f"{stream}_{dim}", f"{doc} per step of {dim}") for dim in FUSE_DIMS)


FUSE_FIELDS = (
    Field("src", FUSE_SRC.width, default=FUSE_SRC.pack(), doc="fuse word, first half"),
    Field("stage", FUSE_STAGE.width, default=FUSE_STAGE.pack(), doc="fuse word, second half"),
    *(count(f"{dim}_count", f"steps of {dim}") for dim in FUSE_DIMS),
    Field("a_base", 20, doc="address of A at u = 0, v = 0: SP byte or ACC row"),
    stride("a_n", "bytes (SP) or rows (ACC) of A per step of n"),
    stride("a_u", "bytes (SP) or rows (ACC) of A per row coordinate"),
    stride("a_v", "bytes (SP) or rows (ACC) of A per column coordinate"),
    Field("b_base", 20, doc="address of B: SP byte or ACC row"),
    *_fuse_strides("b", "bytes (SP) or rows (ACC) of B"),
    Field("r_base", 20, doc="SP byte address of the residual"),
    *_fuse_strides("r", "bytes of the residual"),
    Field("d_base", 20, doc="address of the result: SP byte or ACC row"),
    *_fuse_strides("d", "bytes (SP) or rows (ACC) of the result"),
    Field("p_base", 8, doc="parameter slot"),
    Field("p_x", 8, signed=True, doc="parameter slots per step of x"),
    Field("p_n", 8, signed=True, doc="parameter slots per step of n"),
    Field(
        "u0",
        16,
        signed=True,
        doc="row coordinate of the first point; a point outside 0..u_lim-1 is padding",
    ),
    Field("v0", 16, signed=True, doc="column coordinate of the first point"),
    step("u_y", "row coordinate per step of y"),
    step("u_wy", "row coordinate per step of wy"),
    step("v_x", "column coordinate per step of x"),
    step("v_wx", "column coordinate per step of wx"),
    Field("u_lim", 16, doc="number of image rows; 0: no padding"),
    Field("v_lim", 16, doc="number of image columns; 0: no padding"),
    Field("lanes", 6, doc="lanes in use, 0: all"),
    Field("lanes_tail", 6, doc="lanes in use in the last step of tail_dim, 0: all"),
    Field(
        "zp_ab", 32, doc="zero points: A in bits 15..0, B in bits 31..16, both signed; used for SP operands"
    ),
    Field("op_shift", 5, doc="right shift of a product of step 1"),
    word32("bias", "bias for requant off, imm and row"),
    word32("mult", "multiplier of requant=imm and op=mul_sub"),
    word32("neg_mult", "second multiplier of requant=imm"),
    Field(
        "shifts", 16, doc="exponents of requant=imm: shift in bits 7..0, neg_shift in bits 15..8, both signed"
    ),
    word32("zp", "zero point added after requantization"),
    word32("clip_lo", "minimum value after step 2", default=-(1 << 31)),
    word32("clip_hi", "maximum value after step 2", default=(1 << 31) - 1),
    Field(
        "zp_xr",
        32,
        doc="residual add, zero points: main value in bits 15..0, residual in bits 31..16, both signed",
    ),
    word32("x_mult", "residual add: multiplier of the main value"),
    word32("r_mult", "residual add: multiplier of the residual"),
    word32("o_mult", "residual add: multiplier of the sum"),
    Field(
        "r_shifts",
        24,
        doc="residual add, exponents, signed bytes: main value, residual, sum (bits 7..0, 15..8, 23..16)",
    ),
    word32("r_bias", "residual add: added to the sum"),
    word32("o_zp", "residual add: zero point added to the result"),
    word32("r_lo", "residual add: minimum result", default=-(1 << 31)),
    word32("r_hi", "residual add: maximum result", default=(1 << 31) - 1),
    word32("post_bias", "added before the post-scale"),
    word32(
        "post_mult", "multiplier of post=scale; of recip, rsqrt and var_rsqrt: 0 if the value is not scaled"
    ),
    Field(
        "post_shift",
        8,
        signed=True,
        doc="exponent of post=scale; added to the exponent of recip, rsqrt and var_rsqrt",
    ),
    word32("post_zp", "added after the post-scale"),
    word32("post_lo", "minimum result of the post-scale", default=-(1 << 31)),
    word32("post_hi", "maximum result of the post-scale", default=(1 << 31) - 1),
    Field(
        "root_shifts",
        16,
        doc="exponents, signed bytes: scaling of recip, rsqrt and var_rsqrt by post_mult (bits 7..0), squared sum of "
        "var_rsqrt (bits 15..8)",
    ),
)


#: Mode word of LOAD.
LOAD_WORD = Packed(
    "load.word",
    (
        Field("space", 2, doc="destination", enum=names(Space)),
        Field("fill", 1, doc="write fill_value instead of reading DRAM"),
        Field("transpose", 1, doc="write each z plane of y_count lines of len bytes transposed"),
        Field("packed", 1, doc="expand packed weights: each line contains z_count groups of 2N bytes"),
        Field("fill_value", 8, doc="byte written by a fill"),
    ),
)

LOAD_FIELDS = (
    Field("word", LOAD_WORD.width, doc="mode word"),
    Field("dram", 32, doc="DRAM byte address of the first line"),
    Field("dst", 20, doc="byte address in the destination space"),
    Field("len", 20, default=1, doc="bytes read in each line"),
    count("y_count", "lines"),
    count("z_count", "planes (with packed: groups of each line)"),
    Field("dram_y", 32, signed=True, doc="DRAM bytes from line to line"),
    Field("dram_z", 32, signed=True, doc="DRAM bytes from plane to plane (not used with packed)"),
    stride("dst_y", "destination bytes from line to line (with transpose: from column to column)"),
    stride("dst_z", "destination bytes from plane to plane (with packed: from group to group)"),
)

STORE_FIELDS = (
    Field("dram", 32, doc="DRAM byte address of the first line"),
    Field("src", 20, doc="scratchpad byte address of the first line"),
    Field("len", 20, default=1, doc="bytes in each line"),
    count("y_count", "lines"),
    count("z_count", "planes"),
    Field("dram_y", 32, signed=True, doc="DRAM bytes from line to line"),
    Field("dram_z", 32, signed=True, doc="DRAM bytes from plane to plane"),
    stride("src_y", "scratchpad bytes from line to line"),
    stride("src_z", "scratchpad bytes from plane to plane"),
)

#: Mode word of MATRIX.
MATRIX_WORD = Packed(
    "matrix.word",
    (
        Field("dw", 1, doc="depthwise mode"),
        Field("accumulate", 1, doc="also add to the accumulator in the first reduction step"),
        Field("shift8", 1, doc="in the first reduction step: acc = (acc << 8) + psum"),
        Field("a_unsigned", 1, doc="activation bytes are unsigned"),
        Field("w_unsigned", 1, doc="weight bytes are unsigned"),
        Field("w_transpose", 1, doc="a weight row contains one output column: its lanes are array rows"),
        Field("keep", 1, doc="depthwise: the line buffers continue from the previous command"),
        Field("taps", 5, default=3, doc="depthwise: taps of one group"),
        Field("groups", 2, default=1, doc="depthwise: number of image rows streamed at once, 1..3"),
        Field(
            "wide",
            1,
            doc="a weight byte contains two int4 weights, for activation lanes k and N + k of 2*N lanes",
        ),
        Field(
            "scaled",
            1,
            doc="a row after the weight rows of each tile has a factor for the sums of each column",
        ),
        Field(
            "sparse",
            1,
            doc="a tile covers 2*N reduction steps, in groups of four with at most two weights, whose indices are in "
            "N/4 rows after the weight rows",
        ),
    ),
)

MATRIX_FIELDS = (
    Field("word", MATRIX_WORD.width, default=MATRIX_WORD.pack(), doc="mode word"),
    Field("a_base", 20, doc="scratchpad byte address of the activations at u = 0, v = 0"),
    Field("w_base", 20, doc="scratchpad byte address of the first weight row"),
    Field("acc_base", 16, doc="accumulator row of the first result"),
    Field("a_zp", 9, signed=True, doc="zero point subtracted from activations"),
    Field("w_zp", 9, signed=True, doc="zero point subtracted from weights"),
    count("x_count", "output columns (depthwise: stream pixels per image row)"),
    count("y_count", "output rows (depthwise: must be 1)"),
    count("kx_count", "kernel columns"),
    count("ky_count", "kernel rows"),
    count("ic_count", "blocks of input channels"),
    count("oc_count", "blocks of output channels"),
    stride("a_u", "activation bytes per image row"),
    stride("a_v", "activation bytes per image column (pixel, or row of a matrix)"),
    stride("a_ic", "activation bytes per block of input channels"),
    stride("a_oc", "activation bytes per block of output channels"),
    stride("w_row", "weight bytes from row to row of a tile"),
    stride("w_kx", "weight bytes per kernel column"),
    stride("w_ky", "weight bytes per kernel row"),
    stride("w_ic", "weight bytes per block of input channels"),
    stride("w_oc", "weight bytes per block of output channels"),
    acc_stride("acc_x", "accumulator rows per output column"),
    acc_stride("acc_y", "accumulator rows per output row"),
    acc_stride("acc_oc", "accumulator rows per block of output channels"),
    Field(
        "u0",
        16,
        signed=True,
        doc="image row of the first activation; a row outside 0..u_lim-1 is padding",
    ),
    Field("v0", 16, signed=True, doc="image column of the first activation"),
    step("u_y", "image rows per output row (depthwise: per stream row)"),
    step("u_ky", "image rows per kernel row"),
    step("v_x", "image columns per output column (depthwise: per stream pixel)"),
    step("v_kx", "image columns per kernel column"),
    Field("u_lim", 16, doc="number of image rows; 0: no row is padding"),
    Field("v_lim", 16, doc="number of image columns; 0: no column is padding"),
    Field("k_rows", 6, doc="array rows in use, 0: all"),
    Field("k_tail", 6, doc="array rows in use in the last block of input channels, 0: as k_rows"),
    Field("n_cols", 6, doc="array columns in use, 0: all"),
    Field("n_tail", 6, doc="array columns in use in the last block of output channels, 0: as n_cols"),
    Field("dw_len", 20, default=1, doc="depthwise: pixels streamed for each block of channels"),
    Field("dw_lead", 16, doc="depthwise: stream position of the first output"),
    Field("dw_out_w", 16, default=1, doc="depthwise: outputs in each image row"),
    Field("dw_sx", 4, default=1, doc="depthwise: horizontal stride"),
    Field("dw_sy", 4, default=1, doc="depthwise: vertical stride"),
)

#: Configuration fields of each unit, indexed by Unit.
UNIT_FIELDS: tuple[tuple[Field, ...], ...] = (LOAD_FIELDS, MATRIX_FIELDS, FUSE_FIELDS, STORE_FIELDS)

#: Layout of each packed word, by "unit.field".
PACKED_FIELDS = {
    "load.word": LOAD_WORD,
    "matrix.word": MATRIX_WORD,
    "fuse.src": FUSE_SRC,
    "fuse.stage": FUSE_STAGE,
}

#: Width of the field index in a field number, which contains the unit in the high bits and the index in the low bits.
FIELD_INDEX_BITS = 7


def field_number(unit: Unit, name: str) -> int:
    """Return the number that identifies a field of `unit` in the encoding of `set`."""
    for index, field in enumerate(UNIT_FIELDS[unit]):
        if field.name == name:
            return int(unit) << FIELD_INDEX_BITS | index
    raise ValueError(f"{unit.name.lower()} has no field {name!r}")


def field_of(number: int) -> tuple[Unit, Field] | None:
    """Return the unit and field of a field number; None if there is no such field."""
    unit, index = number >> FIELD_INDEX_BITS, number & ((1 << FIELD_INDEX_BITS) - 1)
    if unit < len(UNIT_FIELDS) and index < len(UNIT_FIELDS[unit]):
        return Unit(unit), UNIT_FIELDS[unit][index]
    return None


def defaults(unit: Unit) -> dict[str, int]:
    """Return the values of `unit`'s fields at the start of a macro-instruction."""
    return {f.name: f.default for f in UNIT_FIELDS[unit]}
