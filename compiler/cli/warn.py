"""Warnings of a command, printed to standard error and recorded for its JSON report."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class _Recorder(logging.Handler):
    """Log handler that records the messages of all warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


_recorder = _Recorder()


@contextmanager
def recorded_warnings() -> Iterator[None]:
    """Record the warnings of one command for `warnings`; discards those of the previous command."""
    _recorder.messages.clear()
    root = logging.getLogger()
    root.addHandler(_recorder)
    try:
        yield
    finally:
        root.removeHandler(_recorder)


def warn(message: str) -> None:
    """Print a warning to standard error and record it."""
    print(message, file=sys.stderr, flush=True)
    _recorder.messages.append(message)


def warnings() -> list[str]:
    """Return the messages of all warnings so far: the JSON field `warnings`."""
    return list(_recorder.messages)
