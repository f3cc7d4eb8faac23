"""Row softmax with the program `softmax_i8`."""

import numpy as np
from numpy.typing import NDArray

from compiler.kernel_library.reduce import row_chunk
from compiler.util.tiles import ceil_div, place
from hw.config import MlaConfig
from hw.errors import InputError

_LOW_BITS = 15


def softmax_tables(scale: float, cols: int) -> NDArray[np.int16]:
    """Return two tables of 256: low and high bits of exp(scale * d) in fixed point, d = -255..0 at entry d & 255.

    Parameters
    ----------
    scale : float
        Beta times the scale of the input.
    cols : int
        Values per row: their sum must be an int32, which leaves at most 29 bits for each.
    """
    bits = min(29, 30 - (cols - 1).bit_length())
    distance = -(-np.arange(256) & 255)
    exact = np.floor(np.exp(scale * distance) * 2.0**bits + 0.5).astype(np.int64)
    return np.stack([exact & ((1 << _LOW_BITS) - 1), exact >> _LOW_BITS]).astype(np.int16)


def softmax_operands(config: MlaConfig, *, x: int, y: int, rows: int, cols: int, tables: int) -> list[int]:
    """Return the operands of `softmax_i8`; `x, y, tables` are DRAM addresses.

    Raises
    ------
    InputError
        A size is out of range, a row does not fit, or the target has only one table slot.
    """
    n = config.n
    blocks = ceil_div(cols, n)
    if min(rows, cols) < 1 or blocks >= config.acc_rows:
        most = n * (config.acc_rows - 1)
        raise InputError(f"softmax must have rows, and 1..{most} columns, not {rows} x {cols}")
    if config.table_slots < 2:
        raise InputError(f"softmax needs two table slots, not {config.table_slots}")
    row = blocks * n
    # The single buffer of low bits, two bytes each, counts as one byte of each of two buffers.
    chunk = row_chunk(config, rows, 3 * row, config.acc_rows // (1 + blocks))
    size = chunk * row
    x_sp, y_sp, low_sp = place([2 * size] * 3, config.sp_bytes // config.sp_banks, config.sp_bytes)
    return [x, y, rows, cols, chunk, blocks, cols - (blocks - 1) * n, tables, x_sp, y_sp, low_sp, row, size]
