"""The golden model behind the device interface."""

import numpy as np

from cosim.golden.host import Host
from cosim.golden.machine import Machine
from hw.config import MlaConfig


class GoldenDevice:
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
        self.config = config
        self.dram = np.zeros(dram_bytes, np.uint8)
        self.machine = Machine(config, self.dram, order_seed)
        self._host = Host(self.machine)

    def read_reg(self, address: int) -> int:
        """Read a register; the machine moves on by one action, so that a loop of reads ends."""
        self.machine.step()
        return self._host.read(address)

    def write_reg(self, address: int, value: int) -> None:
        """Write a register."""
        self._host.write(address, value)

    def write_regs(self, writes: list[tuple[int, int]]) -> None:
        """Write registers in order."""
        for address, value in writes:
            self._host.write(address, value)

    def run_cycles(self, cycles: int) -> None:
        """Let up to `cycles` actions happen."""
        for _ in range(cycles):
            if not self.machine.step():
                break

    def wait_irq(self, timeout_cycles: int) -> bool:
        """Run until the interrupt pin rises; False if it does not within the time or never can."""
        for _ in range(timeout_cycles):
            if self._host.pin:
                return True
            if not self.machine.step():
                break
        return self._host.pin

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
