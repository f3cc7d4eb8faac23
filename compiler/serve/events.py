"""Decisions while serving, as documents in the order they were made."""

from collections.abc import Callable
from typing import Any

Document = dict[str, Any]


class Events:
    """Takes note of decisions.

    Parameters
    ----------
    sink : callable
        Hears of each.

    Attributes
    ----------
    seen : list of dict
        All of them.
    """

    def __init__(self, sink: Callable[[Document], None] = lambda _document: None):
        self.sink, self.seen = sink, list[Document]()

    def note(self, event: str, **fields: Any) -> None:
        """Take note of one."""
        self.seen.append({"event": event, **fields})
        self.sink(self.seen[-1])

    def of(self, event: str) -> list[Document]:
        """Those of one kind."""
        return [each for each in self.seen if each["event"] == event]
