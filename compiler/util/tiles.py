"""Candidate tile sizes, and allocation of scratchpad regions."""


def ceil_div(a: int, b: int) -> int:
    """Return a / b rounded up."""
    return -(-a // b)


def cuts(total: int) -> list[int]:
    """Return piece sizes that divide `total` evenly, except for a smaller last piece; largest size first.

    For large totals, only a few dozen of the possible sizes are returned.
    """
    sizes: list[int] = []
    pieces = 1
    while pieces <= total:
        size = ceil_div(total, pieces)
        if not sizes or size != sizes[-1]:
            sizes.append(size)
        pieces += max(1, pieces // 8)
    if sizes[-1] != 1:
        sizes.append(1)
    return sizes


def allocate(sizes: list[int], bank: int, total: int) -> list[int]:
    """Return the start addresses of scratchpad regions: aligned to banks if they fit in this way, otherwise packed.

    Raises
    ------
    ValueError
        The regions do not fit even if packed.
    """
    for align in (bank, 1):
        starts, address = [], 0
        for size in sizes:
            address = ceil_div(address, align) * align
            starts.append(address)
            address += size
        if address <= total:
            return starts
    raise ValueError(f"regions of {sizes} bytes must fit {total} bytes")
