"""Memory that is given back in any order."""

from hw.errors import InputError

#: No burst crosses a multiple of it: where memory begins in a page decides how its transfers are cut.
PAGE = 4096


class FirstFitAllocator:
    """Hands out stretches of one range of addresses, the lowest that fits first.

    Parameters
    ----------
    start, size : int
        The range, in bytes.
    align : int
        Addresses are multiples of it.
    """

    def __init__(self, start: int, size: int, align: int = 64):
        self.align, self.start = align, -(-start // align) * align
        self.stop = start + size
        self._taken: dict[int, int] = {}

    def take(self, size: int, name: str, align: int = 1) -> int:
        """Address of so many bytes that nobody has, a multiple of `align`, too.

        Raises
        ------
        InputError
            No stretch is long enough.
        """
        align = max(align, self.align)
        address = -(-self.start // align) * align
        for start, length in sorted(self._taken.items()):
            if start - address >= size:
                break
            address = max(address, -(-(start + length) // align) * align)
        if address + size > self.stop:
            raise InputError(
                f"no room for {size} bytes of {name}: {self.left} of {self.stop - self.start} are free"
            )
        self._taken[address] = max(size, 1)
        return address

    def give_back(self, address: int) -> None:
        """Whoever took this has no use for it any more."""
        del self._taken[address]

    @property
    def left(self) -> int:
        """Bytes that nobody has, in one piece or not."""
        return self.stop - self.start - sum(self._taken.values())
