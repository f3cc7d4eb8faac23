"""The progress of a stream that is served, for people who watch."""

from collections.abc import Callable

from compiler.serve.events import Document, in_words
from compiler.serve.flight import Result
from compiler.serve.listener import Listener
from compiler.util.progress import Task, say

#: Decisions that are worth a line of their own.
_LASTING = ("reload", "rollback", "kept", "drift", "conditions", "search lost")


class Progress(Listener):
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

    def __init__(self, task: Task, *, clocked: bool, note: Callable[[], str] = lambda: ""):
        self.task, self.clocked, self.note = task, clocked, note
        self._reloads = self._rollbacks = 0
        self._candidate = ""

    def result(self, result: Result) -> None:
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
