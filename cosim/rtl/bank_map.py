"""Mapping between the rows of the chip's banked memories and the instances that store them.

A banked memory is a list of banks, each of which is a list of interleaved instances. Row r of the memory is in bank r
// rows_per_bank; row r of a bank is word r // instances of instance r % instances.
"""

import numpy as np

from hw.config import MlaConfig

Banks = list[list[str]]


def scratchpad_banks(config: MlaConfig) -> Banks:
    """Return the instance paths of the scratchpad, which has an even and an odd half per bank."""
    return [[f"sp.bank{bank}_{half}" for half in range(2)] for bank in range(config.sp_banks)]


def accumulator_banks(config: MlaConfig) -> Banks:
    """Return the instance paths of the accumulator, which has one instance per bank."""
    return [[f"acc.bank{bank}"] for bank in range(config.acc_banks)]


def paths(banks: Banks) -> list[str]:
    """Return all instance paths, in the order in which `join_banks` and `split_banks` expect their storage."""
    return [path for bank in banks for path in bank]


def join_banks(banks: Banks, storage: bytes, row_bytes: int) -> np.ndarray:
    """Return the rows of a memory in order, given the concatenated storage of all instances.

    The result is a uint8 array of shape (rows, row_bytes).
    """
    words = np.frombuffer(storage, np.uint8).reshape(len(banks), len(banks[0]), -1, row_bytes)
    return words.swapaxes(1, 2).reshape(-1, row_bytes).copy()


def split_banks(banks: Banks, rows: np.ndarray) -> bytes:
    """Return the concatenated storage of all instances, given the rows of a memory; the inverse of `join_banks`."""
    return rows.reshape(len(banks), -1, len(banks[0]), rows.shape[1]).swapaxes(1, 2).tobytes()
