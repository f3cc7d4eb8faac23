"""One memory for several codes of a model: the constants of all first, then one place that all of them work in."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler.codegen.executable import StageExecutable

_ALIGN = 64


@dataclass(frozen=True)
class Moved:
    """Where the memory of a code has gone.

    Parameters
    ----------
    constants : int
        Bytes of it that hold constants.
    fixed, passing : int
        Where these are now, and where the rest is.
    """

    constants: int
    fixed: int
    passing: int

    def to(self, address: int) -> int:
        """Where a byte is now."""
        return address + (self.fixed if address < self.constants else self.passing - align_up(self.constants))


@dataclass(frozen=True, eq=False)
class VariantMemory:
    """The memory of several codes.

    Parameters
    ----------
    image : array of uint8
        The constants of all.
    size : int
        Of all of it.
    moved : list of Moved
        Where that of each code has gone.
    more : int
        Where further constants are.
    """

    image: NDArray[np.uint8]
    size: int
    moved: list[Moved]
    more: int


def together(
    codes: Sequence[StageExecutable], more: NDArray[np.uint8] | None = None, start: int = 0
) -> VariantMemory:
    """Lay out the memory of codes of which one runs at a time, `more` constants, and `start` bytes for others."""
    at, fixed = align_up(start), []
    for code in codes:
        fixed.append(at)
        at += align_up(code.image.size)
    further, size = at, 0 if more is None else more.size
    passing = at + align_up(size)
    image = np.zeros(further + size, np.uint8)
    for code, place in zip(codes, fixed, strict=True):
        image[place : place + code.image.size] = code.image
    if more is not None:
        image[further:] = more
    moved = [Moved(code.image.size, place, passing) for code, place in zip(codes, fixed, strict=True)]
    work = max(code.memory - align_up(code.image.size) for code in codes)
    return VariantMemory(image, passing + work, moved, further)


def align_up(size: int) -> int:
    """The next place that something may begin at."""
    return -(-size // _ALIGN) * _ALIGN
