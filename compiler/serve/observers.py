"""Observers of a stream that is served: JSON lines, history, progress."""

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
    """Hears of everything in the order it happens; this one takes no interest in any of it."""

    def result(self, result: RequestResult) -> None:
        """A request has come out."""

    def event(self, document: Document) -> None:
        """A decision has been made."""

    def window(self, window: VersionWindow) -> None:
        """One version has served for a while."""


SCHEMA_VERSION = 1


class JsonLines(ServingObserver):
    """Writes lines.

    Parameters
    ----------
    stream : file
        Where they go.
    clocked : bool
        Whether the machine has a clock.
    """

    def __init__(self, stream: IO[str], *, clocked: bool):
        self.stream, self.clocked = stream, clocked

    def result(self, result: RequestResult) -> None:
        """A request's line."""
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
        """A decision's line."""
        print(json.dumps({"schema_version": SCHEMA_VERSION, **document}), file=self.stream, flush=True)


def _sha256(array: NDArray) -> str:
    """Of the bytes in C order, little endian."""
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return hashlib.sha256(little.tobytes()).hexdigest()


#: Requests at the end whose cycles the summary tells.
_LAST = 20
#: Decisions that are counted, and the words for them.
_COUNTED = {"reload": "reloads", "rollback": "rolled back", "rejected": "candidates rejected"}


class ServingHistory(ServingObserver):
    """Remembers everything but inputs and outputs.

    Parameters
    ----------
    clocked : bool
        Whether the machine has a clock.

    Attributes
    ----------
    cycles, versions : list of int
        Of each request; cycles are 0 on a machine without a clock.
    events : list of dict
        Decisions in order.
    windows : list of Window
        Where the cycles went.
    """

    def __init__(self, *, clocked: bool):
        self.clocked = clocked
        self.cycles, self.versions = list[int](), list[int]()
        self.events, self.windows = list[Document](), list[VersionWindow]()

    def result(self, result: RequestResult) -> None:
        """Remember a request."""
        self.cycles.append(result.cycles // result.together)
        self.versions.append(result.version.number)

    def event(self, document: Document) -> None:
        """Remember a decision."""
        self.events.append(document)

    def window(self, window: VersionWindow) -> None:
        """Remember where cycles went."""
        self.windows.append(window)

    def count(self, event: str) -> int:
        """How many decisions of a kind there were."""
        return sum(each["event"] == event for each in self.events)

    @property
    def first(self) -> int | None:
        """Cycles of the first request."""
        return self.cycles[0] if self.cycles and self.clocked else None

    @property
    def last(self) -> float | None:
        """Cycles of a request at the end: the median."""
        return median(self.cycles[-_LAST:]) if self.cycles and self.clocked else None

    def summary(self, *, adapted: bool) -> str:
        """A line for people."""
        parts = [f"{len(self.cycles)} requests"]
        if self.first is not None and self.last is not None:
            parts.append(f"{self.first:,} cycles for the first, {self.last:,.0f} for the last ones")
        if adapted:
            parts += [f"{self.count(event)} {words}" for event, words in _COUNTED.items()]
        return "; ".join(parts)

    def document(self) -> dict[str, Any]:
        """For JSON."""
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


#: Decisions that are worth a line of their own.
_LASTING = ("reload", "rollback", "kept", "drift", "conditions", "search lost")


class ServingProgress(ServingObserver):
    """Counts the requests of a task of `compiler.util.progress`, and writes a line for each decision.

    Parameters
    ----------
    task : Task
        Shows the requests served so far.
    clocked : bool
        Whether the machine has a clock.
    note : callable
        Gives one more figure of the requests so far, "" for none.
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
        """A candidate has come in, or has not."""
        kind = document["event"]
        self._reloads += kind == "reload"
        self._rollbacks += kind == "rollback"
        if kind in ("reload", "rejected"):
            self._candidate = in_words(document)
        if kind in _LASTING:
            say(in_words(document))
