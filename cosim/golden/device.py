"""The golden model behind the device interface."""

from collections.abc import Iterable, Sequence

import numpy as np

from cosim.device import Device, DramFault, RegisterError
from cosim.golden.host import Host
from cosim.golden.machine import Machine
from hw.config import MlaConfig
from hw.errors import InputError
from hw.regs import ADDRESS

_ADDRESSES = frozenset(ADDRESS.values())


class GoldenDevice(Device):
    """Device whose clock counts actions: a micro-instruction, a dispatch or a whole unit command each.

    Parameters
    ----------
    config : MlaConfig
        Sizes.
    dram_bytes : int
        Size of DRAM.
    order_seed : int or None
        Let the units and the sequencer move in a random order.
    """

    def __init__(self, config: MlaConfig, dram_bytes: int = 1 << 26, order_seed: int | None = None):
        if dram_bytes < 1:
            raise InputError(f"DRAM must have at least one byte, not {dram_bytes!r}")
        self.config = config
        self._order_seed = order_seed
        self.dram = np.zeros(dram_bytes, np.uint8)
        self.machine = Machine(config, self.dram, order_seed)
        self._host = Host(self.machine)

    def read_reg(self, address: int) -> int:
        """Read a register; the machine moves on by one action, so that a loop of reads ends."""
        self._check(address)
        self.machine.step()
        return self._host.read(address)

    def write_regs(self, writes: Iterable[tuple[int, int]], delay_cycles: int = 0) -> None:
        """Write registers in order."""
        self.run_cycles(delay_cycles)
        wrong = None
        for address, value in writes:
            if address in _ADDRESSES:
                self._host.write(address, value)
            else:
                wrong = address if wrong is None else wrong
        if wrong is not None:
            self._check(wrong)

    @staticmethod
    def _check(address: int) -> None:
        if address not in _ADDRESSES:
            raise RegisterError(f"no register is at {address:#x}")

    def run_cycles(self, cycles: int) -> None:
        """Let that many actions happen, or what there is to do."""
        for left in range(cycles, 0, -1):
            if not self.machine.step():
                self.machine.cycle += left - 1
                return

    def wait_irq(self, timeout_cycles: int) -> bool:
        """Run until the interrupt pin rises; False if it does not within the time, or never can."""
        for _ in range(timeout_cycles):
            if self._host.pin or not self.machine.step():
                break
        return self._host.pin

    def set_dram_faults(self, faults: Sequence[DramFault]) -> None:
        """Make ranges of DRAM answer with errors."""
        ranges = list(faults)

        def fault(low: int, high: int, write: bool) -> bool:
            return any(
                f.start <= high and low < f.stop and (f.on_write if write else f.on_read) for f in ranges
            )

        self.machine.units.fault = fault

    def reset(self) -> None:
        """Reset the chip; DRAM stays."""
        self.machine = Machine(self.config, self.dram, self._order_seed)
        self._host = Host(self.machine)

    @property
    def cycle(self) -> int:
        """Actions so far."""
        return self.machine.cycle

    def read_sp(self, address: int, length: int) -> np.ndarray:
        """Scratchpad bytes."""
        return self.machine.memories.sp[address : address + length].copy()

    def write_sp(self, address: int, data: np.ndarray) -> None:
        """Write scratchpad bytes."""
        self.machine.memories.sp[address : address + len(data)] = data

    def read_acc(self, row: int, rows: int) -> np.ndarray:
        """Accumulator rows, int32."""
        return self.machine.memories.acc[row : row + rows].copy()

    def write_acc(self, row: int, data: np.ndarray) -> None:
        """Write accumulator rows."""
        self.machine.memories.acc[row : row + len(data)] = data

    def close(self) -> None:
        """Nothing to end."""
