"""What the chip did with a number of images, and where its cycles went."""

from collections.abc import Sequence
from dataclasses import dataclass

from cosim.driver import Driver
from hw.isa.counters import CAUSES
from scripts.sim_stream import Done

_MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class Phase:
    """Images that came out one after the other.

    Parameters
    ----------
    name : str
        What ran.
    images : int
        How many.
    cycles : int or None
        Cycles they took in all; None on a machine without a clock.
    where : dict or None
        Cycles by cause, adding up to `cycles`.
    layers : list
        Median cycles of each macro-instruction of an image.
    macros : int
        Macro-instructions of an image.
    """

    name: str
    images: int
    cycles: int | None
    where: dict[str, int] | None
    layers: list[int]
    macros: int

    @property
    def per_image(self) -> float | None:
        """Cycles of an image while others are before and behind it."""
        return None if self.cycles is None else self.cycles / self.images


class Meter:
    """Reads where the cycles go, while images flow; reading takes none.

    Parameters
    ----------
    driver : Driver
        The machine's driver.
    clocked : bool
        Whether the machine has a clock.
    """

    def __init__(self, driver: Driver, clocked: bool):
        self._driver, self._clocked = driver, clocked
        self._before: dict[str, int] = {}

    def start(self) -> int:
        """Count from here; returns the cycle."""
        self._before = self._driver.counters.causes(0) if self._clocked else {}
        return self._driver.get("CYCLE_LO")

    def phase(self, name: str, done: Sequence[Done], since: int) -> Phase:
        """Summary of the images that came out since cycle `since`, the last of them just now."""
        layers = [sorted(step)[len(step) // 2] for step in zip(*(each.steps for each in done), strict=True)]
        if not self._clocked:
            return Phase(name, len(done), None, None, [], len(layers))
        after = self._driver.counters.causes(0)
        cycles = done[-1].retired[-1] - since & _MASK
        where = {cause: after[cause] - self._before[cause] for cause in CAUSES}
        where["idle"] = cycles - sum(count for cause, count in where.items() if cause != "idle")
        return Phase(name, len(done), cycles, where, layers, len(layers))
