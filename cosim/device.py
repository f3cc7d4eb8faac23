"""Device interface, common to the simulated RTL and the golden model, and its errors."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Self

import numpy as np

from cosim import checks
from cosim.dram import DramFault
from hw.bus.register_map import ADDRESS
from hw.config import MlaConfig
from hw.errors import InputError, WorkError, shown
from hw.isa.counters import index_of

#: Register accesses that complete only after the counters have been cleared, because they read the cycle counter of tag
#: 0.
SETTLED: list[tuple[int, int | None]] = [
    (ADDRESS["COUNTER_SELECT"], index_of("cycles")),
    (ADDRESS["COUNTER_LO"], None),
]


class SimulatorDiedError(WorkError):
    """The simulator process ended unexpectedly."""


class DeviceTimeoutError(WorkError):
    """The device did not answer within the maximum number of cycles."""


class RegisterError(WorkError):
    """A register access was answered with an error."""


class BusProtocolError(WorkError):
    """The chip violated the AXI protocol."""


class Device(ABC):
    """Running machine with its DRAM.

    The device is a context manager; without a `with` block, the caller must call `close`. Simulated time never advances
    between calls, and advances only in methods whose descriptions state this.

    Public methods check their arguments and raise InputError before they have any effect. Subclasses implement the
    methods whose names begin with an underscore; these receive checked arguments.

    Attributes
    ----------
    config : MlaConfig
        Configuration of the machine.
    dram : numpy.ndarray
        DRAM as uint8, shared with the machine without copying; element 0 is address 0.
    user : object or None
        Token of the driver that has initialized the chip since the last reset; a driver assumes that no other one
        changes the chip.
    """

    config: MlaConfig
    dram: np.ndarray
    user: object | None = None

    @property
    @abstractmethod
    def cycle(self) -> int:
        """Number of clock cycles since reset, or for a model without a clock, number of actions since reset."""

    @property
    def stalled_cycles(self) -> int:
        """Number of those cycles in which the clock of the chip was stalled; 0 for a model without a clock.

        The counters of the chip do not count stalled cycles.
        """
        return 0

    @abstractmethod
    def reset(self) -> None:
        """Reset the registers and the internal state of the chip; the contents of DRAM are preserved."""

    def restart(self) -> None:
        """Reset the chip and advance time until the chip has cleared its counters."""
        self.reset()
        self._access_regs(SETTLED)

    @abstractmethod
    def close(self) -> None:
        """Release all resources of the device, which must not be used afterwards; a second call has no effect."""

    def read_reg(self, address: int) -> int:
        """Read a 32-bit register.

        Time advances.

        Raises
        ------
        RegisterError
            No register has this address.
        """
        return self.read_regs([address])[0]

    def read_regs(self, addresses: Sequence[int]) -> list[int]:
        """Read registers in order, in one round trip; raise the errors of `read_reg`.

        Time advances.
        """
        return self._read_regs([checks.register_address(address) for address in addresses])

    def write_reg(self, address: int, value: int) -> None:
        """Write a 32-bit register; raise the errors of `write_regs`.

        Time advances.
        """
        self.write_regs([(address, value)])

    def write_regs(self, writes: Iterable[tuple[int, int]], delay_cycles: int = 0) -> None:
        """Write registers in order, in one round trip.

        Time advances.

        Parameters
        ----------
        writes : Iterable of (int, int)
            Byte address and value of each write; values are signed or unsigned 32-bit integers.
        delay_cycles : int
            Number of cycles to wait before the first write.

        Raises
        ------
        RegisterError
            An address belongs to no register, or a register cannot be written; all other writes have been executed.
        """
        checked = [
            (checks.register_address(address), checks.word(value, "a register's value"))
            for address, value in writes
        ]
        self._write_regs(checked, checks.cycles(delay_cycles, "delay_cycles"))

    def access_regs(self, accesses: Iterable[tuple[int, int | None]]) -> list[int]:
        """Read and write registers in order; on the RTL, in one round trip.

        Time advances.

        Parameters
        ----------
        accesses : Iterable of (int, int or None)
            Byte address of a register, and the value to write or None to read it.

        Returns
        -------
        list of int
            Values read, in order.

        Raises
        ------
        RegisterError
            An address belongs to no register, or a register cannot be written; all other accesses have been executed.
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

    def start_accesses(
        self, groups: Sequence[Sequence[tuple[int, int | None]]], timeout_cycles: int
    ) -> Callable[[], list[list[int]]]:
        """Start groups of register accesses, and return a function that waits for them.

        Before each group but the first, time advances until the interrupt pin is high. A device in another process
        works while the caller continues; any other call first waits for the started accesses.

        Parameters
        ----------
        groups : Sequence of sequences of (int, int or None)
            Groups in order; accesses as in `access_regs`.
        timeout_cycles : int
            Maximum number of cycles of each wait for the interrupt pin.

        Returns
        -------
        callable
            Returns the values read by each group, in order; raises RegisterError as `access_regs` does.
        """
        checked = [
            [(checks.register_address(address), value) for address, value in group] for group in groups
        ]
        return self._start_accesses(checked, checks.cycles(timeout_cycles, "timeout_cycles"))

    def run_cycles(self, cycles: int) -> None:
        """Advance time by exactly `cycles` clock cycles."""
        self._run_cycles(checks.cycles(cycles))

    def wait_irq(self, timeout_cycles: int) -> bool:
        """Advance time until the interrupt pin is high, by at most `timeout_cycles`; return True if it is high.

        If the pin is already high, return immediately.
        """
        return self._wait_irq(checks.cycles(timeout_cycles, "timeout_cycles"))

    def read_sp(self, address: int, length: int) -> np.ndarray:
        """Return a copy of `length` scratchpad bytes, starting at byte `address`, as uint8; time does not advance."""
        return self._read_sp(*checks.span("scratchpad bytes", address, length, self.config.sp_bytes))

    def write_sp(self, address: int, data: np.ndarray) -> None:
        """Write the bytes of an array of any numeric type to the scratchpad, starting at byte `address`.

        Time does not advance.
        """
        new = checks.raw_bytes(data)
        first, _ = checks.span("scratchpad bytes", address, new.size, self.config.sp_bytes)
        self._write_sp(first, new)

    def read_acc(self, row: int, rows: int) -> np.ndarray:
        """Return a copy of accumulator rows as int32 of shape (rows, n); time does not advance."""
        return self._read_acc(*checks.span("accumulator rows", row, rows, self.config.acc_rows))

    def write_acc(self, row: int, data: np.ndarray) -> None:
        """Write accumulator rows, given as int32 of shape (rows, n); time does not advance."""
        new = checks.accumulator_rows(data, self.config.n)
        first, _ = checks.span("accumulator rows", row, len(new), self.config.acc_rows)
        self._write_acc(first, new)

    def set_dram_timing(self, latency: int, bytes_per_cycle: float | None = None) -> None:
        """Set the timing of the DRAM model, also while a program runs.

        This has no effect on a device without a clock.

        Parameters
        ----------
        latency : int
            Number of cycles from a read request to the first beat.
        bytes_per_cycle : float or None
            Total bandwidth of reads and writes in bytes per cycle; None for the bus width per cycle.
        """
        rate = self.config.beat_bytes if bytes_per_cycle is None else bytes_per_cycle
        self._set_dram_timing(checks.latency(latency), checks.bandwidth(rate))

    def set_throttle(self, share: float) -> None:
        """Throttle the clock of the chip, also while a program runs: stall it in a share of the cycles.

        The stalled cycles are distributed evenly. The DRAM is not throttled: its latency and bandwidth remain the same
        in all cycles, those that are stalled included. This has no effect on a device without a clock.

        Parameters
        ----------
        share : float
            Share of the cycles that are stalled, 0 to 0.9; rounded to a fraction with a denominator of at most 1000.
        """
        self._set_throttle(checks.throttle(share))

    def set_dram_faults(self, faults: Sequence[DramFault]) -> None:
        """Set the address ranges of DRAM that answer with errors; they replace the ranges set before."""
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

    def _start_accesses(
        self, groups: list[list[tuple[int, int | None]]], timeout_cycles: int
    ) -> Callable[[], list[list[int]]]:
        found: list[list[int]] = []
        for number, group in enumerate(groups):
            if number:
                self._wait_irq(timeout_cycles)
            found.append(self._access_regs(group))
        return lambda: found

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
    def _set_throttle(self, share: Fraction) -> None: ...

    @abstractmethod
    def _set_dram_faults(self, faults: list[DramFault]) -> None: ...

    def __repr__(self) -> str:
        n = self.config.n
        return f"<{type(self).__name__}: {n}x{n} array, {self.dram.size:,} bytes of DRAM>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
