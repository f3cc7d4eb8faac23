"""Requests as they come."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from compiler.server.request import Arrays


@dataclass(frozen=True)
class RequestSource:
    """Inputs of requests, one after the other.

    Parameters
    ----------
    each : iterator
        Their inputs.
    ready : callable
        Whether the next one need not be waited for; else what is on its way comes out first.
    """

    each: Iterator[Arrays]
    ready: Callable[[], bool] = lambda: True
