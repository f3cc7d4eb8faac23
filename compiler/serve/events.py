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


_WHY = {"first": "the static compiler's programs", "known": "the best known for this memory"}


def in_words(event: Document) -> str:
    """A decision for people."""
    kind, at = event["event"], f"at {event.get('request')}"
    if kind == "reload":
        why = _WHY.get(event["why"], f"trial {event['trial']}")
        return f"reload {at}: {why}, measured {event['measured_cycles']:,} cycles"
    if kind == "rollback":
        return f"rolled back {at}: {event['reason']}"
    if kind == "kept":
        return f"kept {at}: {event['cycles']:,.0f} cycles"
    if kind == "drift":
        return f"drift {at}: {event['usual_cycles']:,.0f} cycles have become {event['cycles']:,.0f}"
    if kind == "conditions":
        return f"memory known {at}: latency {event['latency']}, {event['bytes_per_cycle']:g} bytes a cycle"
    if kind == "rejected":
        return f"{event['kind']} {event['trial']}: {event['reason']}"
    return f"{kind} {at}: {event['reason']}" if "request" in event else f"{kind}: {event['reason']}"
