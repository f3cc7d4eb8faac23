"""Softmax over rows on the resident program `softmax_i8`."""

import numpy as np
from numpy.typing import NDArray

from compiler.kernels.reduce import row_chunk
from compiler.kernels.tiles import ceil_div, place
from hw.config import MlaConfig
from hw.errors import InputError


def softmax_table(scale: float) -> NDArray[np.int16]:
    """Entry d & 255 is 32767 * exp(scale * d) for d = -255..0; `scale` is beta times that of the input."""
    distance = -(-np.arange(256) & 255)
    return np.rint(32767 * np.exp(scale * distance)).astype(np.int16)


def softmax_operands(config: MlaConfig, *, x: int, y: int, rows: int, cols: int, table: int) -> list[int]:
    """Operands of `softmax_i8`; `x, y, table` are DRAM addresses.

    Raises
    ------
    InputError
        Sizes out of range, or a row does not fit.
    """
    n = config.n
    blocks = ceil_div(cols, n)
    if min(rows, cols) < 1 or blocks > 0xFFFF:
        raise InputError(
            f"rows and columns must be positive and a row at most {0xFFFF * n} bytes, not {rows}x{cols}"
        )
    row = blocks * n
    # Exponentials of two bytes have one buffer, which counts as one more byte of each of two.
    chunk = row_chunk(config, rows, 3 * row, config.acc_rows // 2)
    size = chunk * row
    x_sp, y_sp, e_sp = place(
        [2 * size, 2 * size, 2 * size], config.sp_bytes // config.sp_banks, config.sp_bytes
    )
    return [x, y, rows, cols, chunk, blocks, cols - (blocks - 1) * n, table, x_sp, y_sp, e_sp, row, size]
