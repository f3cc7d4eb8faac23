"""Hazards within one FUSE command that reads memory it also writes.

Points read in order and results are written in order, each after its own reads; but a later point may read before an
earlier one has written. So a command may work in location, and may overwrite what earlier points have read, but no
point may read what an earlier point writes.
"""

from functools import lru_cache

import numpy as np

from cosim.semantics.command_fields import CommandFields
from cosim.semantics.fuse_points import PointBlock, points
from hw.isa.enums import DTYPE_BYTES, BSource, Reduce, Requant

#: Maximum number of elements checked one by one; a larger command is assumed to read its own results.
MAX_ELEMENTS = 1 << 21
#: Fields of a FUSE command that hold addresses in scratchpad or accumulator.
_BASES = ("a_base", "b_base", "r_base", "d_base")


def reads_own_results(n: int, c: CommandFields) -> bool:
    """Return True if a point of a FUSE command may read an earlier point's result; conservative above MAX_ELEMENTS."""
    # Only addresses relative to each other matter, so tiles of one shape share a cache entry.
    values = dict(vars(c))
    values |= {base: values[base] - c.d_base for base in _BASES}
    return _reads_own_results(n, tuple(values.items()))


@lru_cache(maxsize=1 << 10)
def _reads_own_results(n: int, fields: tuple[tuple[str, int], ...]) -> bool:
    c = CommandFields(**dict(fields))
    windows = c.n_count * c.y_count * c.x_count
    size = c.wy_count * c.wx_count
    if windows * size * n * 4 > MAX_ELEMENTS:
        return True
    block = points(c, n, 0, windows)
    last = slice(None) if c.reduce == Reduce.NONE else slice(size - 1, None, size)
    scalar = c.lane_reduce != Reduce.NONE
    space, width = ("sp", DTYPE_BYTES[c.d_dtype]) if c.d_dst else ("acc", 0)
    lanes = np.ones_like(block.lanes) if scalar else block.lanes
    written, when = _touched(block.address(c, "d")[last], lanes[last] * width, _order(block)[last])
    low, high = int(written.min()), int(written.max())
    first = np.full(high - low + 1, len(block.valid), np.int64)
    first[written[::-1] - low] = when[
        ::-1
    ]  # of several assignments to an address the last one stays: the earliest
    for where, address, length, order in _reads(n, c, block):
        if where == space and address.size:
            read, at = _touched(address, length, order)
            inside = (read >= low) & (read <= high)
            if (first[read[inside] - low] < at[inside]).any():
                return True
    return False


def _order(block: PointBlock) -> np.ndarray:
    return np.arange(len(block.valid))


def _reads(
    n: int, c: CommandFields, block: PointBlock
) -> list[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    """For each input stream: memory, address, bytes (0: a row) and index of each point that reads."""
    order, valid = _order(block), block.valid
    a = c.a_base + block.index["n"] * c.a_n + block.u * c.a_u + block.v * c.a_v
    a_size = DTYPE_BYTES[c.a_dtype] if c.a_src else 0
    found = [("sp" if c.a_src else "acc", a[valid], block.lanes[valid] * a_size, order[valid])]
    if c.b_src != BSource.NONE:
        whole = c.b_bcast or c.requant == Requant.ROW
        b_size = DTYPE_BYTES[c.b_dtype] if c.b_src == BSource.SP else 0
        lanes = np.full_like(block.lanes, n) if whole else block.lanes
        found.append(("sp" if b_size else "acc", block.address(c, "b"), lanes * b_size, order))
    if c.residual:
        found.append(("sp", block.address(c, "r"), block.lanes * DTYPE_BYTES[c.r_dtype], order))
    return found


def _touched(address: np.ndarray, length: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every touched address with the index of the point that touches it, in the order of the points."""
    length = np.maximum(length, 1)
    offsets = np.arange(int(length.max()))
    taken = offsets < length[:, None]
    touched = address[:, None] + offsets
    return touched[taken], np.broadcast_to(order[:, None], touched.shape)[taken]
