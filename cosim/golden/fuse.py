"""Execution of FUSE commands, which drain the array or perform vector operations.

The points of a command are independent of each other, so they are computed in large blocks.
"""

from dataclasses import dataclass

import numpy as np

from cosim.golden.dma import Events
from cosim.golden.fuse_operands import combine, operand_a, operand_b
from cosim.golden.fuse_reduce import post_scale, reduce_lanes, reduce_windows
from cosim.golden.fuse_value import add_residual, lookup, requantize, slot_parameters
from cosim.golden.memory import Memories, scatter
from cosim.semantics.bounding_box import is_scalar_pair, reads_slots
from cosim.semantics.command_fields import CommandFields
from cosim.semantics.fixed_point import saturate
from cosim.semantics.fuse_points import PointBlock, points
from hw.isa.enums import DTYPE_BYTES, Dtype, Post, Reduce, Requant

#: Number of elements computed at once, small enough for intermediate values to stay in the processor's cache.
_CHUNK_ELEMENTS = 1 << 17
_RANGES = ((-128, 127), (0, 255), (-(1 << 15), (1 << 15) - 1), (-(1 << 31), (1 << 31) - 1))


@dataclass
class WriteStatistics:
    """Statistics of the elements written so far."""

    rows: int = 0
    zeros: int = 0
    low: int = 0
    high: int = 0
    elements: int = 0

    def add(self, values: np.ndarray) -> None:
        """Add written elements to the statistics."""
        low, high = int(values.min()), int(values.max())
        self.low = min(self.low, low) if self.elements else low
        self.high = max(self.high, high) if self.elements else high
        self.zeros += int(values.size - np.count_nonzero(values))
        self.elements += values.size


def run_fuse(memories: Memories, c: CommandFields) -> tuple[Events, WriteStatistics]:
    """Execute a FUSE command and return its counter events and statistics."""
    n = memories.config.n
    count = c.n_count * c.y_count * c.x_count
    size = c.wy_count * c.wx_count
    step = max(1, _CHUNK_ELEMENTS // (size * n))
    written = WriteStatistics()
    saturations = 0
    for first in range(0, count, step):
        saturations += run_block(memories, c, points(c, n, first, min(count, first + step)), written)
    total = count * size
    return {
        "fuse_points": total,
        "fuse_results": written.rows,
        "fuse_saturations": saturations,
        "fuse_scaled": total if c.requant != Requant.OFF else 0,
        "fuse_tables": total if c.table or c.table2 else 0,
        "fuse_residuals": total if c.residual else 0,
        "fuse_reduced": total if c.reduce != Reduce.NONE or c.lane_reduce != Reduce.NONE else 0,
    }, written


def run_block(memories: Memories, c: CommandFields, block: PointBlock, written: WriteStatistics) -> int:
    """Execute a command at some of its points, add the results to the statistics, and return the saturations."""
    row = operand_b(memories, c, block, memories.config.n)
    a, exponent = operand_a(memories, c, block)
    parameters = slot_parameters(memories, c, block) if reads_slots(c) else {}
    value, changed = requantize(c, combine(c, a, row), exponent, row, parameters)
    counted = block.active if c.reduce == Reduce.NONE else block.active & block.valid[:, None]
    saturations = int(np.count_nonzero(changed & counted))
    if c.table:
        value = lookup(memories, c, value, wide=bool(c.table_wide))
    if c.residual:
        value = add_residual(memories, c, block, value)
    if c.table2:
        value = lookup(memories, c, value)
    value, contributing, counts = reduce_windows(c, block, value)
    if c.lane_reduce != Reduce.NONE:
        value = reduce_lanes(c, value, contributing)
    last = _last_points(c)
    if c.post == Post.SLOT:
        parameters = {name: each if len(each) == 1 else each[last] for name, each in parameters.items()}
    value = post_scale(c, value, counts, None if row is None else row[last], parameters)
    return saturations + _write(memories, c, block, value, written)


def _last_points(c: CommandFields) -> slice:
    """Return the indices of the points that complete a result."""
    size = c.wy_count * c.wx_count
    return slice(None) if c.reduce == Reduce.NONE else slice(size - 1, None, size)


def _write(
    memories: Memories, c: CommandFields, block: PointBlock, value: np.ndarray, written: WriteStatistics
) -> int:
    """Execute step 6, the write of the results, and return the number of elements that saturation changed."""
    last = _last_points(c)
    address = block.address(c, "d")[last]
    written.rows += len(address)
    scalar = c.lane_reduce != Reduce.NONE
    lanes = np.ones(len(address), np.int64) if scalar else block.lanes[last]
    if not c.d_dst:
        first = c.d_lane if scalar else 0
        _write_acc(
            memories.acc, address, first, value, np.full_like(lanes, value.shape[1]) if scalar else lanes
        )
        clipped = value
    else:
        clipped = saturate(value, *_RANGES[c.d_dtype])
        _write_sp(memories.sp, address, clipped, lanes, Dtype(c.d_dtype))
    mask = np.arange(value.shape[1]) < lanes[:, None]
    written.add(clipped[:, :1] if is_scalar_pair(c) else clipped[mask])
    return int(np.count_nonzero((clipped != value) & mask))


def _write_acc(acc: np.ndarray, rows: np.ndarray, first: int, value: np.ndarray, lanes: np.ndarray) -> None:
    if (lanes == lanes[0]).all():
        acc[rows, first : first + lanes[0]] = value[:, : lanes[0]]
        return
    active = np.arange(value.shape[1]) < lanes[:, None]
    acc.reshape(-1)[(rows[:, None] * acc.shape[1] + np.arange(value.shape[1]))[active]] = value[active]


def _write_sp(
    sp: np.ndarray, address: np.ndarray, value: np.ndarray, lanes: np.ndarray, dtype: Dtype
) -> None:
    if (lanes == lanes[0]).all():
        scatter(sp, address, value[:, : lanes[0]], dtype)
        return
    size = DTYPE_BYTES[dtype]
    data = (
        np.ascontiguousarray(value.astype("<i4")[:, :, None])
        .view(np.uint8)[:, :, :size]
        .reshape(len(value), -1)
    )
    active = np.arange(data.shape[1]) < lanes[:, None] * size
    sp[(address[:, None] + np.arange(data.shape[1]))[active]] = data[active]
