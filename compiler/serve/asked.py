"""What a language model was asked while serving, and what that cost: told when it is asked no more, and at the end."""

from compiler.serve.events import Document, Events


class Asked:
    """Takes note of what a search has asked.

    Parameters
    ----------
    events : Events
        Hears of it.
    """

    def __init__(self, events: Events):
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
