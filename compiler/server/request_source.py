"""Sources of requests."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from compiler.server.request import Arrays


@dataclass(frozen=True)
class RequestSource:
    """Stream of request inputs.

    Parameters
    ----------
    each : iterator
        Iterator over the inputs of each request.
    ready : callable
        Returns True if the next request is available without waiting; else requests in flight are completed first.
    """

    each: Iterator[Arrays]
    ready: Callable[[], bool] = lambda: True
