"""Shared operand computation of the operations that use the program `elementwise`."""

from dataclasses import dataclass

from compiler.util.tiles import ceil_div, place
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE
from hw.isa.enums import BSource, Dtype, Op, Requant, Rounding

_INT32 = (-(1 << 31), (1 << 31) - 1)
#: Maximum number of chunks per transfer, so that loads, computation and stores overlap.
_CHUNKS = 12
_LEAST_ROWS = 32


@dataclass(frozen=True, kw_only=True)
class Elementwise:
    """One FUSE pass over flat bytes: fuse words and the command fields they use, named as in docs/machine.md."""

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
        Number of elements of one byte.
    a, b, y, table : int
        DRAM addresses of the sources, the result and the table (0: none).

    Raises
    ------
    InputError
        There are no elements.
    """
    if total < 1:
        raise InputError(f"an elementwise operation must have at least one element, not {total}")
    n = config.n
    rows = min(config.sp_bytes // 8, max(_LEAST_ROWS * n, ceil_div(total, _CHUNKS)), total)
    chunk = ceil_div(rows, n) * n
    bank = config.sp_bytes // config.sp_banks
    a_sp, b_sp, y_sp = place([2 * chunk] * 3, bank, config.sp_bytes)
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
