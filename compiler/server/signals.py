"""Ctrl-C while something is served: what is on its way comes out first."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

INTERRUPTED = 128 + signal.SIGINT


class InterruptHandler:
    """Whether somebody has pressed Ctrl-C: the stream then ends after what is on its way."""

    def __init__(self) -> None:
        self.asked = self._waiting = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Nothing is going on but waiting for input, which may be left at once."""
        self._waiting = True
        try:
            if self.asked:  # just before
                raise KeyboardInterrupt
            yield
        finally:
            self._waiting = False

    def hear(self, _signal: int, _frame: FrameType | None) -> None:
        """Ctrl-C has been pressed."""
        again, self.asked = self.asked, True
        if self._waiting or again:
            raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[InterruptHandler]:
    """Take Ctrl-C; pressed a second time it ends the work at once."""
    stop = InterruptHandler()
    previous: Callable[..., Any] | int | None = signal.signal(signal.SIGINT, stop.hear)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, previous)
