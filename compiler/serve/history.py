"""What was served, from the first request to the last: for a summary, a report, a picture."""

from statistics import median
from typing import Any

from compiler.serve.events import Document
from compiler.serve.flight import Result
from compiler.serve.listener import Listener
from compiler.serve.windows import Window

#: Requests at the end whose cycles the summary tells.
_LAST = 20
#: Decisions that are counted, and the words for them.
_COUNTED = {"reload": "reloads", "rollback": "rolled back", "rejected": "candidates rejected"}


class History(Listener):
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
        self.events, self.windows = list[Document](), list[Window]()

    def result(self, result: Result) -> None:
        """Remember a request."""
        self.cycles.append(result.cycles // result.together)
        self.versions.append(result.version.number)

    def event(self, document: Document) -> None:
        """Remember a decision."""
        self.events.append(document)

    def window(self, window: Window) -> None:
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
