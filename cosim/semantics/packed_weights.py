"""Format of packed weights, which LOAD expands: groups of 2N bytes with one width for each half of a group.

A group begins with a header byte, which contains the width in bits of the bytes of its first half (low nibble) and of
its second half (high nibble). The widths are 0 to 8; a greater width counts as 8. The two halves follow, each in ceil(N
* width / 8) bytes: byte i of the half is the signed number in bits i * width to (i + 1) * width - 1, counted from the
low bit of the first byte. Bytes after the end of a line count as 0, so they form groups of zeros.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


@lru_cache(maxsize=8)
def half_bytes(n: int) -> NDArray[np.int64]:
    """Return the number of bytes of a half of a group, by width (0 to 15)."""
    return -(-n * np.minimum(np.arange(16), 8) // 8)


def expand(line: NDArray[np.uint8], groups: int, n: int) -> NDArray[np.uint8]:
    """Return the bytes that LOAD writes for a line of packed weights.

    Parameters
    ----------
    line : numpy.ndarray
        Line in DRAM, of shape (bytes,) and dtype uint8.
    groups : int
        Number of groups of the line.
    n : int
        N of the machine.

    Returns
    -------
    numpy.ndarray
        Bytes of shape (groups * 2 * n,) and dtype uint8.
    """
    sizes = half_bytes(n)
    starts = _starts(line.tobytes(), groups, (1 + sizes[:, None] + sizes[None, :]).T.reshape(-1).tolist())
    padded = np.concatenate([line, np.zeros(2 * n + 1, np.uint8)])
    out = np.zeros((groups, 2, n), np.uint8)
    headers = padded[starts]
    first, second = np.minimum(headers & 15, 8), np.minimum(headers >> 4, 8)
    begin = starts + 1
    for half, widths in enumerate((first, second)):
        for width in range(1, 9):
            found = np.flatnonzero(widths == width)
            if found.size:
                body = padded[begin[found][:, None] + np.arange(sizes[width])]
                out[found, half] = _unpack(body, width, n)
        begin = begin + sizes[first]
    return out.reshape(-1)


def _starts(line: bytes, groups: int, sizes: list[int]) -> NDArray[np.int64]:
    """Return the position of the header of each group; of groups after the end of the line, the end of the line."""
    starts, at, end = [], 0, len(line)
    for _ in range(groups):
        if at >= end:
            break
        starts.append(at)
        at += sizes[line[at]]
    out = np.full(groups, end, np.int64)
    out[: len(starts)] = starts
    return out


def _unpack(body: NDArray[np.uint8], width: int, n: int) -> NDArray[np.uint8]:
    bits = np.unpackbits(body, axis=1, bitorder="little")[:, : n * width].reshape(len(body), n, width)
    value = (bits.astype(np.int16) << np.arange(width, dtype=np.int16)).sum(axis=2, dtype=np.int16)
    return (value - ((value >> (width - 1)) << width)).astype(np.uint8)


def pack(data: NDArray[np.uint8], n: int) -> NDArray[np.uint8]:
    """Return the shortest line of packed weights that `expand` converts to the given bytes.

    Parameters
    ----------
    data : numpy.ndarray
        Bytes of shape (groups * 2 * n,) and dtype uint8.
    n : int
        N of the machine.
    """
    halves = data.view(np.int8).reshape(-1, n)
    widths = half_widths(data, n)
    sizes = half_bytes(n)[widths]
    starts = np.cumsum(sizes) - sizes + np.arange(len(sizes)) // 2 + 1
    out = np.zeros(int(sizes.sum()) + len(sizes) // 2, np.uint8)
    out[starts[::2] - 1] = widths[::2] | widths[1::2] << 4
    for width in range(1, 9):
        found = np.flatnonzero(widths == width)
        if found.size:
            bits = (halves[found][:, :, None].astype(np.int16) >> np.arange(width)) & 1
            body = np.packbits(bits.reshape(found.size, -1).astype(np.uint8), axis=1, bitorder="little")
            out[starts[found][:, None] + np.arange(body.shape[1])] = body
    return out


def half_widths(data: NDArray[np.uint8], n: int) -> NDArray[np.uint8]:
    """Return the width of each n bytes: the smallest one whose signed numbers include all of them, 0 for zeros."""
    rows = data.reshape(-1, n)
    magnitude = np.bitwise_or.reduce(rows ^ (rows.view(np.int8) >> 7).view(np.uint8), axis=1)
    bits = np.array([value.bit_length() + 1 for value in range(128)], np.uint8)[magnitude]
    return np.where(rows.any(axis=1), bits, np.uint8(0)).astype(np.uint8)


def packed_bytes(data: NDArray[np.uint8], n: int) -> int:
    """Return the length of `pack(data, n)`, which takes a fraction of the time."""
    widths = half_widths(data, n)
    return int(half_bytes(n)[widths].sum()) + len(widths) // 2
