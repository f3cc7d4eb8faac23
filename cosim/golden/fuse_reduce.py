"""FUSE step 5: reductions over windows and lanes, and post-scaling."""

import numpy as np

from cosim.golden.fuse_operands import row_parameters, signed8
from cosim.semantics.command_fields import CommandFields
from cosim.semantics.fixed_point import (
    INT32_MAX,
    INT32_MIN,
    reciprocal,
    reciprocal_root,
    saturate,
    scale,
    wrap32,
)
from cosim.semantics.fuse_points import PointBlock
from hw.isa.enums import PAIRS, Post, Reduce, Rounding

#: Maximum magnitude of a dividend for post=count.
_COUNT_LIMIT = (1 << 23) - 1
_NEUTRAL = {Reduce.SUM: 0, Reduce.MAX: INT32_MIN, Reduce.MIN: INT32_MAX}


def _fold(value: np.ndarray, active: np.ndarray, how: Reduce, axis: int) -> np.ndarray:
    """Reduce the active elements along an axis; a result without active elements is 0."""
    value = np.where(active, value, _NEUTRAL[how])
    if how == Reduce.SUM:
        return wrap32(value.sum(axis=axis))
    folded = value.max(axis=axis) if how == Reduce.MAX else value.min(axis=axis)
    return np.where(active.any(axis=axis), folded, 0)


def reduce_windows(
    c: CommandFields, block: PointBlock, value: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reduce the points of each window to one result.

    Return the reduced values, the mask of lanes that contributed, and the number of valid points, each with one row per
    result.
    """
    active = block.active
    if c.reduce == Reduce.NONE:
        return value, active, block.valid.astype(np.int64)
    size = c.wy_count * c.wx_count
    active = (active & block.valid[:, None]).reshape(-1, size, block.width)
    folded = _fold(value.reshape(active.shape), active, Reduce(c.reduce), 1)
    return folded, np.any(active, axis=1), block.valid.reshape(-1, size).sum(axis=1)


def reduce_lanes(c: CommandFields, value: np.ndarray, active: np.ndarray) -> np.ndarray:
    """Reduce the active lanes of each result to one element."""
    return _fold(value, active, Reduce(c.lane_reduce), 1)[:, None]


def post_scale(
    c: CommandFields,
    value: np.ndarray,
    count: np.ndarray,
    row: np.ndarray | None,
    slots: dict[str, np.ndarray],
) -> np.ndarray:
    """Return the post-scaled values; for recip, rsqrt and var_rsqrt, a second column contains the exponents.

    Parameters
    ----------
    c : CommandFields
        Fields of the FUSE command.
    value : numpy.ndarray
        Reduced values, one row per result.
    count : numpy.ndarray
        Number of valid points of each result, which is the divisor for post=count.
    row : numpy.ndarray or None
        Operand B of the last point of each result.
    slots : dict of numpy.ndarray
        Parameters of the slot of each result's last point, if the command reads slots.
    """
    if c.post == Post.NONE:
        return value
    value = wrap32(value + (slots["bias"][:, : value.shape[1]] if c.post == Post.SLOT else c.post_bias))
    if c.post in PAIRS:
        return _pair(c, value, row)
    rounding = Rounding(c.post_rounding)
    if c.post == Post.SCALE:
        value = scale(value, c.post_mult, c.post_shift, 0, rounding)
    elif c.post == Post.ROW:
        assert row is not None
        value = scale(value, *row_parameters(c, row), 0, rounding)
    elif c.post == Post.SLOT:
        width = value.shape[1]
        value = scale(value, slots["mult"][:, :width], slots["exp"][:, :width], 0, rounding)
    else:
        divisor = np.maximum(count, 1)[:, None]
        magnitude = (np.minimum(np.abs(value), _COUNT_LIMIT) + divisor // 2) // divisor
        value = np.where(count[:, None] == 0, 0, np.where(value < 0, -magnitude, magnitude))
    return saturate(value + c.post_zp, c.post_lo, c.post_hi)


def _pair(c: CommandFields, value: np.ndarray, row: np.ndarray | None) -> np.ndarray:
    """Return the multipliers and exponents of the reciprocals or reciprocal roots of the values."""
    if c.post_mult:
        value = scale(value, c.post_mult, signed8(c.root_shifts, 0), 0, Rounding(c.post_rounding))
    if c.post == Post.VAR_RSQRT:
        assert row is not None
        total = row[:, c.rq_lane : c.rq_lane + 1]
        square = scale(total, total, signed8(c.root_shifts, 8), 0, Rounding.SINGLE)
        value = wrap32(saturate(value + c.post_zp) - square)
    function = reciprocal if c.post == Post.RECIP else reciprocal_root
    pairs = np.array([function(int(x)) for x in value[:, 0]], np.int64)
    pairs[:, 1] = (c.post_shift - pairs[:, 1]).astype(np.int8)
    return pairs
