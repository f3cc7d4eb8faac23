"""Binary layouts of arrays that the device and the C++ model exchange."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from cosim.dram import DramFault

REGISTER_OP = np.dtype([("write", "<u4"), ("address", "<u4"), ("data", "<u4"), ("response", "<u4")])
"""Layout of a register access, equal to HostOp in model/host.h."""

FAULT = np.dtype(
    [("start", "<u8"), ("stop", "<u8"), ("response", "<u4"), ("on_read", "<u4"), ("on_write", "<u4")],
    align=True,
)
"""Layout of a DRAM range that answers with errors, equal to Fault in model/dram.h."""

EVENT = np.dtype([("cycle", "<u8"), ("pulses", "<u4"), ("tags", "<u4")])
"""Layout of the events of one cycle, equal to Event in model/probe.cpp. Pulses: one bit per unit for the start of a
command, one bit per unit for the retirement of a command, one bit for the start of a program and one for its halt.
Tags: 6 bits for each unit's next command, followed by 6 bits for the program."""

BEATS = np.dtype([("read", "<u4"), ("written", "<u4")])
"""Layout of the number of bus beats in a window of BEATS_WINDOW cycles, equal to Beats in model/probe.cpp."""
BEATS_WINDOW = 256

RESPONSES = {"SLVERR": 2, "DECERR": 3}


def register_ops(ops: Iterable[tuple[bool, int, int]]) -> np.ndarray:
    """Encode register accesses, given as (True for a write, address, value), as an array of REGISTER_OP."""
    return np.array([(write, address, value & 0xFFFFFFFF, 0) for write, address, value in ops], REGISTER_OP)


def faults(ranges: Iterable[DramFault]) -> np.ndarray:
    """Encode DRAM ranges that answer with errors as an array of FAULT."""
    return np.array([(f.start, f.stop, RESPONSES[f.response], f.on_read, f.on_write) for f in ranges], FAULT)


@dataclass(frozen=True, eq=False)
class Recording:
    """Events and bus traffic that a probe has recorded.

    Parameters
    ----------
    events : array of EVENT
        Cycles with events, in chronological order.
    beats : array of BEATS
        Bus traffic in each window of BEATS_WINDOW cycles since reset, up to the last window with traffic.
    """

    events: np.ndarray
    beats: np.ndarray

    @staticmethod
    def from_bytes(data: bytes, events: int) -> "Recording":
        """Decode the simulator's reply, whose first `events` bytes contain the events."""
        return Recording(np.frombuffer(data[:events], EVENT), np.frombuffer(data[events:], BEATS))
