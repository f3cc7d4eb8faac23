"""Shortening of long names by removing the middle, because generated names differ in their tails."""

from collections.abc import Callable

ELLIPSIS = "…"
#: Share of the remaining characters taken from the start of the name.
_HEAD = 0.6


def shorten_middle(text: str, fits: Callable[[str], bool]) -> str:
    """Return the longest text that fits after removing characters from the middle; the text itself if it fits.

    Parameters
    ----------
    text : str
        The text, such as the name of a layer.
    fits : callable
        Predicate for short enough texts; must be monotonic in the length.
    """
    if fits(text):
        return text
    low, high = 0, len(text) - 1  # `low` characters are known to fit
    while low < high:
        kept = (low + high + 1) // 2
        low, high = (kept, high) if fits(_without_middle(text, kept)) else (low, kept - 1)
    return _without_middle(text, low)


def _without_middle(text: str, kept: int) -> str:
    head = round(kept * _HEAD)
    tail = kept - head
    return text[:head].rstrip() + ELLIPSIS + text[len(text) - tail :].lstrip()
