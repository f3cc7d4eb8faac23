"""Access to control and status registers by name."""

from cosim.device import Device
from hw.bus.register_map import ADDRESS


class CsrAccess:
    """Access to the registers of a device by name.

    Parameters
    ----------
    device : Device
        Device whose registers are accessed, either the RTL or the golden model.
    """

    def __init__(self, device: Device):
        self.device = device

    def get(self, name: str) -> int:
        """Return the value of a register."""
        return self.device.read_reg(ADDRESS[name])

    def set(self, name: str, value: int) -> None:
        """Write a register; raise InputError if the value does not fit 32 bits."""
        self.device.write_reg(ADDRESS[name], value)

    def access(self, *accesses: tuple[str, int | None]) -> list[int]:
        """Read and write registers in order, in one round trip.

        Parameters
        ----------
        *accesses : tuple of (str, int or None)
            Name of a register, and the value to write or None to read it.

        Returns
        -------
        list of int
            Values read, in order.
        """
        return self.device.access_regs([(ADDRESS[name], value) for name, value in accesses])
