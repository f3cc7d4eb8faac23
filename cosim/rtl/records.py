"""Arrays that cross from the device to the C++ model as raw bytes."""

from collections.abc import Iterable

import numpy as np

from cosim.device import DramFault

REGISTER_OP = np.dtype([("write", "<u4"), ("address", "<u4"), ("data", "<u4"), ("response", "<u4")])
"""One register access, laid out as HostOp in model/host.h."""

FAULT = np.dtype(
    [("start", "<u8"), ("stop", "<u8"), ("response", "<u4"), ("on_read", "<u4"), ("on_write", "<u4")],
    align=True,
)
"""One range that answers with errors, laid out as Fault in model/dram.h."""

RESPONSES = {"SLVERR": 2, "DECERR": 3}


def register_ops(ops: Iterable[tuple[bool, int, int]]) -> np.ndarray:
    """Accesses (is a write, address, value)."""
    return np.array([(write, address, value & 0xFFFFFFFF, 0) for write, address, value in ops], REGISTER_OP)


def faults(ranges: Iterable[DramFault]) -> np.ndarray:
    """Ranges that answer with errors."""
    return np.array([(f.start, f.stop, RESPONSES[f.response], f.on_read, f.on_write) for f in ranges], FAULT)
