"""Where things lie in DRAM."""

from dataclasses import dataclass

from hw.errors import InputError


@dataclass(frozen=True)
class Region:
    """A named stretch of DRAM."""

    name: str
    address: int
    size: int


class Allocator:
    """Hands out DRAM from the bottom up; what came last is given back first.

    Parameters
    ----------
    size : int
        Bytes of DRAM.
    """

    def __init__(self, size: int):
        self.size = size
        self.regions: list[Region] = []

    @property
    def used(self) -> int:
        """First byte after everything handed out."""
        return max((r.address + r.size for r in self.regions), default=0)

    def take(self, size: int, align: int = 64, name: str = "buffer") -> int:
        """Address of `size` fresh bytes.

        Raises
        ------
        InputError
            DRAM is too small.
        """
        address = -(-self.used // align) * align
        if address + size > self.size:
            raise InputError(
                f"DRAM of {self.size} bytes is too small for {size} bytes of {name} at {address:#x}"
            )
        self.regions.append(Region(name, address, size))
        return address

    def mark(self) -> int:
        """Remember what is handed out now, for `release`."""
        return len(self.regions)

    def release(self, mark: int) -> None:
        """Give back everything handed out since `mark`."""
        del self.regions[mark:]
