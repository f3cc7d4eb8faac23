"""Payloads inside FUSE: points, beats, stage controls, and small helpers that every stage uses."""

from collections.abc import Sequence

from amaranth.hdl import Mux, Value, signed, unsigned
from amaranth.lib import data

from hw.config import SP_ADDR_BITS, MlaConfig

#: Maximum number of commands inside FUSE; stages select their controls by the index of a command.
COMMANDS = 8
INDEX_BITS = 3
#: Maximum number of beats (parts of a row) between issue and the result writer.
CREDITS = 128

#: One point of a command, as the issue stage uses it. `sp_need`: mask of the scratchpad reads, for A (4 pieces), B (4)
#: and the residual (2); `acc_need`: mask of the accumulator reads, for A and B.
POINT = data.StructLayout(
    {
        "a": SP_ADDR_BITS,
        "b": SP_ADDR_BITS,
        "r": SP_ADDR_BITS,
        "d": SP_ADDR_BITS,
        "slot": 8,
        "sp_need": 10,
        "acc_need": 2,
        "live": 1,  # set if the point is not padding
        "first": 1,
        "last": 1,  # set in the last point of a window
        "tail": 1,  # set if the number of active lanes is lanes_tail
        "emit": 1,  # set if the point completes a result
        "final": 1,  # set in the last point of a command
        "cmd": INDEX_BITS,
    }
)

#: Width of the index of a beat within its row; fuse_rate is at most 8.
PART_BITS = 3

#: Control data that accompany the lanes of a beat. `part` is the index of the beat within its row; it is used only if
#: fuse_rate is not 1.
BEAT = data.StructLayout(
    {
        "valid": 1,
        "live": 1,
        "part": PART_BITS,
        "first": 1,
        "last": 1,
        "tail": 1,
        "cmd": INDEX_BITS,
        "slot": 8,
    }
)

#: Data of a point for the result writer.
DESCRIPTOR = data.StructLayout({"addr": SP_ADDR_BITS, "tail": 1, "emit": 1, "final": 1, "cmd": INDEX_BITS})

_S32 = signed(32)
_S16 = signed(16)
_S8 = signed(8)

#: Reads that a point needs.
READ_CONTROL = data.StructLayout(
    {
        "a_sp": 4,
        "b_sp": 4,
        "r_sp": 2,
        "a_acc": 1,
        "b_acc": 1,
        "emit_all": 1,
    }
)
SOURCE_CONTROL = data.StructLayout(
    {
        "a_dtype": 2,
        "b_dtype": 2,
        "r_dtype": 2,
        "b_bcast": 1,
        "b_on": 1,
        "b_lane": 5,
        "rq_lane": 5,
        "a_zp": _S16,
        "b_zp": _S16,
        "a_float": 1,
    }
)
OP_CONTROL = data.StructLayout(
    {
        "add": 1,
        "sub": 1,
        "product": 1,
        "square": 1,
        "mul_sub": 1,
        "factor": signed(18),  # multiplier of mul_sub
        "shift": 5,
        "bias_slot": 1,
        "reads_bias": 1,
        "bias": _S32,
    }
)


def requant_control(n: int) -> data.StructLayout:
    """Return the layout of the controls of step 2.

    `slot` and `row` select the source of the multiplier; if neither is set, a field of the command contains it.
    """
    return data.StructLayout(
        {
            "slot": 1,
            "row": 1,
            "neg_en": 1,
            "mult": _S32,
            "exponent": _S8,
            "neg_mult": _S32,
            "neg_exponent": _S8,
            "rounding": 2,
            "zp": _S32,
            "lo": _S32,
            "hi": _S32,
            "count_all": 1,
            "to_float": 1,
            "mask": unsigned(n),
            "mask_tail": unsigned(n),
        }
    )


#: `wide`: 1 keeps the index below the entry, for the lookup of the high half by the second stage, which has the same
#: control.
TABLE_CONTROL = data.StructLayout({"enable": 1, "slot": 3, "wide": 1})
RESIDUAL_CONTROL = data.StructLayout(
    {
        "enable": 1,
        "rounding": 2,
        "raw": 1,
        "ls": 5,
        "x_zp": _S16,
        "r_zp": _S16,
        "x_mult": _S32,
        "r_mult": _S32,
        "o_mult": _S32,
        "x_exponent": _S8,
        "r_exponent": _S8,
        "o_exponent": _S8,
        "bias": _S32,
        "zp": _S32,
        "lo": _S32,
        "hi": _S32,
    }
)


def bypass_control(n: int) -> data.StructLayout:
    """Return the layout of the controls of the bypass after step 3; `early` is set if the command takes it."""
    return data.StructLayout(
        {"early": 1, "low": _S32, "high": _S32, "mask": unsigned(n), "mask_tail": unsigned(n)}
    )


def reduce_control(n: int) -> data.StructLayout:
    """Return the layout of the controls of the reductions of step 5."""
    return data.StructLayout({"reduce": 2, "lane_reduce": 2, "mask": unsigned(n), "mask_tail": unsigned(n)})


def post_control(n: int) -> data.StructLayout:
    """Return the layout of the controls of the post-scale of step 5 and the saturation of step 6."""
    return data.StructLayout(
        {
            "bias": _S32,
            "count": 1,
            "row": 1,
            "slot": 1,
            "variance": 1,
            "square_exponent": _S8,
            "mult": _S32,
            "exponent": _S8,
            "rounding": 2,
            "zp": _S32,
            "lo": _S32,
            "hi": _S32,
            "low": _S32,
            "high": _S32,
            "scalar": 1,
            "pair": 1,
            "root": 1,
            "emit_all": 1,
            "mask": unsigned(n),
            "mask_tail": unsigned(n),
        }
    )


def writer_control(n: int) -> data.StructLayout:
    """Return the layout of the controls of the result writer, including the command's data for the counters."""
    return data.StructLayout(
        {
            "sp": 1,
            "dtype": 2,
            "scalar": 1,
            "d_lane": 5,
            "pair": 1,
            "exponent": _S8,
            "mask": unsigned(n),
            "mask_tail": unsigned(n),
            "scaled": 1,
            "table": 1,
            "residual": 1,
            "reduced": 1,
        }
    )


def controls(n: int) -> dict[str, data.StructLayout]:
    """Return the layout of every stage's controls, by the stage's name."""
    return {
        "read": READ_CONTROL,
        "source": SOURCE_CONTROL,
        "op": OP_CONTROL,
        "requant": requant_control(n),
        "table": TABLE_CONTROL,
        "bypass": bypass_control(n),
        "residual": RESIDUAL_CONTROL,
        "table2": TABLE_CONTROL,
        "reduce": reduce_control(n),
        "post": post_control(n),
        "writer": writer_control(n),
    }


def control_write(control: data.StructLayout) -> data.StructLayout:
    """Return the layout of the port through which a command's controls are written to the control store of a stage."""
    return data.StructLayout({"write": 1, "index": INDEX_BITS, "control": control})


def lanes_of(config: MlaConfig) -> int:
    """Return the number of lanes of the pipeline, which takes fuse_rate beats for one row."""
    return config.n // config.fuse_rate


def part_of(row: Sequence[Value], part: Value, count: int) -> list[Value]:
    """Return the `count` lanes of a row that belong to beat `part`."""
    options = [list(row[i : i + count]) for i in range(0, len(row), count)]
    for bit in range((len(options) - 1).bit_length()):
        options = [
            [Mux(part[bit], b, a) for a, b in zip(low, high, strict=True)]
            for low, high in zip(options[::2], options[1::2], strict=True)
        ]
    return options[0]


def lanes(count: int, width: int = 32) -> data.ArrayLayout:
    """Return the layout of `count` signed lanes of `width` bits."""
    return data.ArrayLayout(signed(width), count)
