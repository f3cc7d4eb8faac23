"""Maximum and average pooling with the program `pool_i8`."""

from compiler.kernel_library.conv import Conv
from compiler.util.tiles import ceil_div, cuts, place
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.commands import FUSE_SRC, FUSE_STAGE
from hw.isa.enums import Dtype, Post, Reduce

#: Maximum window size for the division of FUSE.
MAX_AVERAGE_TAPS = 255


def _pixel(config: MlaConfig, pool: Conv) -> int:
    return min(pool.in_c, config.n)


def _regions(config: MlaConfig, pool: Conv, band_h: int) -> list[int]:
    """Return the bytes of both buffers of x and y."""
    rows = min(pool.in_h, (band_h - 1) * pool.stride[0] + pool.kernel[0])
    pixel = _pixel(config, pool)
    return [2 * (rows * pool.in_w * pixel + config.n), 2 * band_h * pool.out_w * pixel]


def pool_band(config: MlaConfig, pool: Conv) -> int:
    """Return the output rows per band: as many as fit the scratchpad, with at least four bands to overlap.

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
    """Return the operands of `pool_i8`; `pool.kernel` is the window, `pool.in_c` the channels, `out_c` is unused.

    Raises
    ------
    InputError
        No band fits, the window is dilated, or an average has more than 255 taps.
    """
    if pool.dilation != (1, 1):
        raise InputError(f"pooling windows must be undilated: {pool}")
    if average and pool.kernel[0] * pool.kernel[1] > MAX_AVERAGE_TAPS:
        raise InputError(
            f"an average must have at most {MAX_AVERAGE_TAPS} taps, not {pool.kernel[0]} x {pool.kernel[1]}"
        )
    band_h = pool_band(config, pool)
    regions = _regions(config, pool, band_h)
    x_sp, y_sp = place(regions, config.sp_bytes // config.sp_banks, config.sp_bytes)
    pixel, channels = _pixel(config, pool), pool.in_c
    # Clipping the sources of a maximum equals clipping the maximum, and needs no post-scale.
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
