"""Arrays that cross from the device to the C++ model as raw bytes."""

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
"""One range that answers with errors, laid out as Fault in model/dram.h."""

EVENT = np.dtype([("cycle", "<u8"), ("pulses", "<u4"), ("tags", "<u4")])
"""Pulses of one cycle, laid out as Event in model/probe.cpp: a bit for each unit that starts a command, for each that
retires one, for a program that starts, for one that halts. Tags: 6 bits for each unit's next command, then the
program's."""

BEATS = np.dtype([("read", "<u4"), ("written", "<u4")])
"""Beats that crossed the bus in BEATS_WINDOW cycles, laid out as Beats there."""
BEATS_WINDOW = 256

RESPONSES = {"SLVERR": 2, "DECERR": 3}


def register_ops(ops: Iterable[tuple[bool, int, int]]) -> np.ndarray:
    """Accesses (is a write, address, value)."""
    return np.array([(write, address, value & 0xFFFFFFFF, 0) for write, address, value in ops], REGISTER_OP)


def faults(ranges: Iterable[DramFault]) -> np.ndarray:
    """Ranges that answer with errors."""
    return np.array([(f.start, f.stop, RESPONSES[f.response], f.on_read, f.on_write) for f in ranges], FAULT)


@dataclass(frozen=True, eq=False)
class Recording:
    """What a probe recorded.

    Parameters
    ----------
    events : array of EVENT
        In the order of time.
    beats : array of BEATS
        One element for each window of BEATS_WINDOW cycles since the reset, as far as anything crossed the bus.
    """

    events: np.ndarray
    beats: np.ndarray

    @staticmethod
    def of(data: bytes, events: int) -> "Recording":
        """From the simulator's answer, whose first bytes are events."""
        return Recording(np.frombuffer(data[:events], EVENT), np.frombuffer(data[events:], BEATS))
