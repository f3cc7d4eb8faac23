"""Where the cycles went under each version that served, by cause and by layer."""

from collections.abc import Callable
from dataclasses import dataclass

from compiler.profile.counters import ByTag, growth
from compiler.server.request import RequestResult
from compiler.server.server import Server
from compiler.server.versions import Version
from hw.isa.counters import CAUSES

_NAMES = tuple(f"cause_{cause}" for cause in CAUSES)
#: Requests between two looks at the counters, at least.
_APART = 8


@dataclass(frozen=True)
class VersionWindow:
    """Requests that one version carried out while nothing was loaded.

    Parameters
    ----------
    version : int
        Its number.
    requests : int
        How many.
    where : dict
        Cycles of all of them by cause, those between two requests included.
    layers : dict
        The same by the nodes of each layer, or of layers that share a tag.
    """

    version: int
    requests: int
    where: dict[str, int]
    layers: dict[tuple[str, ...], int]

    @property
    def cycles(self) -> float:
        """Of a request."""
        return sum(self.where.values()) / self.requests

    def document(self) -> dict[str, object]:
        """For JSON."""
        layers = [
            {"names": list(names), "cycles": round(cycles / self.requests, 1)}
            for names, cycles in self.layers.items()
        ]
        return {
            "version": self.version,
            "requests": self.requests,
            "cycles": round(self.cycles, 1),
            "where": {cause: round(cycles / self.requests, 1) for cause, cycles in self.where.items()},
            "layers": layers,
        }


class VersionStats:
    """Reads the counters now and then; that takes the programs no cycle.

    Parameters
    ----------
    server : Server
        Whose machine has a clock.
    hear : callable
        Hears of each window when it is over.
    """

    def __init__(self, server: Server, hear: Callable[[VersionWindow], None]):
        self.server, self.hear = server, hear
        self._version: Version | None = None
        self._looks: list[
            tuple[int, ByTag]
        ] = []  # the first, the last; requests that had come out, and counters

    def look(self, result: RequestResult) -> None:
        """After requests have come out, of which this is the last."""
        if result.version is not self._version:
            self.close()
        if result.disturbed:
            return
        completed, self._version = self.server.completed, result.version
        if not self._looks or completed - self._looks[-1][0] >= _APART:
            self._looks[1:] = [(completed, self._read(result.version))]

    def close(self) -> None:
        """The window is over, if there is one."""
        version, looks = self._version, self._looks
        self._version, self._looks = None, []
        if version is None or len(looks) < 2:
            return
        (first, before), (last, after) = looks
        grown = growth(before, after)
        where = {cause: sum(row[f"cause_{cause}"] for row in grown.values()) for cause in CAUSES}
        layers: dict[tuple[str, ...], int] = {}
        for tag, row in grown.items():
            nodes = tuple(name for info in version.network.infos if info.tag == tag for name in info.nodes)
            layers[nodes] = sum(row.values()) - row["cause_idle"]
        self.hear(VersionWindow(version.number, last - first, where, layers))

    def _read(self, version: Version) -> ByTag:
        tags = sorted({tag for code in version.network.codes for tag in code.tags})
        return {tag: self.server.driver.counters.read_all(_NAMES, tag) for tag in tags}
