"""Progress of long work on standard error: a live line on a terminal, a plain line every ten seconds elsewhere.

All work that may take more than two seconds runs in `progress`. Work can be nested; the innermost is shown.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cosim.rtl.monitor import Build

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

#: Seconds after which work is shown on a terminal; seconds between plain lines elsewhere.
DELAY, INTERVAL = 1.0, 10.0
#: Seconds between two looks at the work under way.
_TICK = 0.25
#: Share of the work that must be done before its pace says when it ends, and seconds it must have taken.
_LEAST_SHARE, _LEAST_SECONDS = 0.01, 2.0
_BAR = 24


class ProgressTask:
    """A piece of work under way; `progress` makes one.

    Parameters
    ----------
    what : str
        What is done, such as "tuning".
    total : int or None
        How many items there are to do, if that is known.
    unit : str
        What the items are called, such as "trials".
    seconds : float or None
        About how many seconds it takes, for work without items.
    """

    def __init__(self, what: str, total: int | None = None, unit: str = "", seconds: float | None = None):
        self.what, self.total, self.unit, self.seconds = what, total, unit, seconds
        self.done, self.note = 0, ""
        self.start = time.monotonic()
        self.last = self.start  # when a plain line was written

    def advance(self, count: int = 1, note: str | None = None) -> None:
        """Count finished items.

        Parameters
        ----------
        count : int
            Items that were finished since the last call.
        note : str or None
            Text shown after the figures from now on; None leaves it as it is.
        """
        self.done += count
        if note is not None:
            self.note = note

    def share(self, elapsed: float) -> float | None:
        """Share of the work that is done after so many seconds, in 0..1; None if that is unknown."""
        if self.total:
            return min(self.done / self.total, 1.0)
        return None if self.seconds is None else min(elapsed / self.seconds, 1.0)

    def left(self, elapsed: float) -> float | None:
        """Seconds left after so many seconds; None if that is unknown."""
        if not self.total:
            return None if self.seconds is None or elapsed > self.seconds else self.seconds - elapsed
        share = self.done / self.total
        known = share >= _LEAST_SHARE and elapsed >= _LEAST_SECONDS
        return elapsed / share - elapsed if known else None

    def describe(self, elapsed: float) -> str:
        """One line: what is done, how far it is, time elapsed and left."""
        parts = [clock(elapsed)]
        if self.total or self.unit:
            count = f"{self.done} of {self.total}" if self.total else f"{self.done}"
            parts.insert(0, f"{count} {self.unit}".strip())
        left = self.left(elapsed)
        parts += [] if left is None else [f"about {clock(left)} left"]
        parts += [self.note] if self.note else []
        return f"{self.what}: {', '.join(parts)}"


class _Display:
    """Shows the innermost of the tasks under way, from a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._tasks: list[ProgressTask] = []
        self._live: Live | None = None
        self._wake: threading.Event | None = None

    def enter(self, task: ProgressTask) -> None:
        with self._lock:
            self._tasks.append(task)
            if self._wake is None:
                self._wake = threading.Event()
                threading.Thread(target=self._watch, args=(self._wake,), daemon=True, name="progress").start()

    def leave(self, task: ProgressTask) -> None:
        with self._lock:
            self._tasks.remove(task)
            if not self._tasks:
                assert self._wake is not None
                self._wake.set()
                self._wake = None
                self._stop()

    def _watch(self, done: threading.Event) -> None:
        while not done.wait(_TICK):
            with self._lock:
                if done.is_set():
                    return
                try:
                    self._show(self._tasks[-1], time.monotonic())
                except (OSError, ValueError):  # standard error is closed; the main thread will notice
                    return

    def _show(self, task: ProgressTask, now: float) -> None:
        if sys.stderr.isatty():
            if self._live is None and now - task.start >= DELAY:
                self._live = _live()
                self._live.start()
            if self._live is not None:
                self._live.update(_line(task, now - task.start, self._live.console), refresh=True)
        elif now - task.last >= INTERVAL:
            task.last = now
            say(task.describe(now - task.start))

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


_DISPLAY = _Display()


@contextmanager
def progress(
    what: str, total: int | None = None, unit: str = "", *, seconds: float | None = None
) -> Iterator[ProgressTask]:
    """Show that work is under way until the block ends; parameters as in `Task`."""
    task = ProgressTask(what, total, unit, seconds)
    _DISPLAY.enter(task)
    try:
        yield task
    finally:
        _DISPLAY.leave(task)


@contextmanager
def building(build: Build) -> Iterator[ProgressTask]:
    """Monitor of `cosim.rtl`: say what is being built, that it is built once and for how long, then show progress."""
    say(f"building {build.what}: once, then it is cached; about {clock(build.seconds)} on two idle cores")
    with progress(f"building {build.what}", seconds=build.seconds) as task:
        yield task
    say(f"built {build.what} in {clock(time.monotonic() - task.start)}")


def say(text: str) -> None:
    """Write a line about the work to standard error."""
    print(f"mla: {text}", file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """A duration for people: "8 s", "2 min 5 s", "1 h 3 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _live() -> "Live":
    from rich.console import Console
    from rich.live import Live

    # Standard output is left alone: it may be a file while standard error is a terminal.
    return Live(console=Console(stderr=True), auto_refresh=False, transient=True, redirect_stdout=False)


def _line(task: ProgressTask, elapsed: float, console: "Console") -> "RenderableType":
    """A line of the terminal, no longer than that."""
    from rich.text import Text

    share, bar = task.share(elapsed), ""
    if share is not None:
        full, empty = ("#", ".") if console.legacy_windows or console.encoding != "utf-8" else ("━", "─")
        filled = round(_BAR * share)
        bar = f"{full * filled}{empty * (_BAR - filled)} "
    text = Text.assemble((bar, "green"), task.describe(elapsed))
    text.truncate(console.width - 1, overflow="ellipsis")
    return text
