"""Warnings of a command: on standard error, and in its JSON report."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class _Recorder(logging.Handler):
    """Keeps the messages of warnings, whoever logs them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


_recorder = _Recorder()


@contextmanager
def recorded_warnings() -> Iterator[None]:
    """Record the warnings of one command, for `warnings`; those of the command before are forgotten."""
    _recorder.messages.clear()
    root = logging.getLogger()
    root.addHandler(_recorder)
    try:
        yield
    finally:
        root.removeHandler(_recorder)


def warn(message: str) -> None:
    """Print a warning to standard error, and record it."""
    print(message, file=sys.stderr, flush=True)
    _recorder.messages.append(message)


def warnings() -> list[str]:
    """Messages of all warnings so far, in order: the JSON field `warnings`."""
    return list(_recorder.messages)
