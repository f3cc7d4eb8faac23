"""Stack allocator for device DRAM."""

from dataclasses import dataclass

from hw.errors import InputError


@dataclass(frozen=True)
class Region:
    """Named range of allocated DRAM.

    Parameters
    ----------
    name : str
        Purpose of the region, used in messages and listings.
    address : int
        Address of the first byte.
    size : int
        Length of the range in bytes.
    """

    name: str
    address: int
    size: int


class Allocator:
    """Allocator of DRAM from address 0 upwards; regions are freed in reverse order of allocation.

    Parameters
    ----------
    size : int
        Size of DRAM in bytes; DRAM starts at address 0.
    """

    def __init__(self, size: int):
        self.size = size
        self.regions: list[Region] = []

    @property
    def used(self) -> int:
        """Address after the last allocated byte."""
        return max((r.address + r.size for r in self.regions), default=0)

    def alloc(self, size: int, align: int = 64, name: str = "buffer") -> int:
        """Allocate a region and return its address.

        Parameters
        ----------
        size : int
            Length of the region in bytes.
        align : int
            Alignment of the address in bytes.
        name : str
            Name of the region, used in the error message.

        Raises
        ------
        InputError
            The region does not fit into DRAM.
        """
        address = -(-self.used // align) * align
        if address + size > self.size:
            raise InputError(
                f"DRAM of {self.size} bytes is too small for {size} bytes of {name} at {address:#x}"
            )
        self.regions.append(Region(name, address, size))
        return address

    def mark(self) -> int:
        """Return a mark that represents the current allocations, to be passed to `release`."""
        return len(self.regions)

    def release(self, mark: int) -> None:
        """Free all regions that were allocated after `mark` returned the given mark."""
        del self.regions[mark:]
