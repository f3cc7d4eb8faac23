"""Unit commands: the configuration fields of each unit.

A micro-program writes fields with `set UNIT.FIELD, ...` and sends a snapshot of them with `issue UNIT`. All fields
return to their defaults at the start of every macro-instruction. The index of a field in its tuple is its number in
the encoding (`unit << 6 | index`). docs/machine.md says what each command does.
"""

from hw.isa.commands_fuse import FUSE_DIMS, FUSE_FIELDS, FUSE_SRC, FUSE_STAGE
from hw.isa.enums import Space, Unit
from hw.isa.field_kinds import acc_stride, count, names, step, stride
from hw.isa.fields import Field, Packed

__all__ = [
    "FIELD_INDEX_BITS",
    "FUSE_DIMS",
    "FUSE_FIELDS",
    "FUSE_SRC",
    "FUSE_STAGE",
    "LOAD_FIELDS",
    "LOAD_WORD",
    "MATRIX_FIELDS",
    "MATRIX_WORD",
    "PACKED_FIELDS",
    "STORE_FIELDS",
    "UNIT_FIELDS",
    "defaults",
    "field_number",
    "field_of",
]

#: Mode word of LOAD.
LOAD_WORD = Packed(
    "load.word",
    (
        Field("space", 2, doc="destination", enum=names(Space)),
        Field("fill", 1, doc="write fill_value instead of reading DRAM"),
        Field("transpose", 1, doc="write each z plane of y_count lines of len bytes transposed"),
        Field("int4", 1, doc="expand each DRAM byte to two sign-extended bytes, low nibble first"),
        Field("fill_value", 8, doc="byte written by a fill"),
    ),
)

LOAD_FIELDS = (
    Field("word", LOAD_WORD.width, doc="mode word"),
    Field("dram", 32, doc="DRAM byte address of the first line"),
    Field("dst", 20, doc="byte address in the destination space"),
    Field("len", 20, default=1, doc="bytes read in each line"),
    count("y_count", "lines"),
    count("z_count", "planes"),
    Field("dram_y", 32, signed=True, doc="DRAM bytes from line to line"),
    Field("dram_z", 32, signed=True, doc="DRAM bytes from plane to plane"),
    stride("dst_y", "destination bytes from line to line (from column to column when transposing)"),
    stride("dst_z", "destination bytes from plane to plane"),
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
        Field("accumulate", 1, doc="add to the accumulator in the first reduction step too"),
        Field("shift8", 1, doc="in the first reduction step: acc = (acc << 8) + psum"),
        Field("a_unsigned", 1, doc="activation bytes are unsigned"),
        Field("w_unsigned", 1, doc="weight bytes are unsigned"),
        Field("w_transpose", 1, doc="a weight row holds one output column: lanes are array rows"),
        Field("keep", 1, doc="depthwise: the line buffers continue from the previous command"),
        Field("taps", 5, default=3, doc="depthwise: taps of one group"),
        Field("groups", 2, default=1, doc="depthwise: image rows fed at once, 1..3"),
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
        doc="image row of the first activation (padding is where it is out of 0..u_lim-1)",
    ),
    Field("v0", 16, signed=True, doc="image column of the first activation"),
    step("u_y", "image rows per output row (depthwise: per stream row)"),
    step("u_ky", "image rows per kernel row"),
    step("v_x", "image columns per output column (depthwise: per stream pixel)"),
    step("v_kx", "image columns per kernel column"),
    Field("u_lim", 16, doc="image rows; 0: rows are never padding"),
    Field("v_lim", 16, doc="image columns; 0: columns are never padding"),
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

#: Words made of named parts: "unit.field" -> its layout.
PACKED_FIELDS = {
    "load.word": LOAD_WORD,
    "matrix.word": MATRIX_WORD,
    "fuse.src": FUSE_SRC,
    "fuse.stage": FUSE_STAGE,
}

#: Bits of a field number: unit in the high bits, index in the low ones.
FIELD_INDEX_BITS = 7


def field_number(unit: Unit, name: str) -> int:
    """Number of `unit`'s field in the encoding of `set`."""
    for index, field in enumerate(UNIT_FIELDS[unit]):
        if field.name == name:
            return int(unit) << FIELD_INDEX_BITS | index
    raise ValueError(f"{unit.name.lower()} has no field {name!r}")


def field_of(number: int) -> tuple[Unit, Field] | None:
    """Unit and field of a field number, or None if there is none."""
    unit, index = number >> FIELD_INDEX_BITS, number & ((1 << FIELD_INDEX_BITS) - 1)
    if unit < len(UNIT_FIELDS) and index < len(UNIT_FIELDS[unit]):
        return Unit(unit), UNIT_FIELDS[unit][index]
    return None


def defaults(unit: Unit) -> dict[str, int]:
    """Configuration of `unit` at the start of a macro-instruction."""
    return {f.name: f.default for f in UNIT_FIELDS[unit]}
