"""The C interface of the model (model/api.cpp), as seen from inside the simulator process."""

import ctypes
import mmap
from collections.abc import Iterable

import numpy as np

REGISTER_OP = np.dtype([("write", "<u4"), ("address", "<u4"), ("data", "<u4"), ("response", "<u4")])
"""One register access, laid out as HostOp in model/host.h."""

FAULT = np.dtype(
    [("start", "<u8"), ("stop", "<u8"), ("response", "<u4"), ("on_read", "<u4"), ("on_write", "<u4")],
    align=True,
)
"""One range that answers with errors, laid out as Fault in model/dram.h."""

RESPONSES = {"SLVERR": 2, "DECERR": 3}


class ModelApi:
    """Calls into the model. Orders only take effect once the cocotb test waits.

    Parameters
    ----------
    dram_fd, dram_bytes : int
        Shared memory that is the DRAM.
    row : int
        Bus width in bytes.
    client_fd : int
        Socket whose closing ends this process.
    """

    def __init__(self, dram_fd: int, dram_bytes: int, row: int, client_fd: int) -> None:
        self._lib = ctypes.CDLL(None)
        self._lib.mla_cycle.restype = ctypes.c_uint64
        self._lib.mla_dram_violation.restype = ctypes.c_char_p
        self._dram = mmap.mmap(dram_fd, dram_bytes)
        self._ops = np.zeros(0, REGISTER_OP)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._dram))
        size = ctypes.c_uint64(dram_bytes)
        self._lib.mla_open(ctypes.c_void_p(base), size, ctypes.c_uint32(row), client_fd)

    def state(self) -> dict[str, int | str]:
        """What every answer to the client carries."""
        return {
            "cycle": self._lib.mla_cycle(),
            "irq": self._lib.mla_irq(),
            "violation": self._lib.mla_dram_violation().decode(),
        }

    def order_reset(self, cycles: int) -> None:
        """Hold the reset, then count cycles from 0."""
        self._lib.mla_order_reset(ctypes.c_uint64(cycles))

    def order_run(self, cycles: int, stop_on_irq: bool) -> None:
        """Run so many cycles, or until the interrupt."""
        self._lib.mla_order_run(ctypes.c_uint64(cycles), int(stop_on_irq))

    def order_registers(self, ops: bytes, delay_cycles: int) -> np.ndarray:
        """Execute accesses; the array returned holds their results once the order is done."""
        self._ops = np.frombuffer(bytearray(ops), REGISTER_OP)
        pointer = ctypes.c_void_p(self._ops.ctypes.data)
        self._lib.mla_order_host(pointer, ctypes.c_uint32(len(self._ops)), ctypes.c_uint64(delay_cycles))
        return self._ops

    def dram_timing(self, latency: int, num: int, den: int) -> None:
        """Set cycles to the first beat and num/den bytes a cycle."""
        self._lib.mla_dram_timing(ctypes.c_uint32(latency), ctypes.c_uint64(num), ctypes.c_uint64(den))

    def dram_faults(self, faults: Iterable[tuple[int, int, str, bool, bool]]) -> None:
        """Replace the ranges that answer with errors."""
        rows = [(start, stop, RESPONSES[name], read, write) for start, stop, name, read, write in faults]
        table = np.array(rows, FAULT)
        self._lib.mla_dram_faults(ctypes.c_void_p(table.ctypes.data), ctypes.c_uint32(len(table)))

    def dram_traffic(self) -> list[int]:
        """Beats read, beats written and bursts since the start."""
        counts = (ctypes.c_uint64 * 3)()
        self._lib.mla_dram_traffic(counts)
        return list(counts)

    def memory(self, path: str, row_bytes: int) -> np.ndarray:
        """Storage of the memory whose instance path ends in `path`, as rows of bytes, without copying.

        Raises
        ------
        LookupError
            There is not exactly one.
        """
        data, length = ctypes.c_void_p(), ctypes.c_uint64()
        found = self._lib.mla_memory(path.encode(), ctypes.byref(data), ctypes.byref(length))
        if found != 1 or data.value is None:
            raise LookupError(f"the chip has {found} memories called {path!r} instead of one")
        storage = (ctypes.c_uint8 * length.value).from_address(data.value)
        return np.ctypeslib.as_array(storage).reshape(-1, row_bytes)

    def waves_start(self, path: str) -> None:
        """Record waves to a new file."""
        if self._lib.mla_waves_start(path.encode()) != 0:
            raise OSError(f"no waves can be written to {path}")

    def waves_stop(self) -> None:
        """Close the wave file."""
        self._lib.mla_waves_stop()

    def coverage_write(self, path: str) -> None:
        """Write the line counts so far."""
        self._lib.mla_coverage_write(path.encode())
