"""Row reductions, softmax and pooling with the programs `reduce`, `softmax_i8` and `pool_i8`."""

import numpy as np
from numpy.typing import NDArray

from compiler.kernel_library.conv import Conv
from compiler.util.scaling import quantize_multiplier
from compiler.util.tiles import allocate, ceil_div, cuts
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE
from hw.isa.enums import DTYPE_BYTES, Dtype, Post, Reduce, Rounding


def row_chunk(config: MlaConfig, rows: int, bytes_per_row: int, limit: int = 0xFFFF) -> int:
    """Return the number of rows per chunk, small enough for double buffering and for several overlapping chunks.

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
        Factor of the results, which are then rounded by `rounding` before `y_zp` is added; None: no scaling.
    x_zp : int
        Zero point that is subtracted from each element.

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
    x_sp, y_sp = allocate(
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


#: Bits of the exponentials in the first of two narrow tables.
LOW_BITS = 15


def softmax_exponentials(scale: float, cols: int) -> NDArray[np.int64]:
    """Return exp(scale * d) in fixed point, with at most 29 bits, for d = 0, -1, ..., -255.

    Parameters
    ----------
    scale : float
        Softmax's beta times the scale of the input.
    cols : int
        Number of values per row; their sum must fit int32.
    """
    unit = 2.0 ** min(29, 30 - (cols - 1).bit_length())
    return np.floor(np.exp(-scale * np.arange(256)) * unit + 0.5).astype(np.int64)


def _placed(scale: float, cols: int, largest: int | None) -> NDArray[np.int64]:
    """Return the exponentials in the order of a table's index, which is a low byte."""
    place = (np.arange(256) * -1 if largest is None else largest - np.arange(256)) & 255
    return softmax_exponentials(scale, cols)[place]


def softmax_tables(scale: float, cols: int, largest: int | None = None) -> NDArray[np.int16]:
    """Return the two halves of a wide table with the exponentials in fixed point, of shape (2, 256).

    Parameters
    ----------
    scale, cols : float, int
        Same as those of `softmax_exponentials`.
    largest : int or None
        Largest value of the input's type, if the index is the low byte of the value itself; None: the index is that
        of the difference d = -255..0 to the maximum of the row.
    """
    exact = _placed(scale, cols, largest)
    return np.stack([exact & 0xFFFF, exact >> 16]).astype(np.uint16).view(np.int16)


def exponential_parts(scale: float, cols: int, largest: int | None = None) -> NDArray[np.int16]:
    """Return two narrow tables, of shape (2, 256): the low LOW_BITS bits and the high bits of the exponentials.

    Their sums fit int32 for rows whose sum of exponentials does not. Parameters are those of `softmax_tables`.
    """
    exact = _placed(scale, cols, largest)
    return np.stack([exact & ((1 << LOW_BITS) - 1), exact >> LOW_BITS]).astype(np.int16)


def softmax_operands(config: MlaConfig, *, x: int, y: int, rows: int, cols: int, tables: int) -> list[int]:
    """Return the operands of `softmax_i8`; `x`, `y` and `tables` are DRAM addresses.

    Raises
    ------
    InputError
        A size is out of range, a row does not fit, or the target has fewer than two table slots.
    """
    n = config.n
    blocks = ceil_div(cols, n)
    if min(rows, cols) < 1 or blocks > 0xFFFF:
        raise InputError(f"softmax must have rows, and 1..{n * 0xFFFF} columns, not {rows} x {cols}")
    if config.table_slots < 2:
        raise InputError(f"softmax needs two table slots, not {config.table_slots}")
    row = blocks * n
    chunk = row_chunk(config, rows, 2 * row, config.acc_rows)
    size = chunk * row
    x_sp, y_sp = allocate([2 * size] * 2, config.sp_bytes // config.sp_banks, config.sp_bytes)
    return [x, y, rows, cols, chunk, blocks, cols - (blocks - 1) * n, tables, x_sp, y_sp, row, size]


#: Maximum window size for the division in FUSE.
MAX_AVERAGE_TAPS = 255


def _pixel(config: MlaConfig, pool: Conv) -> int:
    return min(pool.in_c, config.n)


def _regions(config: MlaConfig, pool: Conv, band_h: int) -> list[int]:
    """Return the sizes in bytes of the double buffers for x and y."""
    rows = min(pool.in_h, (band_h - 1) * pool.stride[0] + pool.kernel[0])
    pixel = _pixel(config, pool)
    return [2 * (rows * pool.in_w * pixel + config.n), 2 * band_h * pool.out_w * pixel]


def pool_band(config: MlaConfig, pool: Conv) -> int:
    """Return the number of output rows per band, small enough for the scratchpad and for about four overlapping bands.

    Raises
    ------
    InputError
        A single output row does not fit.
    """
    blocks = ceil_div(pool.in_c, config.n)
    most = ceil_div(pool.out_h, max(1, 4 // blocks))
    for band_h in cuts(most):
        if sum(_regions(config, pool, band_h)) <= config.sp_bytes and band_h * pool.out_w < 1 << 16:
            return band_h
    raise InputError(f"pooling {pool} does not fit: the image rows of one output row must fit the scratchpad")


def pool_operands(
    config: MlaConfig,
    pool: Conv,
    *,
    x: int,
    y: int,
    average: bool = False,
    clip: tuple[int, int] = (-128, 127),
    dtype: Dtype = Dtype.I8,
) -> list[int]:
    """Return the operands of `pool_i8`.

    `pool.kernel` is the window and `pool.in_c` the number of channels; `pool.out_c` is not used.

    Raises
    ------
    InputError
        No band fits, the window is dilated, or the window of an average has more than 255 taps.
    """
    if pool.dilation != (1, 1):
        raise InputError(f"pooling windows must be undilated: {pool}")
    if average and pool.kernel[0] * pool.kernel[1] > MAX_AVERAGE_TAPS:
        raise InputError(
            f"an average must have at most {MAX_AVERAGE_TAPS} taps, not {pool.kernel[0]} x {pool.kernel[1]}"
        )
    band_h = pool_band(config, pool)
    regions = _regions(config, pool, band_h)
    x_sp, y_sp = allocate(regions, config.sp_bytes // config.sp_banks, config.sp_bytes)
    pixel, channels = _pixel(config, pool), pool.in_c
    # Clipping the sources of a maximum gives the same result as clipping the maximum, and needs no scaling afterwards.
    reduce, post = (Reduce.SUM, Post.COUNT) if average else (Reduce.MAX, Post.NONE)
    stage = FUSE_STAGE.pack(d_dst=1, d_dtype=dtype, reduce=reduce, post=post)
    whole = pool.in_w * channels if channels <= config.n else 0
    return [
        x,
        y,
        pool.in_h,
        pool.in_w,
        channels,
        pool.out_h,
        pool.out_w,
        *pool.kernel,
        *pool.stride,
        *pool.pads[:2],
        band_h,
        pool.in_w * channels,
        whole,
        pixel,
        pool.in_w * pixel,
        x_sp,
        regions[0] // 2,
        y_sp,
        regions[1] // 2,
        FUSE_SRC.pack(a_src=1, a_dtype=dtype),
        stage,
        *clip,
        *((-(1 << 31), (1 << 31) - 1) if average else clip),
    ]
