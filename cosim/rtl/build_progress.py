"""Notification of builds, for code that opens a simulator."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass


@dataclass(frozen=True)
class Build:
    """Description of the build of a file that is not in the cache.

    Parameters
    ----------
    what : str
        Description of the file, with size and variant, such as "the simulator of the 16x16 chip (probe)".
    seconds : float
        Estimated duration of the build in seconds on two idle cores.
    """

    what: str
    seconds: float


#: Function called when a build starts; the context that it returns is active during the build.
Monitor = Callable[[Build], AbstractContextManager[object]]


def watch(monitor: Monitor | None, build: Build) -> Callable[[], AbstractContextManager[object]]:
    """Return a function for `cache.cached` that creates the monitor's context for a build.

    Without a monitor, the function creates a null context.
    """
    return nullcontext if monitor is None else lambda: monitor(build)
