"""Long names made to fit: the middle goes, since names that a converter numbers differ in their tails."""

from collections.abc import Callable

ELLIPSIS = "…"
#: Share of the characters left that are the name's beginning.
_HEAD = 0.6


def shorten_middle(text: str, fits: Callable[[str], bool]) -> str:
    """A text without its middle, as long as fits; itself if that does.

    Parameters
    ----------
    text : str
        The text, such as the name of a layer.
    fits : callable
        Whether a text is short enough; of a shorter one it is true as well.
    """
    if fits(text):
        return text
    low, high = 0, len(text) - 1  # characters kept: those of `low` fit
    while low < high:
        kept = (low + high + 1) // 2
        low, high = (kept, high) if fits(_without_middle(text, kept)) else (low, kept - 1)
    return _without_middle(text, low)


def _without_middle(text: str, kept: int) -> str:
    head = round(kept * _HEAD)
    tail = kept - head
    return text[:head].rstrip() + ELLIPSIS + text[len(text) - tail :].lstrip()
