"""Registers by name."""

from cosim.device import Device
from hw.regs import ADDRESS


class Registers:
    """Reads and writes registers of a device.

    Parameters
    ----------
    device : Device
        RTL or golden model.
    """

    def __init__(self, device: Device):
        self.device = device

    def get(self, name: str) -> int:
        """Value of a register."""
        return self.device.read_reg(ADDRESS[name])

    def set(self, name: str, value: int) -> None:
        """Write a register; InputError if the value does not fit 32 bits."""
        self.device.write_reg(ADDRESS[name], value)
