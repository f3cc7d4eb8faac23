"""The configuration fields of FUSE: the fuse word, the streams of its walk, the parameters of its steps."""

from hw.isa.enums import BSource, Dtype, Op, Post, Reduce, Requant, Rounding
from hw.isa.field_kinds import count, names, step, stride, word32
from hw.isa.fields import Field, Packed

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
        Field("op", 3, doc="operator between A and B", enum=names(Op)),
        Field("requant", 2, doc="where multiplier and shift come from", enum=names(Requant)),
        Field(
            "rq_lane",
            5,
            doc="lane of B holding the multiplier (its shift is in the next lane) for requant=row",
        ),
        Field("rounding", 2, doc="rounding of steps 2 and 4", enum=names(Rounding)),
        Field("bias_en", 1, doc="add the bias (from the slot, or the field bias)"),
        Field("neg_en", 1, doc="values below zero take the second multiplier and shift"),
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
        Field("r_dtype", 2, doc="element type of the residual in SP (not i32)", enum=names(Dtype)),
        Field(
            "r_raw",
            1,
            doc="residual inputs are multiplied without shift or rounding, their sum rounded as single",
        ),
        Field("r_ls", 5, default=20, doc="left shift of the residual inputs, 0..30"),
        Field("table2", 1, doc="table lookup after step 4"),
        Field("reduce", 2, doc="reduction over the window dimensions wy and wx", enum=names(Reduce)),
        Field("lane_reduce", 2, doc="reduction across lanes after the window", enum=names(Reduce)),
        Field("post", 3, doc="post-scale", enum=names(Post)),
        Field("post_rounding", 2, doc="rounding of post=scale", enum=names(Rounding)),
        Field("d_dst", 1, doc="destination", enum=("acc", "sp")),
        Field("d_dtype", 2, doc="element type of the result in SP", enum=names(Dtype)),
        Field(
            "tail_dim",
            3,
            doc="dimension whose last step uses lanes_tail: 0 wx, 1 wy, 2 x, 3 y, 4 n, 7 none",
            default=7,
        ),
        Field("a_float", 1, doc="A's int32 are float32 numbers; their exponents go to step 2"),
        Field("to_float", 1, doc="step 2 makes float32 numbers, without zero point and clip"),
    ),
)

#: Loop dimensions of FUSE, innermost first (the numbering of tail_dim).
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
    Field("p_x", 8, signed=True, doc="slots per step of x"),
    Field("p_n", 8, signed=True, doc="slots per step of n"),
    Field(
        "u0",
        16,
        signed=True,
        doc="row coordinate of the first point (padding is where it is out of 0..u_lim-1)",
    ),
    Field("v0", 16, signed=True, doc="column coordinate of the first point"),
    step("u_y", "row coordinate per step of y"),
    step("u_wy", "row coordinate per step of wy"),
    step("v_x", "column coordinate per step of x"),
    step("v_wx", "column coordinate per step of wx"),
    Field("u_lim", 16, doc="rows; 0: never padding"),
    Field("v_lim", 16, doc="columns; 0: never padding"),
    Field("lanes", 6, doc="lanes in use, 0: all"),
    Field("lanes_tail", 6, doc="lanes in use in the last step of tail_dim, 0: all"),
    Field(
        "zp_ab", 32, doc="zero points: A in bits 15..0, B in bits 31..16, both signed; used for SP operands"
    ),
    Field("op_shift", 5, doc="right shift of a product of step 1"),
    word32("bias", "bias of requant off, imm and row"),
    word32("mult", "multiplier of requant=imm"),
    word32("neg_mult", "second multiplier of requant=imm"),
    Field(
        "shifts", 16, doc="exponents of requant=imm: shift in bits 7..0, neg_shift in bits 15..8, both signed"
    ),
    word32("zp", "zero point added after requantization"),
    word32("clip_lo", "least value after step 2", default=-(1 << 31)),
    word32("clip_hi", "greatest value after step 2", default=(1 << 31) - 1),
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
    word32("r_lo", "residual add: least result", default=-(1 << 31)),
    word32("r_hi", "residual add: greatest result", default=(1 << 31) - 1),
    word32("post_bias", "added before the post-scale"),
    word32("post_mult", "multiplier of post=scale"),
    Field(
        "post_shift", 8, signed=True, doc="exponent of post=scale; added to the exponent of recip and rsqrt"
    ),
    word32("post_zp", "added after the post-scale"),
    word32("post_lo", "least result of the post-scale", default=-(1 << 31)),
    word32("post_hi", "greatest result of the post-scale", default=(1 << 31) - 1),
)
