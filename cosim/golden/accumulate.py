"""Accumulation of MATRIX results in accumulator rows."""

import numpy as np

from cosim.semantics.command_fields import CommandFields


def update_distinct(acc: np.ndarray, c: CommandFields, rows: np.ndarray, total: np.ndarray) -> None:
    """Add complete sums (int64) to distinct accumulator rows; overwrite the rows if the command does not accumulate."""
    if c.shift8:
        total = total + (acc[rows].astype(np.int64) << 8)
    elif c.accumulate:
        total = total + acc[rows]
    acc[rows] = total.astype(np.int32)


def update_in_order(
    acc: np.ndarray, c: CommandFields, rows: np.ndarray, psums: np.ndarray, *, first: bool
) -> None:
    """Add partial sums (int64) one after another to accumulator rows; rows may occur repeatedly.

    If `first` is True, these are the first partial sums of the command, which overwrite the rows if the command does
    not accumulate.
    """
    for row, psum in zip(rows, psums, strict=True):
        if first and c.shift8:
            psum = psum + (acc[row].astype(np.int64) << 8)
        elif not first or c.accumulate:
            psum = psum + acc[row]
        acc[row] = psum.astype(np.int32)
