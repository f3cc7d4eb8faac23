"""The chip's banked memories: which instances hold which rows.

A banked memory is a list of banks, each a list of interleaved parts: bank = row // (rows of a bank), and
within the bank row r is word r // parts of part r % parts.
"""

import numpy as np

from hw.config import MlaConfig

Banks = list[list[str]]


def scratchpad_banks(config: MlaConfig) -> Banks:
    """Instances of the scratchpad: an even and an odd half in each bank."""
    return [[f"sp.bank{bank}_{half}" for half in range(2)] for bank in range(config.sp_banks)]


def accumulator_banks(config: MlaConfig) -> Banks:
    """Instances of the accumulator."""
    return [[f"acc.bank{bank}"] for bank in range(config.acc_banks)]


def paths(banks: Banks) -> list[str]:
    """All parts, in the order in which `assemble` and `take_apart` have their storage."""
    return [part for bank in banks for part in bank]


def join_banks(banks: Banks, storage: bytes, row_bytes: int) -> np.ndarray:
    """Rows in order, uint8 of shape (rows, row_bytes), from the parts one after another."""
    parts = np.frombuffer(storage, np.uint8).reshape(len(banks), len(banks[0]), -1, row_bytes)
    return parts.swapaxes(1, 2).reshape(-1, row_bytes).copy()


def split_banks(banks: Banks, rows: np.ndarray) -> bytes:
    """The parts one after another: the reverse of `assemble`."""
    return rows.reshape(len(banks), -1, len(banks[0]), rows.shape[1]).swapaxes(1, 2).tobytes()
