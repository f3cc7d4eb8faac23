"""Serving decisions as JSON documents, including language-model usage."""

from collections.abc import Callable
from typing import Any

Document = dict[str, Any]


class ServingEvents:
    """Records serving decisions.

    Parameters
    ----------
    sink : callable
        Called with each decision.

    Attributes
    ----------
    seen : list of dict
        All decisions in order.
    """

    def __init__(self, sink: Callable[[Document], None] = lambda _document: None):
        self.sink, self.seen = sink, list[Document]()

    def note(self, event: str, **fields: Any) -> None:
        """Record a decision."""
        self.seen.append({"event": event, **fields})
        self.sink(self.seen[-1])

    def of(self, event: str) -> list[Document]:
        """All decisions with this event name."""
        return [each for each in self.seen if each["event"] == event]


class LlmUsage:
    """Logs language-model usage and cost when the budget is exhausted and at shutdown.

    Parameters
    ----------
    events : ServingEvents
        Receives the usage as `endpoint` events.
    """

    def __init__(self, events: ServingEvents):
        self.events = events
        self._last: Document | None = None

    def hear(self, document: Document | None, request: int) -> None:
        """Update the usage reported with a finding; None if there is no language model."""
        before, self._last = self._last, document or self._last
        if document and document["ended"] and not (before and before["ended"]):
            self.events.note("endpoint", request=request, reason=f"no more queries: {document['ended']}")

    def end(self, request: int) -> None:
        """Report the final usage."""
        if self._last:
            asked = self._last
            reason = (
                f"{asked['requests']} requests, {asked['candidates']} candidates, {asked['better']} improved"
            )
            self.events.note("endpoint", request=request, reason=reason, asked=asked)


_WHY = {"first": "heuristic schedule", "known": "best known for this DRAM timing"}


def in_words(event: Document) -> str:
    """Format a decision as a line of text."""
    kind, at = event["event"], f"at {event.get('request')}"
    if kind == "reload":
        why = _WHY.get(event["why"], f"trial {event['trial']}")
        return f"reload {at}: {why}, measured {event['measured_cycles']:,} cycles"
    if kind == "rollback":
        return f"rolled back {at}: {event['reason']}"
    if kind == "kept":
        return f"kept {at}: {event['cycles']:,.0f} cycles"
    if kind == "drift":
        return f"drift {at}: from {event['usual_cycles']:,.0f} to {event['cycles']:,.0f} cycles"
    if kind == "conditions":
        return f"DRAM timing {at}: latency {event['latency']}, {event['bytes_per_cycle']:g} bytes per cycle"
    if kind == "rejected":
        return f"{event['kind']} {event['trial']}: {event['reason']}"
    return f"{kind} {at}: {event['reason']}" if "request" in event else f"{kind}: {event['reason']}"
