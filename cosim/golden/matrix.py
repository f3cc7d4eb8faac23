"""Execution of MATRIX commands, each of which computes a whole output tile."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cosim.golden.accumulate import update_distinct, update_in_order
from cosim.golden.depthwise import run_depthwise
from cosim.golden.dma import Events
from cosim.golden.memory import Memories, windows
from cosim.semantics.bounding_box import rows_after
from cosim.semantics.command_fields import CommandFields

#: Maximum number of elements gathered at once, which limits the memory for the unfolded activations.
_CHUNK_ELEMENTS = 1 << 23
#: Number of products, each at most 255 * 255, whose sum float32 represents exactly.
_EXACT_PRODUCTS = 256


@dataclass(frozen=True)
class _Activations:
    """Activation rows as they enter the array.

    Parameters
    ----------
    values : numpy.ndarray
        Bytes minus their zero point, as int16 of shape (point, tile, lane), with 2 * n lanes in wide and
        sparse mode.
    flat : numpy.ndarray
        Copy of `values` as float32 of shape (point, tile * lane).
    valid : numpy.ndarray
        Number of rows in each tile that are not padding.
    zeros : int
        Number of elements of `values` that are zero, including padding.
    """

    values: np.ndarray
    flat: np.ndarray
    valid: np.ndarray
    zeros: int


def run_matrix(memories: Memories, c: CommandFields) -> Events:
    """Execute a MATRIX command and return its counter events, including the statistic `matrix_zeros`."""
    return run_depthwise(memories, c) if c.dw else _run_normal(memories, c)


def run_copies(copies: Sequence[Memories], c: CommandFields) -> None:
    """Execute a MATRIX command on several copies of the memories; with equal weights, in common matrix products."""
    blocks, distinct = _blocks(c)
    if c.dw or not distinct or not _equal_weights(copies, c):
        for memories in copies:
            run_matrix(memories, c)
        return
    n = copies[0].config.n
    n_cols, n_tail = active(c.n_cols, c.n_tail, n)
    sizes = active(c.k_rows, c.k_tail, n)
    step = max(1, _CHUNK_ELEMENTS // (c.ic_count * c.ky_count * c.kx_count * lanes(c, n) * len(copies)))
    for oc in range(c.oc_count):
        weights = _weights(copies[0].sp, c, n, oc, n_tail if oc == c.oc_count - 1 else n_cols, *sizes)
        factors = _factors(copies[0].sp, c, n, oc, *sizes)
        for start in range(0, blocks[oc].size, step):
            part = np.arange(start, min(blocks[oc].size, start + step))
            flat = np.concatenate([_activations(memories.sp, c, n, oc, part).flat for memories in copies])
            totals = _reduce(flat, weights, factors).reshape(len(copies), part.size, n)
            for memories, total in zip(copies, totals, strict=True):
                update_distinct(memories.acc, c, blocks[oc][part], total)


def _equal_weights(copies: Sequence[Memories], c: CommandFields) -> bool:
    """Return True if all copies have the same bytes where a command reads weights."""
    n = copies[0].config.n
    steps = [
        np.arange(count) * stride
        for count, stride in (
            *((c.oc_count, c.w_oc), (c.ic_count, c.w_ic), (c.ky_count, c.w_ky), (c.kx_count, c.w_kx)),
            (n + rows_after(c, n), c.w_row),
        )
    ]
    low = max(0, c.w_base + sum(int(step.min()) for step in steps))
    high = c.w_base + sum(int(step.max()) for step in steps) + n
    return all(np.array_equal(each.sp[low:high], copies[0].sp[low:high]) for each in copies[1:])


def _blocks(c: CommandFields) -> tuple[list[np.ndarray], bool]:
    """Return the accumulator rows of each block of output channels, and True if all rows are different."""
    rows = (c.acc_base + np.arange(c.y_count)[:, None] * c.acc_y + np.arange(c.x_count) * c.acc_x).reshape(-1)
    blocks = [rows + oc * c.acc_oc for oc in range(c.oc_count)]
    return blocks, np.unique(np.concatenate(blocks)).size == rows.size * c.oc_count


def edge(raw: np.ndarray, unsigned: int, zero_point: int) -> np.ndarray:
    """Return the operands that enter the array: signed or unsigned bytes minus their zero point, as int16."""
    return (raw if unsigned else raw.view(np.int8)).astype(np.int16) - np.int16(zero_point)


def lanes(c: CommandFields, n: int) -> int:
    """Return the number of lanes of an activation row."""
    return 2 * n if c.wide or c.sparse else n


def active(count: int, tail: int, n: int) -> tuple[int, int]:
    """Return the number of active rows or columns in each block except the last, and in the last block."""
    count = count or n
    return count, tail or count


def _run_normal(memories: Memories, c: CommandFields) -> Events:
    n = memories.config.n
    k_rows, k_tail = active(c.k_rows, c.k_tail, n)
    n_cols, n_tail = active(c.n_cols, c.n_tail, n)
    tiles = c.ic_count * c.ky_count * c.kx_count
    points = c.y_count * c.x_count
    blocks, distinct = _blocks(c)
    k_active = np.repeat([k_rows] * (c.ic_count - 1) + [k_tail], c.ky_count * c.kx_count)
    columns = [n_cols] * (c.oc_count - 1) + [n_tail]
    weights = [_weights(memories.sp, c, n, oc, columns[oc], k_rows, k_tail) for oc in range(c.oc_count)]
    factors = [_factors(memories.sp, c, n, oc, k_rows, k_tail) for oc in range(c.oc_count)]
    zeros = useful = 0
    step = max(1, _CHUNK_ELEMENTS // (tiles * lanes(c, n))) if distinct else points
    for start in range(0, points, step):
        part = np.arange(start, min(points, start + step))
        rows_read = _activations(memories.sp, c, n, 0, part)
        for oc in range(c.oc_count):
            if oc and c.a_oc:
                rows_read = _activations(memories.sp, c, n, oc, part)
            zeros += rows_read.zeros
            useful += int(rows_read.valid @ k_active) * columns[oc] << c.wide
            target = blocks[oc][part]
            if distinct:
                update_distinct(memories.acc, c, target, _reduce(rows_read.flat, weights[oc], factors[oc]))
                continue
            for tile in range(tiles):
                psums = rows_read.values[:, tile].astype(np.int64) @ weights[oc][tile].astype(np.int64)
                if c.scaled:
                    psums *= factors[oc][tile]
                update_in_order(memories.acc, c, target, psums, first=tile == 0)
    streamed = c.oc_count * tiles * points
    return {
        "macs_issued": streamed * n * n << c.wide,
        "macs_useful": useful,
        "matrix_rows": streamed,
        "matrix_tiles": c.oc_count * tiles,
        "matrix_zeros": zeros,
        "sparse_rows": streamed * c.sparse,
        "acc_writes": streamed,
    }


def _weights(
    sp: np.ndarray, c: CommandFields, n: int, oc: int, columns: int, k_rows: int, k_tail: int
) -> np.ndarray:
    """Return the weight tiles for one block of output channels, as an array of shape (tile, k, column).

    The tiles are in loop order. In wide mode, the low nibbles of the bytes precede the high nibbles, so that there are
    2 * n values of k. The tiles of sparse mode are expanded to 2 * n values of k, too.
    """
    tiles = c.ic_count * c.ky_count * c.kx_count
    weights = np.zeros((tiles, n, n), np.int16)
    ic, ky, kx = np.unravel_index(np.arange(tiles), (c.ic_count, c.ky_count, c.kx_count))
    base = c.w_base + oc * c.w_oc + ic * c.w_ic + ky * c.w_ky + kx * c.w_kx
    for last in (False, True):
        selected = (ic == c.ic_count - 1) == last
        k = k_tail if last else k_rows
        lines = columns if c.w_transpose else k
        addresses = base[selected, None] + np.arange(lines) * c.w_row
        tile = edge(windows(sp, n)[addresses], c.w_unsigned, c.w_zp)
        if c.w_transpose:
            weights[selected, :k, :columns] = tile[:, :, :k].swapaxes(1, 2)
        else:
            weights[selected, :k] = tile
    if c.wide:
        return np.concatenate([((weights & 15) ^ 8) - 8, weights >> 4], axis=1)
    if c.sparse:
        return _expanded(sp, c, n, weights, base + np.where(ic == c.ic_count - 1, k_tail, k_rows) * c.w_row)
    return weights


def _expanded(
    sp: np.ndarray, c: CommandFields, n: int, weights: np.ndarray, indices: np.ndarray
) -> np.ndarray:
    """Return sparse tiles with a value for each of 2 * n activations; `indices`: addresses of their indices."""
    found = windows(sp, n)[indices[:, None] + np.arange(n // 4) * c.w_row]
    row = np.arange(n)
    index = found[:, row // 4] >> (2 * (row % 4))[:, None] & 3
    expanded = np.zeros((len(weights), 2 * n, n), np.int16)
    tile, column = np.arange(len(weights))[:, None, None], np.arange(n)
    np.add.at(expanded, (tile, row[:, None] // 2 * 4 + index, column), weights)
    return expanded


def _activations(sp: np.ndarray, c: CommandFields, n: int, oc: int, point: np.ndarray) -> _Activations:
    """Return the activation rows of the given points for one block of output channels."""
    tiles = c.ic_count * c.ky_count * c.kx_count
    ic, ky, kx = np.unravel_index(np.arange(tiles), (c.ic_count, c.ky_count, c.kx_count))
    y, x = np.divmod(point[:, None], c.x_count)
    u = c.u0 + y * c.u_y + ky * c.u_ky
    v = c.v0 + x * c.v_x + kx * c.v_kx
    address = c.a_base + oc * c.a_oc + ic * c.a_ic + u * c.a_u + v * c.a_v
    valid = np.ones(address.shape, bool)
    if c.u_lim:
        valid &= (u >= 0) & (u < c.u_lim)
    if c.v_lim:
        valid &= (v >= 0) & (v < c.v_lim)
    padded = not valid.all()
    raw = windows(sp, lanes(c, n))[np.where(valid, address, 0) if padded else address]
    a = edge(raw, c.a_unsigned, c.a_zp)
    if padded:
        a[~valid] = 0
    flat = a.reshape(len(a), -1).astype(np.float32)
    return _Activations(a, flat, valid.sum(axis=0), int(a.size - np.count_nonzero(a)))


def _factors(sp: np.ndarray, c: CommandFields, n: int, oc: int, k_rows: int, k_tail: int) -> np.ndarray:
    """Return the factors of each tile, of shape (tile, column), without tiles if the command is not scaled."""
    if not c.scaled:
        return np.zeros((0, n), np.int64)
    tiles = c.ic_count * c.ky_count * c.kx_count
    ic, ky, kx = np.unravel_index(np.arange(tiles), (c.ic_count, c.ky_count, c.kx_count))
    base = c.w_base + oc * c.w_oc + ic * c.w_ic + ky * c.w_ky + kx * c.w_kx
    before = np.where(ic == c.ic_count - 1, k_tail, k_rows) + rows_after(c, n) - 1
    return windows(sp, n)[base + before * c.w_row].astype(np.int64)


def _reduce(a: np.ndarray, weights: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Return the sums over all tiles, computed by a few float32 matrix products; if there are factors, the sums of each
    tile are multiplied by its factors.

    The products are exact, because each sum of _EXACT_PRODUCTS products is below 2**24. (Two weights of a sparse tile
    with the same index are one value of up to 9 bits, in place of two.)
    """
    if len(factors):
        parts = a.reshape(len(a), len(weights), -1).swapaxes(0, 1)
        total = np.zeros((len(a), weights.shape[-1]), np.int64)
        for part, w, f in zip(parts, weights, factors, strict=True):
            total += (part @ w.astype(np.float32)).astype(np.int64) * f
        return total
    w = weights.reshape(-1, weights.shape[-1]).astype(np.float32)
    total = np.zeros((len(a), w.shape[1]), np.int64)
    for first in range(0, len(w), _EXACT_PRODUCTS):
        chunk = slice(first, first + _EXACT_PRODUCTS)
        total += (a[:, chunk] @ w[chunk]).astype(np.int64)
    return total
