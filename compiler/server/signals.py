"""Ctrl-C handling while serving: requests in flight complete first."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

INTERRUPTED = 128 + signal.SIGINT


class InterruptHandler:
    """Records Ctrl-C, after which the stream ends once requests in flight are complete."""

    def __init__(self) -> None:
        self.asked = self._waiting = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Context in which Ctrl-C interrupts at once, because it only waits for input."""
        self._waiting = True
        try:
            if self.asked:  # pressed just before
                raise KeyboardInterrupt
            yield
        finally:
            self._waiting = False

    def on_signal(self, _signal: int, _frame: FrameType | None) -> None:
        """Signal handler for Ctrl-C."""
        again, self.asked = self.asked, True
        if self._waiting or again:
            raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[InterruptHandler]:
    """Install the Ctrl-C handler; a second Ctrl-C interrupts at once."""
    stop = InterruptHandler()
    previous: Callable[..., Any] | int | None = signal.signal(signal.SIGINT, stop.on_signal)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, previous)
