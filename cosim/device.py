"""The one interface to a machine, whether simulated RTL or golden model, and its errors."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from hw.config import MlaConfig
from hw.errors import InputError, WorkError


class SimulatorDiedError(WorkError):
    """The simulator process ended while it was needed."""


class BuildError(WorkError):
    """Verilator, make or the C++ compiler refused the simulator."""


class ToolMissingError(WorkError):
    """A program needed to build the simulator is not installed."""


class DiskFullError(WorkError):
    """The disk, or the memory behind DRAM, has no room."""


class DeviceTimeoutError(WorkError):
    """The device did not answer within the cycles allowed."""


class RegisterError(WorkError):
    """A register access was answered with an error."""


class BusProtocolError(WorkError):
    """The chip broke a rule of AXI."""


class DramTooSmallError(InputError):
    """The DRAM cannot hold what is asked of it."""


@dataclass(frozen=True)
class DramFault:
    """DRAM addresses start <= a < stop that answer `response` on reads, writes or both."""

    start: int
    stop: int
    response: Literal["SLVERR", "DECERR"] = "SLVERR"
    on_read: bool = True
    on_write: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop:
            raise InputError(f"a fault must have 0 <= start < stop, not {self.start!r}..{self.stop!r}")
        if self.response not in ("SLVERR", "DECERR"):
            raise InputError(f"the response of a fault must be 'SLVERR' or 'DECERR', not {self.response!r}")


class Device(ABC):
    """A running machine with its DRAM. Use it as a context manager, or call `close`.

    Simulated time moves only inside calls that say so; between calls the machine stands still.

    Attributes
    ----------
    config : MlaConfig
        Size of the machine.
    dram : numpy.ndarray
        DRAM as uint8, shared with the machine without copying; element 0 is address 0.
    """

    config: MlaConfig
    dram: np.ndarray

    @property
    @abstractmethod
    def cycle(self) -> int | None:
        """Clock cycles since reset on the RTL; a count of actions, or None, on a model without a clock."""

    @abstractmethod
    def read_reg(self, address: int) -> int:
        """Read a 32-bit register. Moves time.

        Raises
        ------
        RegisterError
            The address has no register.
        """

    @abstractmethod
    def write_regs(self, writes: Iterable[tuple[int, int]], delay_cycles: int = 0) -> None:
        """Write (address, value) pairs in order, in one round trip, `delay_cycles` from now. Moves time.

        Raises
        ------
        RegisterError
            An address has no register or cannot be written; writes after it were made all the same.
        """

    @abstractmethod
    def run_cycles(self, cycles: int) -> None:
        """Let exactly so many cycles pass."""

    @abstractmethod
    def wait_irq(self, timeout_cycles: int) -> bool:
        """Run until the interrupt pin is high, at most `timeout_cycles`; False if it stayed low all the time.

        Returns at once if the pin is high already.
        """

    @abstractmethod
    def read_sp(self, address: int, length: int) -> np.ndarray:
        """Copy of `length` scratchpad bytes from byte `address`, uint8. Takes no time."""

    @abstractmethod
    def write_sp(self, address: int, data: np.ndarray) -> None:
        """Set scratchpad bytes from byte `address`. Takes no time."""

    @abstractmethod
    def read_acc(self, row: int, rows: int) -> np.ndarray:
        """Copy of accumulator rows, int32 of shape (rows, n). Takes no time."""

    @abstractmethod
    def write_acc(self, row: int, data: np.ndarray) -> None:
        """Set accumulator rows from int32 of shape (rows, n). Takes no time."""

    @abstractmethod
    def close(self) -> None:
        """Free what the device holds; further use is an error. May be called twice."""

    def read_regs(self, addresses: Sequence[int]) -> list[int]:
        """Read registers in order. Moves time."""
        return [self.read_reg(address) for address in addresses]

    def write_reg(self, address: int, value: int) -> None:
        """Write a 32-bit register. Moves time."""
        self.write_regs([(address, value)])

    def set_dram_timing(self, latency: int, bytes_per_cycle: float | None = None) -> None:  # noqa: B027
        """Set the memory model: cycles to the first beat, bytes a cycle in all (None: the bus width).

        May be called while a program runs. A device without a clock ignores it.
        """

    def set_dram_faults(self, faults: Sequence[DramFault]) -> None:
        """Make ranges of DRAM answer with errors, replacing the ranges set before."""
        raise InputError(f"{type(self).__name__} cannot make its DRAM answer with errors")

    def reset(self) -> None:
        """Reset the chip: registers and state go, DRAM stays."""
        raise InputError(f"{type(self).__name__} cannot be reset; open a new one")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
