"""Back door to the chip's banked memories: which instances hold which rows.

A banked memory is a list of banks, each a list of interleaved parts: bank = row // (rows of a bank), and
within the bank row r is word r // parts of part r % parts.
"""

from typing import TYPE_CHECKING

import numpy as np

from hw.config import MlaConfig

if TYPE_CHECKING:
    from cosim.rtl.model_api import ModelApi

Banks = list[list[str]]


def scratchpad_banks(config: MlaConfig) -> Banks:
    """Instances of the scratchpad: an even and an odd half in each bank."""
    return [[f"sp.bank{bank}_{half}" for half in range(2)] for bank in range(config.sp_banks)]


def accumulator_banks(config: MlaConfig) -> Banks:
    """Instances of the accumulator."""
    return [[f"acc.bank{bank}"] for bank in range(config.acc_banks)]


def read(api: "ModelApi", banks: Banks, row_bytes: int, first: int, rows: int) -> np.ndarray:
    """Copy of rows, uint8 of shape (rows, row_bytes)."""
    return _assemble(api, banks, row_bytes)[first : first + rows]


def write(api: "ModelApi", banks: Banks, row_bytes: int, first: int, data: bytes) -> None:
    """Set rows from bytes."""
    whole = _assemble(api, banks, row_bytes)
    new = np.frombuffer(data, np.uint8).reshape(-1, row_bytes)
    whole[first : first + len(new)] = new
    per_bank = len(whole) // len(banks)
    for index, parts in enumerate(banks):
        rows = whole[index * per_bank : (index + 1) * per_bank]
        for part, path in enumerate(parts):
            api.memory(path, row_bytes)[:] = rows[part :: len(parts)]


def _assemble(api: "ModelApi", banks: Banks, row_bytes: int) -> np.ndarray:
    """The whole memory in row order."""
    parts = [[api.memory(path, row_bytes) for path in bank] for bank in banks]
    return np.concatenate([np.stack(bank, axis=1).reshape(-1, row_bytes) for bank in parts])
