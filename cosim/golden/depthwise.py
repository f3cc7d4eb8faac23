"""Execution of depthwise MATRIX commands.

Each column of the array processes one channel, and image rows are streamed through line buffers.
"""

import numpy as np

from cosim.golden.accumulate import update_distinct, update_in_order
from cosim.golden.dma import Events
from cosim.golden.memory import Memories, windows
from cosim.semantics.command_fields import CommandFields


def run_depthwise(memories: Memories, c: CommandFields) -> Events:
    """Execute a depthwise command and return its counter events."""
    n = memories.config.n
    history = memories.line if c.keep else memories.line[:0]
    taps = c.taps * c.groups
    zeros = useful = outputs = 0
    stream = history
    for oc in range(c.oc_count):
        pixels = _stream(memories.sp, c, n, oc)
        columns = (c.n_tail or c.n_cols or n) if oc == c.oc_count - 1 else (c.n_cols or n)
        zeros += int(pixels.size - np.count_nonzero(pixels))
        stream = np.concatenate([history, pixels]) if c.keep else pixels
        positions, rows = stream_outputs(c, oc)
        outputs += positions.size
        useful += positions.size * taps * columns
        _accumulate(
            memories.acc,
            c,
            rows,
            _filter(memories.sp, c, n, oc, stream, positions + len(stream) - len(pixels)),
        )
    memories.line = stream[-2 * memories.config.line_depth - n :]
    streamed = c.oc_count * c.dw_len
    return {
        "macs_issued": streamed * n * n,
        "macs_useful": useful,
        "matrix_rows": streamed,
        "matrix_tiles": c.oc_count,
        "matrix_zeros": zeros,
        "sparse_rows": 0,
        "acc_writes": outputs,
    }


def _stream(sp: np.ndarray, c: CommandFields, n: int, oc: int) -> np.ndarray:
    """Return the stream of pixels S[0..dw_len-1] for one block of channels, with zeros for padding."""
    row, column = np.divmod(np.arange(c.dw_len), c.x_count)
    u, v = c.u0 + row * c.u_y, c.v0 + column * c.v_x
    valid = np.ones(c.dw_len, bool)
    if c.u_lim:
        valid &= (u >= 0) & (u < c.u_lim)
    if c.v_lim:
        valid &= (v >= 0) & (v < c.v_lim)
    address = np.where(valid, c.a_base + oc * c.a_oc + u * c.a_u + v * c.a_v, 0)
    raw = windows(sp, n)[address]
    pixels = (raw if c.a_unsigned else raw.view(np.int8)).astype(np.int32) - c.a_zp
    pixels[~valid] = 0
    return pixels


def stream_outputs(c: CommandFields, oc: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the stream positions that produce an output, and the accumulator row of each output."""
    row, column = np.divmod(np.arange(c.dw_len - c.dw_lead), c.x_count)
    has_output = (row % c.dw_sy == 0) & (column % c.dw_sx == 0) & (column // c.dw_sx < c.dw_out_w)
    row, column = row[has_output], column[has_output]
    rows = c.acc_base + oc * c.acc_oc + row // c.dw_sy * c.acc_y + column // c.dw_sx * c.acc_x
    return np.flatnonzero(has_output) + c.dw_lead, rows


def _filter(
    sp: np.ndarray, c: CommandFields, n: int, oc: int, stream: np.ndarray, positions: np.ndarray
) -> np.ndarray:
    """Return the output of the filter, a sum over groups and taps, at each of `positions`.

    In `stream`, to which `positions` refer, the pixels kept from the previous command come first.
    """
    taps = c.taps * c.groups
    raw = windows(sp, n)[c.w_base + oc * c.w_oc + np.arange(taps) * c.w_row]
    weights = (raw if c.w_unsigned else raw.view(np.int8)).astype(np.int32) - c.w_zp
    out = np.zeros((positions.size, n), np.int32)
    for group in range(c.groups):
        for tap in range(c.taps):
            at = positions - (c.groups - 1 - group) * c.x_count - (c.taps - 1 - tap)
            pixel = stream[np.maximum(at, 0)]
            pixel[at < 0] = 0
            out += weights[group * c.taps + tap] * pixel
    return out


def _accumulate(acc: np.ndarray, c: CommandFields, rows: np.ndarray, out: np.ndarray) -> None:
    if np.unique(rows).size == rows.size:
        update_distinct(acc, c, rows, out.astype(np.int64))
    else:
        update_in_order(acc, c, rows, out.astype(np.int64), first=True)
