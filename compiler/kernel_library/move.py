"""Data movement in DRAM with the programs `transpose` and `copy`."""

from compiler.util.tiles import ceil_div
from hw.config import MlaConfig
from hw.errors import InputError

#: Minimum number of chunks of a large copy, so that loads and stores overlap.
_CHUNKS = 8
_MIN_BYTES = 1024


def transpose_operands(config: MlaConfig, *, x: int, y: int, rows: int, cols: int) -> list[int]:
    """Return the operands of `transpose`, which writes the byte matrix x (rows x cols) to y (cols x rows).

    Raises
    ------
    InputError
        A size is out of range.
    """
    if min(rows, cols) < 1 or max(rows, cols) >= 1 << 20:
        raise InputError(f"rows and columns must be in 1..{(1 << 20) - 1}, not {rows}x{cols}")
    n = config.n
    most = config.sp_bytes // (2 * n) // n * n
    chunk = min(most, ceil_div(rows, n) * n)
    return [x, y, rows, cols, chunk, 0, n * chunk, n.bit_length() - 1]


def copy_operands(
    config: MlaConfig,
    *,
    x: int,
    y: int,
    length: int,
    lines: int = 1,
    planes: int = 1,
    x_strides: tuple[int, int] = (0, 0),
    y_strides: tuple[int, int] = (0, 0),
) -> list[int]:
    """Return the operands of `copy`, which copies planes of lines of `length` bytes; strides are (line, plane).

    Raises
    ------
    InputError
        A line exceeds half the scratchpad, or a count is not positive.
    """
    if min(length, lines, planes) < 1 or 2 * length > config.sp_bytes:
        raise InputError(
            f"a copy must have positive counts and lines of at most {config.sp_bytes // 2} bytes, "
            f"not {planes}x{lines}x{length}"
        )
    wanted = max(ceil_div(lines, _CHUNKS), _MIN_BYTES // length, 1)
    chunk = min(lines, config.sp_bytes // (2 * length), wanted, 0xFFFF)
    return [
        x,
        y,
        length,
        lines,
        planes,
        x_strides[0],
        x_strides[1],
        y_strides[0],
        y_strides[1],
        chunk,
        0,
        chunk * length,
    ]
