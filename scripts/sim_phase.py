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
        Cycles of the array by layer; with those in which it is idle they add up to `cycles`.
    """

    name: str
    images: int
    cycles: int | None
    where: dict[str, int] | None
    layers: list[int]

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
    layers : int
        Layers at most; each has a tag.
    """

    def __init__(self, driver: Driver, clocked: bool, layers: int):
        self._driver, self._clocked, self._layers = driver, clocked, layers
        self._before: list[dict[str, int]] = []

    def start(self) -> int:
        """Count from here; returns the cycle."""
        self._before = self._read()
        return self._driver.get("CYCLE_LO")

    def phase(self, name: str, done: Sequence[Done], since: int) -> Phase:
        """Summary of the images that came out since cycle `since`, the last of them just now."""
        if not self._clocked:
            return Phase(name, len(done), None, None, [])
        cycles = done[-1].retired - since & _MASK
        rows = [
            {cause: after[cause] - before[cause] for cause in CAUSES if cause != "idle"}
            for before, after in zip(self._before, self._read(), strict=True)
        ]
        where = {cause: sum(row[cause] for row in rows) for cause in rows[0]}
        where["idle"] = cycles - sum(where.values())
        return Phase(name, len(done), cycles, where, [sum(row.values()) for row in rows])

    def _read(self) -> list[dict[str, int]]:
        """Cycles by cause of each layer so far."""
        return [self._driver.counters.causes(layer) for layer in range(self._layers if self._clocked else 0)]
