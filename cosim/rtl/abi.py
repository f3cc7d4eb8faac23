"""Binary layouts of arrays exchanged between the device and the C++ model."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from cosim.dram import DramFault

REGISTER_OP = np.dtype([("write", "<u4"), ("address", "<u4"), ("data", "<u4"), ("response", "<u4")])
"""One register access, laid out as HostOp in model/host.h."""

FAULT = np.dtype(
    [("start", "<u8"), ("stop", "<u8"), ("response", "<u4"), ("on_read", "<u4"), ("on_write", "<u4")],
    align=True,
)
"""One DRAM range that answers with errors, laid out as Fault in model/dram.h."""

EVENT = np.dtype([("cycle", "<u8"), ("pulses", "<u4"), ("tags", "<u4")])
"""Events of one cycle, laid out as Event in model/probe.cpp. Pulses: one bit per unit that starts a command, one per
unit that retires a command, one for a program that starts and one for a program that halts. Tags: 6 bits for each
unit's next command, then 6 bits for the program."""

BEATS = np.dtype([("read", "<u4"), ("written", "<u4")])
"""Bus beats within a window of BEATS_WINDOW cycles, laid out as Beats in model/probe.cpp."""
BEATS_WINDOW = 256

RESPONSES = {"SLVERR": 2, "DECERR": 3}


def register_ops(ops: Iterable[tuple[bool, int, int]]) -> np.ndarray:
    """Array of REGISTER_OP from accesses (is a write, address, value)."""
    return np.array([(write, address, value & 0xFFFFFFFF, 0) for write, address, value in ops], REGISTER_OP)


def faults(ranges: Iterable[DramFault]) -> np.ndarray:
    """Array of FAULT from DRAM ranges that answer with errors."""
    return np.array([(f.start, f.stop, RESPONSES[f.response], f.on_read, f.on_write) for f in ranges], FAULT)


@dataclass(frozen=True, eq=False)
class Recording:
    """Recording of a probe.

    Parameters
    ----------
    events : array of EVENT
        Cycles with events, in order of time.
    beats : array of BEATS
        Bus traffic of each window of BEATS_WINDOW cycles since reset, up to the last one with traffic.
    """

    events: np.ndarray
    beats: np.ndarray

    @staticmethod
    def from_bytes(data: bytes, events: int) -> "Recording":
        """Decode the simulator's reply, whose first `events` bytes are events."""
        return Recording(np.frombuffer(data[:events], EVENT), np.frombuffer(data[events:], BEATS))
