"""Convolutions with the programs `conv2d_i8` and `depthwise_i8`: tile sizes, weight layout, operands."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler.util.scaling import clip_operand
from compiler.util.tiles import allocate, ceil_div, cuts
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE, MATRIX_WORD
from hw.isa.enums import Dtype, Requant, Rounding


@dataclass(frozen=True)
class Conv:
    """Shape of a convolution, NHWC, batch 1; `pads` are top, left, bottom, right.

    `in_c` and `out_c` are the numbers of channels per group; the tensors in DRAM have `groups` times as many channels.
    """

    in_h: int
    in_w: int
    in_c: int
    out_c: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def out_h(self) -> int:
        """Number of output rows."""
        return (
            self.in_h + self.pads[0] + self.pads[2] - (self.kernel[0] - 1) * self.dilation[0] - 1
        ) // self.stride[0] + 1

    @property
    def out_w(self) -> int:
        """Number of output columns."""
        return (
            self.in_w + self.pads[1] + self.pads[3] - (self.kernel[1] - 1) * self.dilation[1] - 1
        ) // self.stride[1] + 1

    @property
    def macs(self) -> int:
        """Number of MACs, including padding."""
        return (
            self.out_h * self.out_w * self.out_c * self.in_c * self.kernel[0] * self.kernel[1] * self.groups
        )


@dataclass(frozen=True)
class ConvTiles:
    """Tile of conv2d_i8: `th` output rows by `nt` output channel blocks; `cycles` is an estimate for all tiles."""

    th: int
    nt: int
    cycles: int


def _band_rows(conv: Conv, th: int) -> int:
    return min(conv.in_h, (th - 1) * conv.stride[0] + (conv.kernel[0] - 1) * conv.dilation[0] + 1)


def conv_tiles(config: MlaConfig, conv: Conv) -> ConvTiles:
    """Return the tile sizes that fit the on-chip memories and have the fewest estimated cycles.

    Raises
    ------
    InputError
        No tile fits.
    """
    blocks = ceil_div(conv.out_c, config.n)
    best: ConvTiles | None = None
    for nt in cuts(min(blocks, config.param_slots // 2)):
        for th in cuts(conv.out_h):
            if (
                th * conv.out_w * nt > config.acc_rows // 2
                or sum(_regions(config, conv, th, nt)) > config.sp_bytes
            ):
                continue
            cycles = _estimate(config, conv, blocks, th, nt)
            if best is None or cycles < best.cycles:
                best = ConvTiles(th, nt, cycles)
    if best is None:
        raise InputError(
            f"{conv} does not fit: one output row of one block of channels must fit the machine's memories"
        )
    return best


def _regions(config: MlaConfig, conv: Conv, th: int, nt: int) -> list[int]:
    """Return the sizes in bytes of the double buffers for x, w and y."""
    x = _band_rows(conv, th) * conv.in_w * conv.in_c + config.n
    w = nt * conv.kernel[0] * conv.kernel[1] * conv.in_c * config.n
    return [2 * x, 2 * w, 2 * th * conv.out_w * nt * config.n]


def _estimate(config: MlaConfig, conv: Conv, blocks: int, th: int, nt: int) -> int:
    n, taps = config.n, conv.kernel[0] * conv.kernel[1]
    bands, steps = ceil_div(conv.out_h, th), ceil_div(conv.out_h, th) * ceil_div(blocks, nt)
    last = conv.out_h - (bands - 1) * th
    per_tile = taps * ceil_div(conv.in_c, n)
    least = config.tile_cycles
    array = blocks * per_tile * ((bands - 1) * max(th * conv.out_w, least) + max(last * conv.out_w, least))
    weights = taps * conv.in_c + 9
    band = _band_rows(conv, th) * ceil_div(conv.in_w * conv.in_c, n)
    bus = bands * (band + blocks * weights) + conv.out_h * conv.out_w * blocks
    return max(array, bus, steps * 140) + band + nt * weights + 2 * th * conv.out_w * nt + 250 + 8 * steps


def pack_conv_weights(config: MlaConfig, weights: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Pack weights (out_c, kernel_h, kernel_w, in_c) as [block][kernel row][kernel column][in_c][N]."""
    out_c = weights.shape[0]
    blocks = ceil_div(out_c, config.n)
    padded = np.zeros((blocks * config.n, *weights.shape[1:]), np.uint8)
    padded[:out_c] = weights.astype(np.int64) & 0xFF
    split = padded.reshape(blocks, config.n, *weights.shape[1:])
    return np.ascontiguousarray(split.transpose(0, 2, 3, 4, 1)).reshape(-1)


def conv_operands(
    config: MlaConfig,
    conv: Conv,
    tiles: ConvTiles,
    *,
    x: int,
    w: int,
    y: int,
    p: int,
    group: int = 0,
    zp: int = 0,
    clip: tuple[int, int] = (-128, 127),
    a_zp: int = 0,
    rounding: Rounding = Rounding.DOUBLE,
) -> list[int]:
    """Return the operands of `conv2d_i8` for one channel group.

    Parameters
    ----------
    x, w, y, p : int
        DRAM addresses of the whole input tensor (x) and output tensor (y), and of the group's weights (w) and
        parameters (p).
    """
    n, (kh, kw) = config.n, conv.kernel
    blocks, ic_blocks = ceil_div(conv.out_c, n), ceil_div(conv.in_c, n)
    x_c, y_c = conv.in_c * conv.groups, conv.out_c * conv.groups
    regions = _regions(config, conv, tiles.th, tiles.nt)
    x_sp, w_sp, y_sp = allocate(regions, config.sp_bytes // config.sp_banks, config.sp_bytes)
    whole = conv.groups == 1
    lines = (conv.in_w * conv.in_c, 1, 0) if whole else (conv.in_c, conv.in_w, x_c)
    src = FUSE_SRC.pack(requant=Requant.SLOT, rounding=rounding, bias_en=1)
    stage = FUSE_STAGE.pack(d_dst=1, d_dtype=Dtype.I8, tail_dim=FUSE_DIMS.index("n"))
    return [
        x + group * conv.in_c,
        w,
        y + group * conv.out_c,
        p,
        conv.in_h,
        conv.in_w,
        conv.in_c,
        conv.out_h,
        conv.out_w,
        conv.out_c,
        kh,
        kw,
        *conv.stride,
        *conv.pads[:2],
        *conv.dilation,
        *lines,
        conv.in_w * x_c,
        y_c,
        kh * kw * conv.in_c * n,
        9 * n,
        tiles.th,
        tiles.nt,
        blocks,
        conv.out_c - (blocks - 1) * n,
        ic_blocks,
        conv.in_c - (ic_blocks - 1) * n,
        x_sp,
        regions[0] // 2,
        w_sp,
        regions[1] // 2,
        y_sp,
        regions[2] // 2,
        config.acc_rows // 2,
        MATRIX_WORD.pack(),
        a_zp,
        0,
        src,
        stage,
        zp,
        clip_operand(*clip),
        conv.in_w * conv.in_c,
        tiles.th * conv.out_w,
    ]


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
        Stream positions per image row, including padding.
    """

    band_h: int
    stripe_h: int
    groups: int
    pitch: int


def depthwise_tiles(config: MlaConfig, conv: Conv) -> DepthwiseTiles:
    """Return the largest bands and stripes that fit the on-chip memories.

    `conv.in_c` is the number of channels; `conv.out_c` and `conv.groups` are not used.

    Raises
    ------
    InputError
        The kernel is dilated or wider than the array, a stride exceeds 15, or no tile fits.
    """
    (kernel_h, taps), (_, stride_w) = conv.kernel, conv.stride
    if taps > config.n or conv.dilation != (1, 1) or max(conv.stride) > 15:
        raise InputError(
            f"depthwise kernel must be at most {config.n} wide, undilated, its strides at most 15: {conv}"
        )
    right = (conv.out_w - 1) * stride_w + taps - conv.pads[1] - conv.in_w  # padding columns that are read
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
            if sum(_depthwise_regions(config, conv, band_h, stripe)) <= config.sp_bytes:
                return DepthwiseTiles(band_h, stripe, groups, pitch)
    raise InputError(
        f"depthwise {conv} does not fit accumulator, scratchpad or line buffers of {config.line_depth}"
    )


def _pixel(config: MlaConfig, conv: Conv) -> int:
    return min(conv.in_c, config.n)


def _depthwise_regions(config: MlaConfig, conv: Conv, band_h: int, stripe_h: int) -> list[int]:
    """Return the sizes in bytes of the double buffers for x, w and y."""
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
    """Return the operands of `depthwise_i8`; `x`, `w`, `y` and `p` are DRAM addresses."""
    n, channels, (kernel_h, taps) = config.n, conv.in_c, conv.kernel
    regions = _depthwise_regions(config, conv, tiles.band_h, tiles.stripe_h)
    x_sp, w_sp, y_sp = allocate(regions, config.sp_bytes // config.sp_banks, config.sp_bytes)
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
