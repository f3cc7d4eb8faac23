"""GEMM to int32 with the program `gemm_i32`: C = alpha * A x B + beta * C0."""

from compiler.kernel_library.gemm import GemmTiles
from compiler.util.tiles import ceil_div, place
from hw.config import MlaConfig
from hw.isa.commands import MATRIX_WORD

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
        Integer factors, int32; each product saturates.
    """
    lanes = config.n
    blocks = ceil_div(n, lanes)
    a_size = tiles.mt * tiles.kt + lanes  # the last row is read whole
    b_size = tiles.nt * lanes * tiles.kt
    c_size = C_BYTES * tiles.mt * tiles.nt * lanes
    a_sp, b_sp, c_sp = place(
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
