"""Decimal numbers between limits, as a rule of a text grammar."""

from collections.abc import Iterator


def between(low: int, high: int) -> str:
    """Alternatives of all numbers from `low` to `high`, each written in one way."""
    out = [f'"-" {each}' for each in _positive(max(1, -high), -low)] if low < 0 else []
    return " | ".join([*out, *_positive(max(low, 0), high)])


def _positive(low: int, high: int) -> Iterator[str]:
    """Alternatives of numbers that are not negative."""
    for digits in range(len(str(low)), len(str(max(high, 0))) + 1):
        least, most = max(low, 10 ** (digits - 1) if digits > 1 else 0), min(high, 10**digits - 1)
        if least <= most:
            yield from _same_length(str(least), str(most))


def _same_length(low: str, high: str) -> Iterator[str]:
    """Alternatives of digits as many as both have, leading zeros included."""
    first, last, rest = int(low[0]), int(high[0]), len(low) - 1
    if not rest:
        yield _digit(first, last)
        return
    if low[1:] == "0" * rest and high[1:] == "9" * rest:
        yield " ".join([_digit(first, last), *["[0-9]"] * rest])
        return
    if first == last:
        yield from (f"{_digit(first, first)} {each}" for each in _same_length(low[1:], high[1:]))
        return
    yield from _same_length(low, low[0] + "9" * rest)
    if first + 1 < last:
        yield from _same_length(str(first + 1) + "0" * rest, str(last - 1) + "9" * rest)
    yield from _same_length(high[0] + "0" * rest, high)


def _digit(low: int, high: int) -> str:
    return f"[{low}-{high}]" if low < high else f'"{low}"'
