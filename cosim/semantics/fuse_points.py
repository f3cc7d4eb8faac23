"""Points of a FUSE command in loop order, and the address of each point in every stream."""

from dataclasses import dataclass

import numpy as np

from cosim.semantics.command_fields import CommandFields
from hw.isa.commands import FUSE_DIMS

#: Axes of a block of points, outermost first.
AXES = FUSE_DIMS[::-1]


@dataclass
class PointBlock:
    """Consecutive points of a command: complete windows in loop order.

    Parameters
    ----------
    index : dict
        Loop index of every point, for each of `AXES`.
    valid : numpy.ndarray
        Mask of the points that are not padding, bool.
    u, v : numpy.ndarray
        Image coordinates of every point.
    lanes : numpy.ndarray
        Number of active lanes of each point.
    width : int
        Maximum number of active lanes over all points.
    """

    index: dict[str, np.ndarray]
    valid: np.ndarray
    u: np.ndarray
    v: np.ndarray
    lanes: np.ndarray
    width: int

    def address(self, c: CommandFields, stream: str) -> np.ndarray:
        """Return the address of every point in stream `a`, `b`, `r` or `d`."""
        if stream == "a":
            return c.a_base + self.index["n"] * c.a_n + self.u * c.a_u + self.v * c.a_v
        base = np.full(self.valid.shape, getattr(c, f"{stream}_base"), np.int64)
        for dim in AXES:
            stride = getattr(c, f"{stream}_{dim}")
            if stride:
                base += self.index[dim] * stride
        return base

    @property
    def active(self) -> np.ndarray:
        """The mask of active lanes, bool of shape (point, width)."""
        return np.arange(self.width) < self.lanes[:, None]


def points(c: CommandFields, n: int, first: int, last: int) -> PointBlock:
    """Return the points of the windows first..last-1; a window is one iteration of loops n, y and x.

    Parameters
    ----------
    c : CommandFields
        Fields of the FUSE command.
    n : int
        Number of lanes of the machine.
    first, last : int
        First window, and the window after the last one.
    """
    size = c.wy_count * c.wx_count
    shape = (c.n_count, c.y_count, c.x_count, c.wy_count, c.wx_count)
    index: dict[str, np.ndarray] = dict(
        zip(AXES, np.unravel_index(np.arange(first * size, last * size), shape), strict=True)
    )
    u = c.u0 + index["y"] * c.u_y + index["wy"] * c.u_wy
    v = c.v0 + index["x"] * c.v_x + index["wx"] * c.v_wx
    valid = np.ones(u.shape, bool)
    if c.u_lim:
        valid &= (u >= 0) & (u < c.u_lim)
    if c.v_lim:
        valid &= (v >= 0) & (v < c.v_lim)
    lanes = np.full(u.shape, c.lanes or n)
    if c.tail_dim < len(FUSE_DIMS):
        dim = FUSE_DIMS[c.tail_dim]
        lanes[index[dim] == getattr(c, f"{dim}_count") - 1] = c.lanes_tail or n
    return PointBlock(index, valid, u, v, lanes, int(lanes.max()))
