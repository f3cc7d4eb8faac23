"""Reading the performance counters."""

from collections.abc import Iterable

from cosim.registers import Registers
from hw.isa.counters import CAUSES, COUNTERS, MAXIMA, index_of


class CounterReader:
    """Counters of a device, by name.

    Parameters
    ----------
    registers : Registers
        The device's registers.
    """

    def __init__(self, registers: Registers):
        self.config = registers.device.config
        self._get, self._set = registers.get, registers.set

    def read(self, name: str, tag: int) -> int:
        """One counter of one tag."""
        self._set("COUNTER_SELECT", tag << 16 | index_of(name))
        low = self._get("COUNTER_LO")
        return self._get("COUNTER_HI") << 32 | low

    def of_tag(self, tag: int, *, architectural: bool = False) -> dict[str, int]:
        """Counters of one tag; only those that do not depend on timing if `architectural`."""
        return {c.name: self.read(c.name, tag) for c in COUNTERS if c.architectural or not architectural}

    def by_tag(
        self, tags: Iterable[int] | None = None, *, architectural: bool = False
    ) -> dict[int, dict[str, int]]:
        """Counters of several tags, all of them by default."""
        chosen = range(self.config.tags) if tags is None else tags
        return {tag: self.of_tag(tag, architectural=architectural) for tag in chosen}

    def totals(self, *, architectural: bool = False) -> dict[str, int]:
        """Sums over all tags."""
        rows = self.by_tag(architectural=architectural)
        return {name: sum(row[name] for row in rows.values()) for name in rows[0]}

    def causes(self, tag: int | None = None) -> dict[str, int]:
        """Where the array's cycles went, for one tag or in all."""
        tags = range(self.config.tags) if tag is None else (tag,)
        return {cause: sum(self.read(f"cause_{cause}", t) for t in tags) for cause in CAUSES}

    def maxima(self) -> dict[str, int]:
        """Values that are not sums."""
        values = {}
        for index, (name, _) in enumerate(MAXIMA):
            self._set("MAXIMUM_SELECT", index)
            values[name] = self._get("MAXIMUM")
        return values
