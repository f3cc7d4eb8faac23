"""The one interface to a machine, whether simulated RTL or golden model, and its errors."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Self

import numpy as np

from cosim import checks
from cosim.dram import DramFault
from hw.bus.register_map import ADDRESS
from hw.config import MlaConfig
from hw.errors import InputError, WorkError, shown
from hw.isa.counters import index_of

#: Accesses that are answered once the counters are clear: the first tag's number of cycles is read.
SETTLED: list[tuple[int, int | None]] = [
    (ADDRESS["COUNTER_SELECT"], index_of("cycles")),
    (ADDRESS["COUNTER_LO"], None),
]


class SimulatorDiedError(WorkError):
    """The simulator process ended while it was needed."""


class DeviceTimeoutError(WorkError):
    """The device did not answer within the cycles allowed."""


class RegisterError(WorkError):
    """A register access was answered with an error."""


class BusProtocolError(WorkError):
    """The chip broke a rule of AXI."""


class Device(ABC):
    """A running machine with its DRAM. Use it as a context manager, or call `close`.

    Simulated time moves only inside calls that say so; between calls the machine stands still.

    The calls check their arguments and raise InputError for what no machine takes, before anything happens;
    the machines themselves are in the methods with an underscore, which get checked arguments.

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
    def cycle(self) -> int:
        """Clock cycles since reset on the RTL; a count of actions on a model without a clock."""

    @abstractmethod
    def reset(self) -> None:
        """Reset the chip: registers and state go, DRAM stays."""

    def restart(self) -> None:
        """Reset the chip and let it clear its counters, which it does after a reset before anything counts."""
        self.reset()
        self._access_regs(SETTLED)

    @abstractmethod
    def close(self) -> None:
        """Free what the device holds; further use is an error. May be called twice."""

    def read_reg(self, address: int) -> int:
        """Read a 32-bit register. Moves time.

        Raises
        ------
        RegisterError
            The address has no register.
        """
        return self.read_regs([address])[0]

    def read_regs(self, addresses: Sequence[int]) -> list[int]:
        """Read registers in order, in one round trip; errors as in `read_reg`. Moves time."""
        return self._read_regs([checks.register_address(address) for address in addresses])

    def write_reg(self, address: int, value: int) -> None:
        """Write a 32-bit register; errors as in `write_regs`. Moves time."""
        self.write_regs([(address, value)])

    def write_regs(self, writes: Iterable[tuple[int, int]], delay_cycles: int = 0) -> None:
        """Write (address, value) pairs in order, in one round trip, `delay_cycles` from now. Moves time.

        Values may be of 32 bits with or without a sign.

        Raises
        ------
        RegisterError
            An address has no register or cannot be written; writes after it were made all the same.
        """
        checked = [
            (checks.register_address(address), checks.word(value, "a register's value"))
            for address, value in writes
        ]
        self._write_regs(checked, checks.cycles(delay_cycles, "delay_cycles"))

    def access_regs(self, accesses: Iterable[tuple[int, int | None]]) -> list[int]:
        """Write (address, value) pairs and read those whose value is None, in order; returns what was read. Moves time.

        On the RTL it is one round trip.

        Raises
        ------
        RegisterError
            An address has no register, or cannot be written; accesses after it were made all the same.
        """
        return self._access_regs(
            [
                (
                    checks.register_address(address),
                    value if value is None else checks.word(value, "a register's value"),
                )
                for address, value in accesses
            ]
        )

    def run_cycles(self, cycles: int) -> None:
        """Let exactly so many cycles pass."""
        self._run_cycles(checks.cycles(cycles))

    def wait_irq(self, timeout_cycles: int) -> bool:
        """Run until the interrupt pin is high, at most `timeout_cycles`; False if it stayed low all the time.

        Returns at once if the pin is high already.
        """
        return self._wait_irq(checks.cycles(timeout_cycles, "timeout_cycles"))

    def read_sp(self, address: int, length: int) -> np.ndarray:
        """Copy of `length` scratchpad bytes from byte `address`, uint8. Takes no time."""
        return self._read_sp(*checks.span("scratchpad bytes", address, length, self.config.sp_bytes))

    def write_sp(self, address: int, data: np.ndarray) -> None:
        """Set scratchpad bytes from byte `address` to those of an array of any type. Takes no time."""
        new = checks.raw_bytes(data)
        first, _ = checks.span("scratchpad bytes", address, new.size, self.config.sp_bytes)
        self._write_sp(first, new)

    def read_acc(self, row: int, rows: int) -> np.ndarray:
        """Copy of accumulator rows, int32 of shape (rows, n). Takes no time."""
        return self._read_acc(*checks.span("accumulator rows", row, rows, self.config.acc_rows))

    def write_acc(self, row: int, data: np.ndarray) -> None:
        """Set accumulator rows from int32 of shape (rows, n). Takes no time."""
        new = checks.accumulator_rows(data, self.config.n)
        first, _ = checks.span("accumulator rows", row, len(new), self.config.acc_rows)
        self._write_acc(first, new)

    def set_dram_timing(self, latency: int, bytes_per_cycle: float | None = None) -> None:
        """Set the memory model: cycles to the first beat, bytes a cycle in all (None: the bus width).

        May be called while a program runs. A device without a clock has nothing to set.
        """
        rate = self.config.n if bytes_per_cycle is None else bytes_per_cycle
        self._set_dram_timing(checks.latency(latency), checks.bandwidth(rate))

    def set_dram_faults(self, faults: Sequence[DramFault]) -> None:
        """Make ranges of DRAM answer with errors, replacing the ranges set before."""
        ranges = list(faults)
        for fault in ranges:
            if not isinstance(fault, DramFault):
                raise InputError(f"a fault must be a DramFault, not {shown(fault)}")
        self._set_dram_faults(ranges)

    @abstractmethod
    def _read_regs(self, addresses: list[int]) -> list[int]: ...

    @abstractmethod
    def _write_regs(self, writes: list[tuple[int, int]], delay_cycles: int) -> None: ...

    def _access_regs(self, accesses: list[tuple[int, int | None]]) -> list[int]:
        out = []
        for address, value in accesses:
            if value is None:
                out += self._read_regs([address])
            else:
                self._write_regs([(address, value)], 0)
        return out

    @abstractmethod
    def _run_cycles(self, cycles: int) -> None: ...

    @abstractmethod
    def _wait_irq(self, timeout_cycles: int) -> bool: ...

    @abstractmethod
    def _read_sp(self, address: int, length: int) -> np.ndarray: ...

    @abstractmethod
    def _write_sp(self, address: int, data: np.ndarray) -> None: ...

    @abstractmethod
    def _read_acc(self, row: int, rows: int) -> np.ndarray: ...

    @abstractmethod
    def _write_acc(self, row: int, data: np.ndarray) -> None: ...

    @abstractmethod
    def _set_dram_timing(self, latency: int, rate: Fraction) -> None: ...

    @abstractmethod
    def _set_dram_faults(self, faults: list[DramFault]) -> None: ...

    def __repr__(self) -> str:
        n = self.config.n
        return f"<{type(self).__name__}: {n}x{n} array, {self.dram.size:,} bytes of DRAM>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
