"""How whoever opens a simulator learns that one is being built."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass


@dataclass(frozen=True)
class Build:
    """A file that the cache lacks and that is being made.

    Parameters
    ----------
    what : str
        What is built, with its size and variant, such as "the simulator of the 16x16 chip (probe)".
    seconds : float
        About how many seconds it takes on two idle cores.
    """

    what: str
    seconds: float


#: Called when something must be built; the context it returns is entered while that goes on.
Monitor = Callable[[Build], AbstractContextManager[object]]


def watch(monitor: Monitor | None, build: Build) -> Callable[[], AbstractContextManager[object]]:
    """What `cache.cached` enters while it makes an entry: the monitor's context of `build`, if there is a monitor."""
    return nullcontext if monitor is None else lambda: monitor(build)
