"""Registers by name."""

from cosim.device import Device
from hw.bus.register_map import ADDRESS


class CsrAccess:
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

    def access(self, *accesses: tuple[str, int | None]) -> list[int]:
        """Set registers to values and get those whose value is None, in order and in one round trip; what was got."""
        return self.device.access_regs([(ADDRESS[name], value) for name, value in accesses])
