"""Depthwise convolution with the program `depthwise_i8`."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler.kernel_library.conv import Conv
from compiler.util.scaling import clip_operand
from compiler.util.tiles import ceil_div, cuts, place
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.commands import FUSE_SRC, FUSE_STAGE, MATRIX_WORD
from hw.isa.enums import Dtype, Requant, Rounding


@dataclass(frozen=True)
class DepthwiseTiles:
    """Tile of depthwise_i8.

    Parameters
    ----------
    band_h, stripe_h : int
        Output rows per band and per stripe.
    groups : int
        Kernel rows per pass.
    pitch : int
        Stream positions per image row.
    """

    band_h: int
    stripe_h: int
    groups: int
    pitch: int


def depthwise_tiles(config: MlaConfig, conv: Conv) -> DepthwiseTiles:
    """Return the largest bands and stripes that fit; `conv.in_c` are the channels, `out_c` and `groups` are unused.

    Raises
    ------
    InputError
        The kernel is wider than the array, the image wider than a line buffer, or no tile fits.
    """
    (kernel_h, taps), (_, stride_w) = conv.kernel, conv.stride
    if taps > config.n or conv.dilation != (1, 1) or max(conv.stride) > 15:
        raise InputError(
            f"depthwise kernel must be at most {config.n} wide, undilated, its strides at most 15: {conv}"
        )
    right = (conv.out_w - 1) * stride_w + taps - conv.pads[1] - conv.in_w  # padding columns that outputs need
    shared = conv.in_w + max(conv.pads[1], right)
    alone = conv.in_w + conv.pads[1] + max(right, 0)
    stripe_h = min(conv.out_h, config.acc_rows // 2 // conv.out_w)
    # Fewer kernel rows per pass need shorter line buffers, but stream the image more often.
    for groups in range(min(kernel_h, config.n // taps, 3), 0, -1):
        for band_h in cuts(conv.out_h) if stripe_h else []:
            stripe = min(stripe_h, band_h)
            pitch = alone if groups == kernel_h and stripe < band_h else shared
            if groups > 1 and groups * pitch + 2 * taps > config.line_depth:
                continue
            if sum(_regions(config, conv, band_h, stripe)) <= config.sp_bytes:
                return DepthwiseTiles(band_h, stripe, groups, pitch)
    raise InputError(
        f"depthwise {conv} does not fit accumulator, scratchpad or line buffers of {config.line_depth}"
    )


def _pixel(config: MlaConfig, conv: Conv) -> int:
    return min(conv.in_c, config.n)


def _regions(config: MlaConfig, conv: Conv, band_h: int, stripe_h: int) -> list[int]:
    """Return the bytes of both buffers of x, w and y."""
    rows = min(conv.in_h, (band_h - 1) * conv.stride[0] + conv.kernel[0])
    x = rows * conv.in_w * _pixel(config, conv) + config.n
    y = stripe_h * conv.out_w * _pixel(config, conv) + config.n
    return [2 * x, 2 * conv.kernel[0] * conv.kernel[1] * config.n, 2 * y]


def pack_depthwise_weights(config: MlaConfig, weights: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Pack weights (kernel_h, kernel_w, channels) as [block][kernel row][kernel column][N]."""
    channels = weights.shape[2]
    blocks = ceil_div(channels, config.n)
    padded = np.zeros((*weights.shape[:2], blocks * config.n), np.uint8)
    padded[:, :, :channels] = weights.astype(np.int64) & 0xFF
    split = padded.reshape(*weights.shape[:2], blocks, config.n)
    return np.ascontiguousarray(split.transpose(2, 0, 1, 3)).reshape(-1)


def depthwise_operands(
    config: MlaConfig,
    conv: Conv,
    tiles: DepthwiseTiles,
    *,
    x: int,
    w: int,
    y: int,
    p: int,
    zp: int = 0,
    clip: tuple[int, int] = (-128, 127),
    a_zp: int = 0,
    rounding: Rounding = Rounding.DOUBLE,
) -> list[int]:
    """Return the operands of `depthwise_i8`; `x, w, y, p` are DRAM addresses."""
    n, channels, (kernel_h, taps) = config.n, conv.in_c, conv.kernel
    regions = _regions(config, conv, tiles.band_h, tiles.stripe_h)
    x_sp, w_sp, y_sp = place(regions, config.sp_bytes // config.sp_banks, config.sp_bytes)
    pixel = _pixel(config, conv)
    whole = conv.in_w * channels if channels <= n else 0
    src = FUSE_SRC.pack(requant=Requant.SLOT, rounding=rounding, bias_en=1)
    stage = FUSE_STAGE.pack(d_dst=1, d_dtype=Dtype.I8)
    return [
        x,
        w,
        y,
        p,
        conv.in_h,
        conv.in_w,
        channels,
        conv.out_h,
        conv.out_w,
        kernel_h,
        taps,
        *conv.stride,
        *conv.pads[:2],
        tiles.pitch,
        tiles.groups,
        ceil_div(kernel_h, tiles.groups),
        tiles.band_h,
        tiles.stripe_h,
        conv.in_w * channels,
        whole,
        pixel,
        conv.in_w * pixel,
        kernel_h * taps * n,
        9 * n,
        x_sp,
        regions[0] // 2,
        w_sp,
        y_sp,
        regions[2] // 2,
        config.acc_rows // 2,
        MATRIX_WORD.pack(dw=1, taps=taps, groups=0),
        a_zp,
        0,
        src,
        stage,
        zp,
        clip_operand(*clip),
        (conv.out_w - 1) * conv.stride[1] + 1,
        ceil_div(channels, n),
    ]
