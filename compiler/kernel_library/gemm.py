"""GEMM with the resident programs `gemm_i8` and `gemm_i32`: tile sizes, layout of B, operands."""

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from compiler.util.scaling import clip_operand
from compiler.util.tiles import allocate, ceil_div, cuts
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE, MATRIX_WORD
from hw.isa.enums import Dtype, Requant, Rounding

#: Cycles of a load round trip, and of the sequencer per step and per tile (measured on n16); for estimates.
_LATENCY = 160
_ISSUE = 130
_TILE_CYCLES = 180


@dataclass(frozen=True)
class GemmTiles:
    """Tile of gemm_i8: `mt` rows by `nt` column blocks, k in pieces of `kt`; `buffers` buffers each for A and B."""

    mt: int
    nt: int
    kt: int
    buffers: int
    cycles: int  # estimated


def gemm_tiles(
    config: MlaConfig, m: int, n: int, k: int, c_bytes: int = 1, buffer_counts: tuple[int, ...] = (4, 3, 2)
) -> GemmTiles:
    """Return the tile sizes that fit the on-chip memories and have the fewest estimated cycles.

    `c_bytes` is the size of a result; `buffer_counts` are the numbers of buffers to choose from.

    Raises
    ------
    InputError
        A size is out of range, or no tile fits.
    """
    if min(m, n, k) < 1 or max(m, n, k) >= 1 << 20:
        raise InputError(f"GEMM sizes must be in 1..{(1 << 20) - 1}, not {m}x{n}x{k}")
    lanes, blocks = config.n, ceil_div(n, config.n)
    best: GemmTiles | None = None
    depths = [k, *(c * lanes for c in cuts(ceil_div(k, lanes)) if c * lanes < k)]
    for kt, nt, mt, buffers in product(
        depths, cuts(min(blocks, config.param_slots // 4)), cuts(m), buffer_counts
    ):
        if mt > 0xFFFF or mt * nt > config.acc_rows // 2 or kt >= 1 << 16:
            continue
        sp = buffers * (mt * kt + nt * lanes * kt + lanes) + 2 * c_bytes * mt * nt * lanes
        if sp <= config.sp_bytes:
            cycles = _estimate(config, (m, blocks, k), (mt, nt, kt, buffers), c_bytes)
            if best is None or cycles < best.cycles:
                best = GemmTiles(mt, nt, kt, buffers, cycles)
    if best is None:
        raise InputError(
            f"GEMM {m}x{n}x{k} does not fit: no tile is small enough for a scratchpad of {config.sp_bytes}"
        )
    return best


def _estimate(
    config: MlaConfig, shape: tuple[int, int, int], tile: tuple[int, int, int, int], c_bytes: int
) -> int:
    """Estimate cycles: the maximum of array, bus and sequencer cycles, plus the first loads and the last store."""
    lanes = config.n
    (m, blocks, k), (mt, nt, kt, buffers) = shape, tile
    rows = ceil_div(m, mt)
    tiles = rows * ceil_div(blocks, nt)
    steps = tiles * ceil_div(k, kt)
    array = blocks * ceil_div(k, lanes) * ((rows - 1) * max(mt, lanes) + max(m - (rows - 1) * mt, lanes))
    a_loads = 1 if kt == k else ceil_div(blocks, nt)
    bus = m * ceil_div(k, lanes) * a_loads + rows * blocks * (k + 9) + m * blocks * c_bytes
    if buffers == 2:  # a load begins only when its buffer is free, so its latency is not hidden
        bus += _LATENCY * steps
    first = mt * ceil_div(kt, lanes) + nt * kt
    return (
        max(array, bus, steps * _ISSUE + tiles * _TILE_CYCLES)
        + first
        + (1 + c_bytes) * mt * nt
        + 250
        + 8 * steps
    )


def pack_weights(config: MlaConfig, b: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Pack B (k x n) as blocks of N columns, each k rows of N bytes; the last block is zero-padded."""
    k, n = b.shape
    blocks = ceil_div(n, config.n)
    padded = np.zeros((k, blocks * config.n), np.uint8)
    padded[:, :n] = b.astype(np.int64) & 0xFF
    return np.ascontiguousarray(padded.reshape(k, blocks, config.n).transpose(1, 0, 2)).reshape(-1)


def gemm_operands(
    config: MlaConfig,
    tiles: GemmTiles,
    *,
    a: int,
    b: int,
    c: int,
    p: int,
    m: int,
    n: int,
    k: int,
    zp: int = 0,
    clip: tuple[int, int] = (-128, 127),
    a_zp: int = 0,
    rounding: Rounding = Rounding.DOUBLE,
    a_pitch: int | None = None,
) -> list[int]:
    """Return the operands of `gemm_i8` for weights from `pack_weights` and parameters from `param_image`.

    Parameters
    ----------
    a, b, c, p : int
        DRAM addresses of A, packed B, C (row-major) and the parameters.
    zp, clip, a_zp, rounding
        Output zero point and clip range, zero point of A, rounding of the requantization.
    a_pitch : int
        Bytes between rows of A; k by default.
    """
    lanes = config.n
    blocks = ceil_div(n, lanes)
    # Rows of A are read in whole beats, so that the last row may extend up to n bytes beyond the buffer.
    a_size = tiles.mt * tiles.kt + lanes
    b_size = tiles.nt * lanes * tiles.kt
    c_size = tiles.mt * tiles.nt * lanes
    a_sp, b_sp, c_sp = allocate(
        [tiles.buffers * a_size, tiles.buffers * b_size, 2 * c_size],
        config.sp_bytes // config.sp_banks,
        config.sp_bytes,
    )
    n_tail = n - (blocks - 1) * lanes
    src = FUSE_SRC.pack(requant=Requant.SLOT, rounding=rounding, bias_en=1)
    stage = FUSE_STAGE.pack(d_dst=1, d_dtype=Dtype.I8, tail_dim=FUSE_DIMS.index("n"))
    return [
        a,
        b,
        c,
        p,
        m,
        n,
        k,
        k if a_pitch is None else a_pitch,
        lanes,
        k * lanes,
        n,
        9 * lanes,
        tiles.mt,
        tiles.nt,
        tiles.kt,
        blocks,
        n_tail,
        a_sp,
        a_size,
        b_sp,
        b_size,
        c_sp,
        c_size,
        config.acc_rows // 2,
        MATRIX_WORD.pack(),
        a_zp,
        0,
        src,
        stage,
        zp,
        clip_operand(*clip),
        lanes.bit_length() - 1,
        tiles.buffers,
    ]


#: Bytes per result, for `gemm_tiles`.
C_BYTES = 4


def gemm_i32_operands(
    config: MlaConfig,
    tiles: GemmTiles,
    *,
    a: int,
    b: int,
    c: int,
    m: int,
    n: int,
    k: int,
    c0: int = 0,
    alpha: int = 1,
    beta: int = 0,
    a_zp: int = 0,
    b_zp: int = 0,
) -> list[int]:
    """Return the operands of `gemm_i32`.

    Parameters
    ----------
    a, b, c, c0 : int
        DRAM addresses of A (m x k bytes), B (from `pack_weights`), C and C0 (m x n int32).
        C0 is not read if beta is 0.
    alpha, beta : int
        int32 factors of the matrix product and of C0; each product saturates.
    """
    lanes = config.n
    blocks = ceil_div(n, lanes)
    a_size = tiles.mt * tiles.kt + lanes  # the last row is read in whole beats
    b_size = tiles.nt * lanes * tiles.kt
    c_size = C_BYTES * tiles.mt * tiles.nt * lanes
    a_sp, b_sp, c_sp = allocate(
        [2 * a_size, 2 * b_size, 2 * c_size], config.sp_bytes // config.sp_banks, config.sp_bytes
    )
    if beta == 0:
        mode = 0
    else:
        mode = 1 if alpha == beta == 1 else 2
    return [
        a,
        b,
        c,
        c0,
        m,
        n,
        k,
        k,
        lanes,
        k * lanes,
        C_BYTES * n,
        C_BYTES * n,
        tiles.mt,
        tiles.nt,
        tiles.kt,
        blocks,
        n - (blocks - 1) * lanes,
        a_sp,
        a_size,
        b_sp,
        b_size,
        c_sp,
        c_size,
        config.acc_rows // 2,
        MATRIX_WORD.pack(),
        a_zp,
        b_zp,
        alpha,
        beta,
        mode,
        lanes.bit_length() - 1,
    ]
