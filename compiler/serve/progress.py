"""How far a stream is, for people who watch."""

import shutil
from collections.abc import Callable
from typing import IO

from compiler.serve.events import Document, in_words
from compiler.serve.flight import Result
from compiler.serve.listener import Listener

#: Without a terminal there is a line after so many requests.
_EVERY = 40
_BAR = 20
_CLEAR = "\r\x1b[2K"
#: Decisions that stay on the screen.
_LASTING = ("reload", "rollback", "kept", "drift", "conditions", "search lost")


class Progress(Listener):
    """One line that changes on a terminal, a line now and then elsewhere; what was decided stays.

    Parameters
    ----------
    stream : file
        Where it goes.
    total : int or None
        Requests, if that is known.
    clocked : bool
        Whether the machine has a clock.
    noun : str
        What requests are called.
    note : callable
        Something more about them.
    """

    def __init__(
        self, stream: IO[str], total: int | None, *, clocked: bool, noun: str = "requests",
        note: Callable[[], str] = lambda: "",
    ):  # fmt: skip
        self.stream, self.total, self.clocked, self.noun, self.note = stream, total, clocked, noun, note
        self._count, self._cycles = 0, 0
        self._reloads = self._rollbacks = 0
        self._candidate = ""

    def result(self, result: Result) -> None:
        """One more."""
        self._count, self._cycles = self._count + 1, result.cycles // result.together
        if self.stream.isatty():
            width = shutil.get_terminal_size().columns
            print(f"{_CLEAR}{self._line()[: width - 1]}", end="", file=self.stream, flush=True)
        elif self._count % _EVERY == 0:
            print(self._line(), file=self.stream, flush=True)

    def event(self, document: Document) -> None:
        """A candidate has come in, or has not."""
        kind = document["event"]
        self._reloads += kind == "reload"
        self._rollbacks += kind == "rollback"
        if kind in ("reload", "rejected"):
            self._candidate = in_words(document)
        if kind in _LASTING:
            self.clear()
            print(f"  {in_words(document)}", file=self.stream, flush=True)

    def clear(self) -> None:
        """Make room for other lines."""
        if self.stream.isatty():
            print(_CLEAR, end="", file=self.stream, flush=True)

    def _line(self) -> str:
        parts = [f"{self._count} {self.noun}"]
        if self.total:
            done = _BAR * self._count // self.total
            parts = [
                f"[{'#' * done}{'.' * (_BAR - done)}] {self._count} of {self.total} {self.noun}",
            ]
        parts += [self.note()] if self.note() else []
        if self.clocked:
            parts.append(f"{self._cycles:,} cycles")
        if self._candidate:
            parts += [f"{self._reloads} reloads, {self._rollbacks} rolled back", self._candidate]
        return " | ".join(parts)
