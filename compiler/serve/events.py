"""Decisions while serving as documents, and the use of language models among them."""

from collections.abc import Callable
from typing import Any

Document = dict[str, Any]


class ServingEvents:
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


class LlmUsage:
    """Takes note of what a search has asked.

    Parameters
    ----------
    events : Events
        Hears of it.
    """

    def __init__(self, events: ServingEvents):
        self.events = events
        self._last: Document | None = None

    def hear(self, document: Document | None, request: int) -> None:
        """What was asked so far, as of a finding; None: there is no language model."""
        before, self._last = self._last, document or self._last
        if document and document["ended"] and not (before and before["ended"]):
            self.events.note("endpoint", request=request, reason=f"asked no more: {document['ended']}")

    def end(self, request: int) -> None:
        """Serving has ended."""
        if self._last:
            asked = self._last
            reason = (
                f"{asked['requests']} requests, {asked['candidates']} candidates, {asked['better']} better"
            )
            self.events.note("endpoint", request=request, reason=reason, asked=asked)


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
