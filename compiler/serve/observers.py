"""Observers of serving events: JSON lines, history and progress."""

import hashlib
import json
from collections.abc import Callable
from statistics import median
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from compiler.serve.events import Document, in_words
from compiler.serve.version_stats import VersionWindow
from compiler.server.request import RequestResult
from compiler.util.progress import ProgressTask, say


class ServingObserver:
    """Observer interface for serving events; methods do nothing by default."""

    def result(self, result: RequestResult) -> None:
        """Called for each completed request."""

    def event(self, document: Document) -> None:
        """Called for each decision."""

    def window(self, window: VersionWindow) -> None:
        """Called at the end of a measurement window of one version."""


SCHEMA_VERSION = 1


class JsonLines(ServingObserver):
    """Writes one JSON line per request and decision.

    Parameters
    ----------
    stream : file
        Text stream that the lines are written to.
    clocked : bool
        True if the machine counts cycles.
    """

    def __init__(self, stream: IO[str], *, clocked: bool):
        self.stream, self.clocked = stream, clocked

    def result(self, result: RequestResult) -> None:
        """Write the line of a request."""
        self.event(
            {
                "index": result.index,
                "cycles": result.cycles if self.clocked else None,
                "delay_cycles": result.delay if self.clocked else None,
                "together": result.together,
                "version": result.version.number,
                "programs": list(result.version.digests),
                "outputs": {name: _sha256(array) for name, array in result.outputs.items()},
            }
        )

    def event(self, document: Document) -> None:
        """Write the line of a decision."""
        print(json.dumps({"schema_version": SCHEMA_VERSION, **document}), file=self.stream, flush=True)


def _sha256(array: NDArray) -> str:
    """SHA-256 of the bytes in C order, little endian."""
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return hashlib.sha256(little.tobytes()).hexdigest()


#: Final requests whose median cycles the summary reports.
_LAST_REQUESTS = 20
#: Decisions counted in the summary, with their labels.
_COUNTED = {"reload": "reloads", "rollback": "rolled back", "rejected": "candidates rejected"}


class ServingHistory(ServingObserver):
    """Records cycles, versions and decisions, but no inputs and outputs.

    Parameters
    ----------
    clocked : bool
        True if the machine counts cycles.

    Attributes
    ----------
    cycles, versions : list of int
        Cycles and version of each request; cycles are 0 on a machine without a clock.
    events : list of dict
        All decisions in order.
    windows : list of VersionWindow
        Cycle breakdown of each measurement window.
    """

    def __init__(self, *, clocked: bool):
        self.clocked = clocked
        self.cycles, self.versions = list[int](), list[int]()
        self.events, self.windows = list[Document](), list[VersionWindow]()

    def result(self, result: RequestResult) -> None:
        """Record a request."""
        self.cycles.append(result.cycles // result.together)
        self.versions.append(result.version.number)

    def event(self, document: Document) -> None:
        """Record a decision."""
        self.events.append(document)

    def window(self, window: VersionWindow) -> None:
        """Record a measurement window."""
        self.windows.append(window)

    def count(self, event: str) -> int:
        """Number of decisions with this event name."""
        return sum(each["event"] == event for each in self.events)

    @property
    def first(self) -> int | None:
        """Cycles of the first request; None without a clock."""
        return self.cycles[0] if self.cycles and self.clocked else None

    @property
    def last(self) -> float | None:
        """Median cycles of the final requests; None without a clock."""
        return median(self.cycles[-_LAST_REQUESTS:]) if self.cycles and self.clocked else None

    def summary(self, *, adapted: bool) -> str:
        """One-line summary text."""
        parts = [f"{len(self.cycles)} requests"]
        if self.first is not None and self.last is not None:
            parts.append(f"{self.first:,} cycles for the first, {self.last:,.0f} for the last ones")
        if adapted:
            parts += [f"{self.count(event)} {words}" for event, words in _COUNTED.items()]
        return "; ".join(parts)

    def document(self) -> dict[str, Any]:
        """Summary as a JSON document."""
        asked = [each["asked"] for each in self.events if "asked" in each]
        return {
            "requests": len(self.cycles),
            "first_cycles": self.first,
            "last_cycles": self.last,
            "reloads": self.count("reload"),
            "rollbacks": self.count("rollback"),
            "rejected": self.count("rejected"),
            "cycles": self.cycles if self.clocked else None,
            "versions": self.versions,
            "windows": [window.document() for window in self.windows],
            "events": self.events,
            "endpoint": asked[-1] if asked else None,
        }


#: Decisions that are logged on a line of their own.
_LOGGED = ("reload", "rollback", "kept", "drift", "conditions", "search lost")


class ServingProgress(ServingObserver):
    """Counts the requests of a task of `compiler.util.progress`, and writes a line for each decision.

    Parameters
    ----------
    task : ProgressTask
        Progress display of the requests served so far.
    clocked : bool
        True if the machine counts cycles.
    note : callable
        Returns an additional figure for the display, "" for none.
    """

    def __init__(self, task: ProgressTask, *, clocked: bool, note: Callable[[], str] = lambda: ""):
        self.task, self.clocked, self.note = task, clocked, note
        self._reloads = self._rollbacks = 0
        self._candidate = ""

    def result(self, result: RequestResult) -> None:
        """Count one more request."""
        parts = [self.note()]
        if self.clocked:
            parts.append(f"{result.cycles // result.together:,} cycles")
        if self._candidate:
            parts += [f"{self._reloads} reloads", f"{self._rollbacks} rolled back", self._candidate]
        self.task.advance(1, ", ".join(part for part in parts if part))

    def event(self, document: Document) -> None:
        """Update the counts and log important decisions."""
        kind = document["event"]
        self._reloads += kind == "reload"
        self._rollbacks += kind == "rollback"
        if kind in ("reload", "rejected"):
            self._candidate = in_words(document)
        if kind in _LOGGED:
            say(in_words(document))
