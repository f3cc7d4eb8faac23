"""Who hears what happens while something is served."""

from compiler.serve.events import Document
from compiler.serve.flight import Result
from compiler.serve.windows import Window


class Listener:
    """Hears of everything in the order it happens; this one takes no interest in any of it."""

    def result(self, result: Result) -> None:
        """A request has come out."""

    def event(self, document: Document) -> None:
        """A decision has been made."""

    def window(self, window: Window) -> None:
        """One version has served for a while."""
