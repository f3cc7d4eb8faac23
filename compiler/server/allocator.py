"""First-fit allocator for DRAM."""

from hw.errors import InputError

#: AXI page size in bytes: bursts do not cross it, so the offset in a page decides how transfers are split.
PAGE = 4096


class FirstFitAllocator:
    """Allocates blocks of an address range at the lowest address that fits; freed in any order.

    Parameters
    ----------
    start, size : int
        First address and size of the range in bytes.
    align : int
        Minimum alignment of all blocks in bytes.
    """

    def __init__(self, start: int, size: int, align: int = 64):
        self.align, self.start = align, -(-start // align) * align
        self.stop = start + size
        self._allocated: dict[int, int] = {}

    def take(self, size: int, name: str, align: int = 1) -> int:
        """Allocate `size` bytes aligned to `align` and return the address.

        Raises
        ------
        InputError
            No free block is large enough.
        """
        align = max(align, self.align)
        address = -(-self.start // align) * align
        for start, length in sorted(self._allocated.items()):
            if start - address >= size:
                break
            address = max(address, -(-(start + length) // align) * align)
        if address + size > self.stop:
            raise InputError(
                f"no room for {size} bytes of {name}: {self.left} of {self.stop - self.start} bytes are free"
            )
        self._allocated[address] = max(size, 1)
        return address

    def give_back(self, address: int) -> None:
        """Free the block at an address."""
        del self._allocated[address]

    @property
    def left(self) -> int:
        """Total free bytes, contiguous or not."""
        return self.stop - self.start - sum(self._allocated.values())
