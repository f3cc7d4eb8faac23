"""Numbers within limits, word by word: which words may follow so that the number lies in given spans of integers."""

from collections.abc import Iterator
from functools import lru_cache

from compiler.llm.assembly.choice import Choice
from compiler.llm.numbers import BYTES, LONG, MINUS

#: Closed intervals.
Spans = tuple[tuple[int, int], ...]

_BYTE = {word: value for value, word in enumerate(BYTES)}
_LENGTH = {word: int(word[1:]) for word in LONG}


def without(spans: Spans, value: int) -> Spans:
    """All but one number."""
    out = []
    for low, high in spans:
        out += [(low, high)] if not low <= value <= high else [(low, value - 1), (value + 1, high)]
    return tuple((low, high) for low, high in out if low <= high)


def spans_of(values: tuple[int, ...]) -> Spans:
    """Intervals of ascending numbers."""
    out: list[tuple[int, int]] = []
    for value in values:
        if out and out[-1][1] == value - 1:
            out[-1] = out[-1][0], value
        else:
            out.append((value, value))
    return tuple(out)


@lru_cache(maxsize=1 << 12)
def shortest(spans: Spans) -> int | None:
    """Words of the number that has fewest; None: there is no number."""
    return min((1 + choice.cost for choice in _first(spans, False)), default=None)


@lru_cache(maxsize=1 << 12)
def _first(spans: Spans, negative: bool) -> tuple[Choice, ...]:
    """What a number may begin with, or its magnitude behind a minus."""
    out = [Choice((max(low, 0), min(high, 255)), 0) for low, high in spans if low <= 255 and high >= 0]
    for word, length in _LENGTH.items():
        least, most = 1 << 8 * (length - 1), (1 << 8 * length) - 1
        if any(low <= most and high >= least for low, high in spans):
            out.append(Choice(word, length))
    if not negative and (magnitudes := _magnitudes(spans)):
        out.append(Choice(MINUS, min(1 + choice.cost for choice in _first(magnitudes, True))))
    return tuple(out)


@lru_cache(maxsize=1 << 12)
def _magnitudes(spans: Spans) -> Spans:
    return tuple((max(-high, 1), -low) for low, high in spans if low < 0)


class Number:
    """A number on its way.

    Parameters
    ----------
    spans : Spans
        Where it must lie.
    """

    def __init__(self, spans: Spans):
        self._spans = spans
        self._negative = False
        self._left: int | None = None  # bytes that are missing
        self._value = 0

    @property
    def value(self) -> int | None:
        """The number; None as long as words are missing."""
        if self._left != 0:
            return None
        return -self._value if self._negative else self._value

    def choices(self) -> Iterator[Choice]:
        """Words that may come next; none when the number is whole."""
        if self._left is None:
            yield from _first(self._spans, self._negative)
        elif self._left:
            shift, base = 8 * (self._left - 1), self._value << 8
            for low, high in self._spans:
                first, last = max((low >> shift) - base, 0 if base else 1), min((high >> shift) - base, 255)
                if first <= last:
                    yield Choice((first, last), self._left - 1)

    def take(self, word: str) -> bool:
        """Take a word; whether it may come next."""
        byte = _BYTE.get(word)
        for choice in self.choices():
            if choice.what == word or (byte is not None and choice.has_byte(byte)):
                break
        else:
            return False
        if word == MINUS:
            self._negative, self._spans = True, _magnitudes(self._spans)
        elif byte is None:
            self._left = _LENGTH[word]
        else:
            self._value = self._value << 8 | byte
            self._left = self._left - 1 if self._left else 0
        return True
