"""Row reductions of a matrix with the program `reduce`."""

from compiler.util.scaling import quantize_multiplier
from compiler.util.tiles import ceil_div, cuts, place
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE
from hw.isa.enums import DTYPE_BYTES, Dtype, Post, Reduce, Rounding


def row_chunk(config: MlaConfig, rows: int, bytes_per_row: int, limit: int = 0xFFFF) -> int:
    """Return the rows per chunk: as many as fit with double buffering, with several chunks to overlap.

    Raises
    ------
    InputError
        A single row does not fit.
    """
    for chunk in cuts(ceil_div(rows, 4) if rows >= 4 * config.n else rows):
        if chunk <= limit and 2 * chunk * bytes_per_row <= config.sp_bytes:
            return chunk
    raise InputError(
        f"a row does not fit: two buffers of {bytes_per_row} bytes must fit a scratchpad of {config.sp_bytes}"
    )


def reduce_operands(
    config: MlaConfig,
    *,
    x: int,
    y: int,
    rows: int,
    cols: int,
    how: Reduce,
    scale: float | None = None,
    x_zp: int = 0,
    y_zp: int = 0,
    x_dtype: Dtype = Dtype.I8,
    y_dtype: Dtype = Dtype.I32,
    rounding: Rounding = Rounding.DOUBLE,
) -> list[int]:
    """Return the operands of `reduce`: one result of `y_dtype` per row of bytes.

    Parameters
    ----------
    x, y : int
        DRAM addresses of the matrix and of the results.
    scale : float or None
        Factor of the results, rounded by `rounding` before `y_zp` is added; None for no scaling.
    x_zp : int
        Zero point subtracted from each element first.

    Raises
    ------
    InputError
        A size is out of range, or a row does not fit.
    """
    if min(rows, cols) < 1 or ceil_div(cols, config.n) > 0xFFFF:
        raise InputError(
            f"sizes must be positive and a row at most {0xFFFF * config.n} bytes, not {rows}x{cols}"
        )
    n, size = config.n, DTYPE_BYTES[y_dtype]
    blocks = ceil_div(cols, n)
    row = blocks * n
    chunk = row_chunk(config, rows, row + size)
    x_sp, y_sp = place(
        [2 * chunk * row, 2 * chunk * size], config.sp_bytes // config.sp_banks, config.sp_bytes
    )
    mult, shift = (0, 0) if scale is None else quantize_multiplier(scale)
    stage = FUSE_STAGE.pack(
        reduce=how,
        lane_reduce=how,
        post=Post.NONE if scale is None else Post.SCALE,
        post_rounding=rounding,
        d_dst=1,
        d_dtype=y_dtype,
        tail_dim=FUSE_DIMS.index("wx"),
    )
    return [
        x,
        y,
        rows,
        cols,
        chunk,
        blocks,
        cols - (blocks - 1) * n,
        x_sp,
        chunk * row,
        y_sp,
        chunk * size,
        row,
        size,
        FUSE_SRC.pack(a_src=1, a_dtype=x_dtype),
        stage,
        mult,
        shift,
        y_zp,
        x_zp & 0xFFFF,
    ]
