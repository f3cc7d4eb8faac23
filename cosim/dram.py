"""DRAM of a device: valid sizes, and address ranges that answer with errors."""

import os
from dataclasses import dataclass
from typing import Literal

from cosim import checks
from hw.errors import InputError, shown

MIN_DRAM_BYTES = 4096
MAX_DRAM_BYTES = 1 << 32  # the bus has 32 address bits


class DramTooSmallError(InputError):
    """The DRAM is smaller than required."""


@dataclass(frozen=True)
class DramFault:
    """Address range of DRAM that answers accesses with an error.

    Parameters
    ----------
    start, stop : int
        Address of the first byte of the range, and of the first byte after the range.
    response : str
        AXI response, SLVERR or DECERR.
    on_read, on_write : bool
        True if reads and writes, respectively, are answered with the response.
    """

    start: int
    stop: int
    response: Literal["SLVERR", "DECERR"] = "SLVERR"
    on_read: bool = True
    on_write: bool = True

    def __post_init__(self) -> None:
        start, stop = (checks.integer(value, "a bound of a fault") for value in (self.start, self.stop))
        if not 0 <= start < stop:
            raise InputError(f"a fault must have 0 <= start < stop, not {shown(start)}..{shown(stop)}")
        if stop > MAX_DRAM_BYTES:
            raise InputError(f"a fault must end at {MAX_DRAM_BYTES:#x} or before, not at {shown(stop)}")
        if self.response not in ("SLVERR", "DECERR"):
            raise InputError(
                f"the response of a fault must be 'SLVERR' or 'DECERR', not {shown(self.response)}"
            )


def check_dram_bytes(dram_bytes: object) -> int:
    """Check the size of a DRAM, which must fit the bus and the memory of this computer, and return it.

    Raises
    ------
    DramTooSmallError
        The size is below MIN_DRAM_BYTES.
    InputError
        The size exceeds the address range of the bus or this computer's memory, or is not a multiple of
        MIN_DRAM_BYTES.
    """
    size = checks.integer(dram_bytes, "dram_bytes")
    if size < MIN_DRAM_BYTES:
        raise DramTooSmallError(f"dram_bytes must be at least {MIN_DRAM_BYTES}, not {shown(size)}")
    limit = min(MAX_DRAM_BYTES, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    if size > limit or size % MIN_DRAM_BYTES:
        raise InputError(
            f"dram_bytes must be a multiple of {MIN_DRAM_BYTES} up to {limit}, not {shown(size)}"
        )
    return size
