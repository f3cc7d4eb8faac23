"""Progress display on standard error: a live line on a terminal, otherwise a plain line every ten seconds.

All work that may take more than two seconds runs in a `progress` block. Blocks can be nested; the innermost task is
shown.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cosim.rtl.build_progress import Build
from hw.errors import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

#: Seconds until a task is shown on a terminal; seconds between plain lines elsewhere.
DELAY_SECONDS, INTERVAL_SECONDS = 1.0, 10.0
#: Seconds between updates of the display.
_TICK_SECONDS = 0.25
#: Minimum finished share and elapsed seconds before the remaining time is estimated.
_MIN_SHARE, _MIN_SECONDS = 0.01, 2.0
_BAR_WIDTH = 24


class ProgressTask:
    """Running task, created by `progress`.

    Parameters
    ----------
    what : str
        Description of the activity, such as "tuning".
    total : int or None
        Number of items to process; None if unknown.
    unit : str
        Name of the items, such as "trials".
    seconds : float or None
        Estimated duration in seconds, for tasks without items.
    """

    def __init__(self, what: str, total: int | None = None, unit: str = "", seconds: float | None = None):
        self.what, self.total, self.unit, self.seconds = what, total, unit, seconds
        self.done, self.note = 0, ""
        self.start = time.monotonic()
        self.last = self.start  # time of the last plain line

    def advance(self, count: int = 1, note: str | None = None) -> None:
        """Count finished items.

        Parameters
        ----------
        count : int
            Number of items finished since the last call.
        note : str or None
            Text to display after the figures from now on; None: keep the current text.
        """
        self.done += count
        if note is not None:
            self.note = note

    def share(self, elapsed: float) -> float | None:
        """Return the finished share of the task after `elapsed` seconds, from 0 to 1; None if unknown."""
        if self.total:
            return min(self.done / self.total, 1.0)
        return None if self.seconds is None else min(elapsed / self.seconds, 1.0)

    def left(self, elapsed: float) -> float | None:
        """Return the estimated number of seconds left after `elapsed` seconds; None if unknown."""
        if not self.total:
            return None if self.seconds is None or elapsed > self.seconds else self.seconds - elapsed
        share = self.done / self.total
        known = share >= _MIN_SHARE and elapsed >= _MIN_SECONDS
        return elapsed / share - elapsed if known else None

    def describe(self, elapsed: float) -> str:
        """Return one line of text with the activity, the finished items, and the elapsed and remaining time."""
        parts = [clock(elapsed)]
        if self.total or self.unit:
            count = f"{self.done} of {self.total}" if self.total else f"{self.done}"
            parts.insert(0, f"{count} {self.unit}".strip())
        left = self.left(elapsed)
        parts += [] if left is None else [f"about {clock(left)} left"]
        parts += [self.note] if self.note else []
        return f"{self.what}: {', '.join(parts)}"


class _Display:
    """Display of the innermost running task, updated by a background thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._tasks: list[ProgressTask] = []
        self._live: Live | None = None
        self._wake: threading.Event | None = None

    def push(self, task: ProgressTask) -> None:
        with self._lock:
            self._tasks.append(task)
            if self._wake is None:
                self._wake = threading.Event()
                threading.Thread(target=self._watch, args=(self._wake,), daemon=True, name="progress").start()

    def pop(self, task: ProgressTask) -> None:
        with self._lock:
            self._tasks.remove(task)
            if not self._tasks:
                assert self._wake is not None
                self._wake.set()
                self._wake = None
                self._stop()

    def _watch(self, done: threading.Event) -> None:
        while not done.wait(_TICK_SECONDS):
            with self._lock:
                if done.is_set():
                    return
                try:
                    self._show(self._tasks[-1], time.monotonic())
                except (OSError, ValueError):  # standard error is closed; the main thread will notice
                    return

    def _show(self, task: ProgressTask, now: float) -> None:
        if sys.stderr.isatty():
            if self._live is None and now - task.start >= DELAY_SECONDS:
                self._live = _live()
                self._live.start()
            if self._live is not None:
                self._live.update(_line(task, now - task.start, self._live.console), refresh=True)
        elif now - task.last >= INTERVAL_SECONDS:
            task.last = now
            log(task.describe(now - task.start))

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


_DISPLAY = _Display()


@contextmanager
def progress(
    what: str, total: int | None = None, unit: str = "", *, seconds: float | None = None
) -> Iterator[ProgressTask]:
    """Display a task until the block ends; the parameters are those of `ProgressTask`."""
    task = ProgressTask(what, total, unit, seconds)
    _DISPLAY.push(task)
    try:
        yield task
    finally:
        _DISPLAY.pop(task)


@contextmanager
def building(build: Build) -> Iterator[ProgressTask]:
    """Announce a one-time build with its estimated duration and show its progress; a build monitor for `cosim.rtl`."""
    log(f"building {build.what}: once, then it is cached; about {clock(build.seconds)} on two idle cores")
    with progress(f"building {build.what}", seconds=build.seconds) as task:
        yield task
    log(f"built {build.what} in {clock(time.monotonic() - task.start)}")


def log(text: str) -> None:
    """Write a status line to standard error."""
    print(printable(f"mla: {text}"), file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """Format a duration, for example as "8 s", "2 min 5 s" or "1 h 3 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _live() -> "Live":
    from rich.console import Console
    from rich.live import Live

    # Standard output is unaffected, because it may be a file even if standard error is a terminal.
    return Live(console=Console(stderr=True), auto_refresh=False, transient=True, redirect_stdout=False)


def _line(task: ProgressTask, elapsed: float, console: "Console") -> "RenderableType":
    """Format the progress line, truncated to the width of the terminal."""
    from rich.text import Text

    share, bar = task.share(elapsed), ""
    if share is not None:
        full, empty = ("#", ".") if console.legacy_windows or console.encoding != "utf-8" else ("━", "─")
        filled = round(_BAR_WIDTH * share)
        bar = f"{full * filled}{empty * (_BAR_WIDTH - filled)} "
    text = Text.assemble((bar, "green"), task.describe(elapsed))
    text.truncate(console.width - 1, overflow="ellipsis")
    return text
