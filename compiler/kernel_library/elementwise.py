"""Elementwise operators of the resident program `elementwise`: sums, products, requantization, table lookups; and moves
of data in DRAM with the programs `transpose` and `copy`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from compiler.util.scaling import (
    Affine,
    bytes_word,
    float32_multiplier,
    float32_ratio,
    halves_word,
    quantize_multiplier,
)
from compiler.util.tiles import allocate, ceil_div
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE
from hw.isa.enums import BSource, Dtype, Op, Requant, Rounding

_INT32 = (-(1 << 31), (1 << 31) - 1)
#: Maximum number of chunks per transfer, so that loads, computation and stores overlap.
_CHUNKS = 12
_MIN_ROWS = 32
#: Minimum number of chunks of a large copy, so that loads and stores overlap, and minimum bytes of a chunk.
_COPY_CHUNKS, _MIN_COPY = 8, 1024


@dataclass(frozen=True, kw_only=True)
class Elementwise:
    """FUSE pass over contiguous elements: fuse words and the fields that they use, named as in docs/machine.md."""

    src: int = FUSE_SRC.pack()
    stage: int = FUSE_STAGE.pack()
    sources: int = 1
    zp_ab: int = 0
    op_shift: int = 0
    bias: int = 0
    mult: int = 0
    shifts: int = 0
    zp: int = 0
    clip: tuple[int, int] = _INT32
    zp_xr: int = 0
    x_mult: int = 0
    r_mult: int = 0
    o_mult: int = 0
    r_shifts: int = 0
    r_bias: int = 0
    o_zp: int = 0
    r_clip: tuple[int, int] = _INT32
    neg_mult: int = 0


def source_word(
    a_dtype: Dtype = Dtype.I8,
    b_dtype: Dtype | None = None,
    *,
    op: Op = Op.PASS,
    requant: Requant = Requant.OFF,
    rounding: Rounding = Rounding.DOUBLE,
    neg_en: int = 0,
) -> int:
    """Return the first half of the fuse word for operands in the scratchpad."""
    b_src = BSource.NONE if b_dtype is None else BSource.SP
    return FUSE_SRC.pack(
        a_src=1,
        a_dtype=a_dtype,
        b_src=b_src,
        b_dtype=b_dtype or Dtype.I8,
        op=op,
        requant=requant,
        rounding=rounding,
        neg_en=neg_en,
    )


def stage_word(d_dtype: Dtype = Dtype.I8, **parts: int) -> int:
    """Return the second half of the fuse word for a result in the scratchpad whose last row may be partial."""
    return FUSE_STAGE.pack(d_dst=1, d_dtype=d_dtype, tail_dim=FUSE_DIMS.index("x"), **parts)


def elementwise_operands(
    config: MlaConfig, how: Elementwise, *, total: int, a: int, y: int, b: int = 0, table: int = 0
) -> list[int]:
    """Return the operands of `elementwise`.

    Parameters
    ----------
    total : int
        Number of elements, each of one byte.
    a, b, y, table : int
        DRAM addresses of the sources, the result and the table; 0 for an absent source or table.

    Raises
    ------
    InputError
        There are no elements.
    """
    if total < 1:
        raise InputError(f"an elementwise operation must have at least one element, not {total}")
    n = config.n
    rows = min(config.sp_bytes // 8, max(_MIN_ROWS * n, ceil_div(total, _CHUNKS)), total)
    chunk = ceil_div(rows, n) * n
    bank = config.sp_bytes // config.sp_banks
    a_sp, b_sp, y_sp = allocate([2 * chunk] * 3, bank, config.sp_bytes)
    return [
        a,
        b,
        y,
        total,
        chunk,
        a_sp,
        b_sp,
        y_sp,
        how.sources,
        table,
        n.bit_length() - 1,
        how.src,
        how.stage,
        how.zp_ab,
        how.op_shift,
        how.bias,
        how.mult,
        how.shifts,
        how.zp,
        *how.clip,
        how.zp_xr,
        how.x_mult,
        how.r_mult,
        how.o_mult,
        how.r_shifts,
        how.r_bias,
        how.o_zp,
        *how.r_clip,
        how.neg_mult,
    ]


class ResidualScales(TypedDict):
    """Command fields of FUSE's residual addition."""

    zp_xr: int
    x_mult: int
    r_mult: int
    o_mult: int
    r_shifts: int
    o_zp: int


#: Left shift of the inputs of TFLite's ADD, and number of bits of XNNPACK's multipliers.
LEFT_SHIFT = 20
#: Left shift of the int16 inputs of TFLite's ADD, with which their sums fit 32 bits.
LEFT_SHIFT_16 = 15


def raw_fields(x: Affine, r: Affine, y: Affine) -> ResidualScales:
    """Return the fields of XNNPACK's addition: products with 21-bit multipliers, rounded once by a final shift."""
    ratios = [np.float32(part.scale) / np.float32(y.scale) for part in (x, r)]
    shift = LEFT_SHIFT + 1 - math.frexp(float(max(ratios)))[1]
    x_mult, r_mult = (round(float(ratio) * 2.0**shift) for ratio in ratios)
    return {
        "zp_xr": halves_word(x.zero_point, r.zero_point),
        "x_mult": x_mult,
        "r_mult": r_mult,
        "o_mult": 1,
        "r_shifts": bytes_word(0, 0, 31 - shift),
        "o_zp": y.zero_point,
    }


def residual_fields(x: Affine, r: Affine, y: Affine, left: int = LEFT_SHIFT) -> ResidualScales:
    """Return the fields of FUSE's residual addition for the quantizations of main value, residual and sum.

    The summands are first shifted to the left by `left` bits.
    """
    twice = 2 * max(x.scale, r.scale)
    (x_mult, x_exp), (r_mult, r_exp) = (quantize_multiplier(part.scale / twice) for part in (x, r))
    o_mult, o_exp = quantize_multiplier(twice / ((1 << left) * y.scale))
    return {
        "zp_xr": halves_word(x.zero_point, r.zero_point),
        "x_mult": x_mult,
        "r_mult": r_mult,
        "o_mult": o_mult,
        "r_shifts": bytes_word(x_exp, r_exp, o_exp),
        "o_zp": y.zero_point,
    }


def add(
    a: Affine,
    b: Affine,
    y: Affine,
    *,
    clip: tuple[int, int] = (-128, 127),
    rounding: Rounding = Rounding.DOUBLE,
    dtype: Dtype = Dtype.I8,
) -> Elementwise:
    """Return the operation y = a + b; sources and result have the same type.

    `Rounding.DOUBLE` reproduces TFLite's reference kernel. `Rounding.SINGLE` reproduces XNNPACK's kernel, which rounds
    once.
    """
    raw = rounding == Rounding.SINGLE
    stage = stage_word(dtype, residual=1, r_dtype=dtype, r_raw=int(raw), r_ls=0 if raw else LEFT_SHIFT)
    fields = (raw_fields if raw else residual_fields)(a, b, y)
    return Elementwise(
        src=source_word(dtype, rounding=rounding), stage=stage, sources=2, r_clip=clip, **fields
    )


def mul(
    a: Affine,
    b: Affine,
    y: Affine,
    *,
    clip: tuple[int, int] = (-128, 127),
    rounding: Rounding = Rounding.DOUBLE,
    dtype: Dtype = Dtype.I8,
) -> Elementwise:
    """Return the operation y = a * b; sources and result have the same type.

    `Rounding.DOUBLE` reproduces TFLite's reference kernel, `Rounding.EVEN` reproduces XNNPACK's kernel.
    """
    # For products, TFLite's reference kernel uses single precision as well.
    mult, exponent = float32_multiplier(float32_ratio(a.scale, b.scale, y.scale))
    return Elementwise(
        src=source_word(dtype, dtype, op=Op.MUL, requant=Requant.IMM, rounding=rounding),
        stage=stage_word(dtype),
        sources=2,
        zp_ab=halves_word(a.zero_point, b.zero_point),
        mult=mult,
        shifts=bytes_word(exponent),
        zp=y.zero_point,
        clip=clip,
    )


def requantize(
    a: Affine,
    y: Affine,
    *,
    negative_slope: float = 1.0,
    clip: tuple[int, int] = (-128, 127),
    rounding: Rounding = Rounding.DOUBLE,
    a_dtype: Dtype = Dtype.I8,
    y_dtype: Dtype = Dtype.I8,
) -> Elementwise:
    """Return the operation y = a, with negative values multiplied by `negative_slope` (at least 0) as in LeakyRelu."""
    mult, exponent = quantize_multiplier(a.scale / y.scale)
    neg_mult, neg_exponent = quantize_multiplier(a.scale * negative_slope / y.scale)
    return Elementwise(
        src=source_word(a_dtype, requant=Requant.IMM, rounding=rounding, neg_en=int(negative_slope != 1.0)),
        stage=stage_word(y_dtype),
        zp_ab=halves_word(a.zero_point, 0),
        mult=mult,
        neg_mult=neg_mult,
        shifts=bytes_word(exponent, neg_exponent),
        zp=y.zero_point,
        clip=clip,
    )


def table(dtype: Dtype = Dtype.I8) -> Elementwise:
    """Return the operation y = table[a & 255], saturated to `dtype`; the table's DRAM address is a separate operand."""
    return Elementwise(src=source_word(), stage=stage_word(dtype, table=1))


def table_image(function: Callable[[int], int]) -> NDArray[np.int16]:
    """Return the values of `function` for -128..127 as a table; the value for q is entry q & 255."""
    return np.array([function(i - 256 if i > 127 else i) for i in range(256)], np.int16)


def transpose_operands(config: MlaConfig, *, x: int, y: int, rows: int, cols: int) -> list[int]:
    """Return the operands of `transpose`, which writes the byte matrix x (rows x cols) to y (cols x rows).

    Raises
    ------
    InputError
        A size is out of range.
    """
    if min(rows, cols) < 1 or max(rows, cols) >= 1 << 20:
        raise InputError(f"rows and columns must be in 1..{(1 << 20) - 1}, not {rows}x{cols}")
    n = config.n
    most = config.sp_bytes // (2 * n) // n * n
    chunk = min(most, ceil_div(rows, n) * n)
    return [x, y, rows, cols, chunk, 0, n * chunk, n.bit_length() - 1]


def copy_operands(
    config: MlaConfig,
    *,
    x: int,
    y: int,
    length: int,
    lines: int = 1,
    planes: int = 1,
    x_strides: tuple[int, int] = (0, 0),
    y_strides: tuple[int, int] = (0, 0),
) -> list[int]:
    """Return the operands of `copy`, which copies planes of lines of `length` bytes; strides are (line, plane).

    Raises
    ------
    InputError
        A line exceeds half the scratchpad, or a count is not positive.
    """
    if min(length, lines, planes) < 1 or 2 * length > config.sp_bytes:
        raise InputError(
            f"a copy must have positive counts and lines of at most {config.sp_bytes // 2} bytes, "
            f"not {planes}x{lines}x{length}"
        )
    wanted = max(ceil_div(lines, _COPY_CHUNKS), _MIN_COPY // length, 1)
    chunk = min(lines, config.sp_bytes // (2 * length), wanted, 0xFFFF)
    return [
        x,
        y,
        length,
        lines,
        planes,
        x_strides[0],
        x_strides[1],
        y_strides[0],
        y_strides[1],
        chunk,
        0,
        chunk * length,
    ]
