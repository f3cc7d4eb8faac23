"""Cycle breakdown of each served version, by cause and by layer."""

from collections.abc import Callable
from dataclasses import dataclass

from compiler.profile.counters import ByTag, growth
from compiler.server.request import RequestResult
from compiler.server.server import Server
from compiler.server.versions import Version
from hw.isa.counters import CAUSES

_NAMES = tuple(f"cause_{cause}" for cause in CAUSES)
#: Minimum requests between two samples of the counters.
_MIN_INTERVAL_REQUESTS = 8


@dataclass(frozen=True)
class VersionWindow:
    """Consecutive requests of one version without program loads.

    Parameters
    ----------
    version : int
        Number of the version.
    requests : int
        Number of requests in the window.
    where : dict
        Total cycles by cause, including those between requests.
    layers : dict
        Total cycles by the node names of each layer, or of layers that share a tag.
    """

    version: int
    requests: int
    where: dict[str, int]
    layers: dict[tuple[str, ...], int]

    @property
    def cycles(self) -> float:
        """Mean cycles per request."""
        return sum(self.where.values()) / self.requests

    def document(self) -> dict[str, object]:
        """Window as a JSON document."""
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
    """Samples the cycle counters per version, at no cost in cycles.

    Parameters
    ----------
    server : Server
        Server on a machine with a clock.
    on_window : callable
        Called with each window when it ends.
    """

    def __init__(self, server: Server, on_window: Callable[[VersionWindow], None]):
        self.server, self.on_window = server, on_window
        self._version: Version | None = None
        self._samples: list[tuple[int, ByTag]] = []  # first and last sample: completed requests, counters

    def look(self, result: RequestResult) -> None:
        """Sample the counters after completed requests, of which this is the last."""
        if result.version is not self._version:
            self.close()
        if result.disturbed:
            return
        completed, self._version = self.server.completed, result.version
        if not self._samples or completed - self._samples[-1][0] >= _MIN_INTERVAL_REQUESTS:
            self._samples[1:] = [(completed, self._read(result.version))]

    def close(self) -> None:
        """End the current window, if any."""
        version, samples = self._version, self._samples
        self._version, self._samples = None, []
        if version is None or len(samples) < 2:
            return
        (first, before), (last, after) = samples
        grown = growth(before, after)
        where = {cause: sum(row[f"cause_{cause}"] for row in grown.values()) for cause in CAUSES}
        layers: dict[tuple[str, ...], int] = {}
        for tag, row in grown.items():
            nodes = tuple(name for info in version.network.infos if info.tag == tag for name in info.nodes)
            layers[nodes] = sum(row.values()) - row["cause_idle"]
        self.on_window(VersionWindow(version.number, last - first, where, layers))

    def _read(self, version: Version) -> ByTag:
        tags = sorted({tag for code in version.network.codes for tag in code.tags})
        return {tag: self.server.driver.counters.read_all(_NAMES, tag) for tag in tags}
