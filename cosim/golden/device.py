"""Device interface of the golden model."""

from fractions import Fraction

import numpy as np

from cosim import checks
from cosim.device import Device, RegisterError
from cosim.dram import DramFault, check_dram_bytes
from cosim.golden.csr import ControlRegisters
from cosim.golden.machine import Machine
from hw.bus.register_map import ADDRESS
from hw.config import MlaConfig

_ADDRESSES = frozenset(ADDRESS.values())


class GoldenDevice(Device):
    """Device that executes the golden model.

    Instead of clock cycles, `cycle` counts actions. An action is a micro-instruction, a dispatch or a whole unit
    command.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    dram_bytes : int
        Size of DRAM in bytes.
    order_seed : int or None
        Seed of a random order in which the sequencer and the units act; None for a fixed order.

    Raises
    ------
    InputError, DramTooSmallError
        An argument is invalid.
    """

    def __init__(self, config: MlaConfig, dram_bytes: int = 1 << 26, order_seed: int | None = None):
        self.config = config
        self._order_seed = None if order_seed is None else checks.integer(order_seed, "order_seed")
        self.dram = np.zeros(check_dram_bytes(dram_bytes), np.uint8)
        self.machine = Machine(config, self.dram, order_seed)
        self._host = ControlRegisters(self.machine)

    @property
    def cycle(self) -> int:
        """Number of actions since reset."""
        return self.machine.cycle

    def reset(self) -> None:
        """Reset the chip; the contents of DRAM are preserved."""
        self.machine = Machine(self.config, self.dram, self._order_seed)
        self._host = ControlRegisters(self.machine)
        self.user = None

    def close(self) -> None:
        """Do nothing, because the golden model holds no resources."""

    def _read_regs(self, addresses: list[int]) -> list[int]:
        """Read registers; each read also executes one action, so that polling loops terminate."""
        values = []
        for address in addresses:
            self.machine.step()
            values.append(self._host.read(address) if address in _ADDRESSES else None)
        if None in values:
            raise _refused("read", addresses[values.index(None)])
        return values

    def _write_regs(self, writes: list[tuple[int, int]], delay_cycles: int) -> None:
        self._run_cycles(delay_cycles)
        for address, value in writes:
            self._host.write(address, value)
        for address, _ in writes:
            if address not in _ADDRESSES:
                raise _refused("write", address)

    def _run_cycles(self, cycles: int) -> None:
        """Advance time by `cycles` actions, even if fewer actions are possible."""
        for left in range(cycles, 0, -1):
            if not self.machine.step():
                self.machine.cycle += left - 1
                return

    def _wait_irq(self, timeout_cycles: int) -> bool:
        """Run until the interrupt pin is high, the timeout expires or no action is possible; return the pin's level."""
        for _ in range(timeout_cycles):
            if self._host.pin or not self.machine.step():
                break
        return self._host.pin

    def _set_dram_timing(self, latency: int, rate: Fraction) -> None:
        """Do nothing, because the golden model has no memory timing."""

    def _set_throttle(self, share: Fraction) -> None:
        """Do nothing, because the golden model has no clock."""

    def _set_dram_faults(self, faults: list[DramFault]) -> None:
        def fault(low: int, high: int, write: bool) -> bool:
            return any(
                f.start <= high and low < f.stop and (f.on_write if write else f.on_read) for f in faults
            )

        self.machine.units.fault = fault

    def _read_sp(self, address: int, length: int) -> np.ndarray:
        return self.machine.memories.sp[address : address + length].copy()

    def _write_sp(self, address: int, data: np.ndarray) -> None:
        self.machine.memories.sp[address : address + len(data)] = data

    def _read_acc(self, row: int, rows: int) -> np.ndarray:
        return self.machine.memories.acc[row : row + rows].copy()

    def _write_acc(self, row: int, data: np.ndarray) -> None:
        self.machine.memories.acc[row : row + len(data)] = data


def _refused(kind: str, address: int) -> RegisterError:
    """Return the error for a refused register access, with the same message as on the RTL."""
    return RegisterError(f"the {kind} of register 0x{address:04x} answered SLVERR")
