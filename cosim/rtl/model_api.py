"""Python binding of the C interface of the model (model/api.cpp), for use inside the simulator process.

Neither this module nor any module that it imports loads numpy, which would double the start time of a simulator.
"""

import ctypes
import mmap
import signal
from ctypes import byref, c_char_p, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any

OP_BYTES = 16
FAULT_BYTES = 32
#: Option of prctl(2) for the signal that the process receives when its parent process ends.
_PR_SET_PDEATHSIG = 1


class ModelApi:
    """Interface to the model of the chip.

    The methods whose names begin with `order_` only prepare an operation; the model executes it as soon as the cocotb
    test waits.

    Parameters
    ----------
    dram_fd, dram_bytes : int
        File descriptor and size of the shared memory that holds the DRAM.
    row : int
        Bus width in bytes.
    client_fd : int
        Socket of the client; this process ends when the client closes the socket.
    """

    def __init__(self, dram_fd: int, dram_bytes: int, row: int, client_fd: int) -> None:
        self._lib = ctypes.CDLL(None)
        self._lib.mla_cycle.restype = c_uint64
        self._lib.mla_stalled.restype = c_uint64
        self._lib.mla_dram_violation.restype = c_char_p
        self._dram = mmap.mmap(dram_fd, dram_bytes)
        self._ops = bytearray()
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._dram))
        self._lib.mla_open(c_void_p(base), c_uint64(dram_bytes), c_uint32(row), client_fd)

    def adopted(self) -> None:
        """Make this process end when its current parent process ends; call this if the parent has changed."""
        self._lib.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        self._lib.mla_adopted()

    def state(self) -> dict[str, int | str]:
        """Return the part of the model's state that every reply to the client contains."""
        return {
            "cycle": self._lib.mla_cycle(),
            "stalled": self._lib.mla_stalled(),
            "irq": self._lib.mla_irq(),
            "violation": self._lib.mla_dram_violation().decode(),
        }

    def order_reset(self, cycles: int) -> None:
        """Prepare a reset for the given number of cycles, after which the cycle count restarts at 0."""
        self._lib.mla_order_reset(c_uint64(cycles))

    def order_run(self, cycles: int, stop_on_irq: bool) -> None:
        """Prepare a run of the given number of cycles; if `stop_on_irq`, it ends early when the interrupt is high."""
        self._lib.mla_order_run(c_uint64(cycles), int(stop_on_irq))

    def order_registers(self, ops: bytes, delay_cycles: int) -> bytearray:
        """Prepare register accesses; the returned array contains the results once they have been executed."""
        self._ops = bytearray(ops)
        count = c_uint32(len(ops) // OP_BYTES)
        self._lib.mla_order_host(_address(self._ops), count, c_uint64(delay_cycles))
        return self._ops

    def dram_timing(self, latency: int, num: int, den: int) -> None:
        """Set the latency to the first beat, in cycles, and the bandwidth, num/den bytes per cycle."""
        self._lib.mla_dram_timing(c_uint32(latency), c_uint64(num), c_uint64(den))

    def throttle(self, num: int, den: int) -> None:
        """Stall the clock of the chip in num of every den cycles."""
        self._lib.mla_throttle(c_uint64(num), c_uint64(den))

    def dram_faults(self, faults: bytes) -> None:
        """Replace the DRAM ranges that answer with errors."""
        table = bytearray(faults)  # the model copies the table
        self._lib.mla_dram_faults(_address(table), c_uint32(len(faults) // FAULT_BYTES))

    def dram_traffic(self) -> list[int]:
        """Return the number of beats read, of beats written and of bursts since the start."""
        counts = (c_uint64 * 3)()
        self._lib.mla_dram_traffic(counts)
        return list(counts)

    def memory(self, path: str) -> memoryview:
        """Return the storage of the memory whose instance path ends in `path`, without copying.

        Raises
        ------
        LookupError
            There is no such memory, or more than one.
        """
        data, length = c_void_p(), c_uint64()
        found = self._lib.mla_memory(path.encode(), byref(data), byref(length))
        if found != 1 or data.value is None:
            raise LookupError(f"the chip has {found} memories called {path!r} instead of one")
        return memoryview((c_uint8 * length.value).from_address(data.value)).cast("B")

    def waves_start(self, path: str) -> None:
        """Start recording waves to a new file."""
        if self._lib.mla_waves_start(path.encode()) != 0:
            raise OSError(f"no waves can be written to {path}")

    def waves_stop(self) -> None:
        """Close the wave file."""
        self._lib.mla_waves_stop()

    def probe_record(self, on: bool) -> None:
        """Clear the probe's recording, then start or stop recording."""
        self._lib.mla_probe_record(int(on))

    def probed(self) -> tuple[bytes, bytes]:
        """Return the events and beat counts that the probe has recorded, as raw arrays."""
        return self._bytes(self._lib.mla_probe_events), self._bytes(self._lib.mla_probe_beats)

    def _bytes(self, call: Any) -> bytes:
        call.restype, data = c_uint64, c_void_p()
        length = call(byref(data))
        return ctypes.string_at(data.value, length) if data.value else b""

    def coverage_write(self, path: str) -> None:
        """Write the line coverage that has been recorded so far to a file."""
        self._lib.mla_coverage_write(path.encode())


def _address(data: bytearray) -> c_void_p | None:
    """Return a pointer to the bytes of `data`, which is valid as long as `data` exists; None if `data` is empty."""
    return c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(data))) if data else None
