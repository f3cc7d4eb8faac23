"""Reader of the performance counters."""

from collections.abc import Iterable, Sequence

from cosim.csr import CsrAccess
from hw.bus.register_map import ADDRESS
from hw.isa.counters import CAUSES, COUNTERS, MAXIMA, index_of


class CounterReader:
    """Reader of the performance counters of a device, by name.

    Parameters
    ----------
    registers : CsrAccess
        Access to the registers of the device.
    """

    def __init__(self, registers: CsrAccess):
        self.config = registers.device.config
        self._device = registers.device

    def read(self, name: str, tag: int) -> int:
        """Return the value of the named counter of one tag."""
        return self.read_all([name], tag)[name]

    def read_all(self, names: Sequence[str], tag: int) -> dict[str, int]:
        """Return the values of the named counters of one tag, read in one round trip."""
        select, low, high = (ADDRESS[f"COUNTER_{part}"] for part in ("SELECT", "LO", "HI"))
        accesses: list[tuple[int, int | None]] = []
        for name in names:
            accesses += [(select, tag << 16 | index_of(name)), (low, None), (high, None)]
        values = self._device.access_regs(accesses)
        return {name: values[2 * i] | values[2 * i + 1] << 32 for i, name in enumerate(names)}

    def of_tag(self, tag: int, *, architectural: bool = False) -> dict[str, int]:
        """Return all counters of one tag by name; if `architectural`, only those that do not depend on timing."""
        return self.read_all([c.name for c in COUNTERS if c.architectural or not architectural], tag)

    def by_tag(
        self, tags: Iterable[int] | None = None, *, architectural: bool = False
    ) -> dict[int, dict[str, int]]:
        """Return, by tag, the counters of several tags; by default, of all tags."""
        chosen = range(self.config.tags) if tags is None else tags
        return {tag: self.of_tag(tag, architectural=architectural) for tag in chosen}

    def totals(self, *, architectural: bool = False) -> dict[str, int]:
        """Return the sums of the counters over all tags."""
        rows = self.by_tag(architectural=architectural)
        return {name: sum(row[name] for row in rows.values()) for name in rows[0]}

    def causes(self, tag: int | None = None) -> dict[str, int]:
        """Return the cycles of the array by cause, for one tag, or summed over all tags if `tag` is None."""
        tags = range(self.config.tags) if tag is None else (tag,)
        rows = [self.read_all([f"cause_{cause}" for cause in CAUSES], each) for each in tags]
        return {cause: sum(row[f"cause_{cause}"] for row in rows) for cause in CAUSES}

    def maxima(self) -> dict[str, int]:
        """Return the maxima that the chip tracks, by name."""
        values = {}
        for index, (name, _) in enumerate(MAXIMA):
            select, value = (ADDRESS[each] for each in ("MAXIMUM_SELECT", "MAXIMUM"))
            (values[name],) = self._device.access_regs([(select, index), (value, None)])
        return values
