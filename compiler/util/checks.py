"""Validation of untrusted JSON data: types, ranges and sizes; errors are ValueErrors."""

import json
import math
from collections.abc import Mapping
from typing import Any

from hw.errors import InputError, shown

#: Exceptions raised when an entry is damaged or missing.
DAMAGE = (ValueError, TypeError, KeyError, InputError, OverflowError, RecursionError)
#: Maximum of a count; larger values are certainly wrong.
MOST_COUNT = 1 << 62
#: Maximum number of characters of a text, and of entries of a list or dict.
MOST_TEXT, MOST_ITEMS = 4096, 1 << 16
_MOST_NUMBER = 1e30


def parsed(data: bytes) -> dict[str, Any]:
    """Parse a JSON object; ValueError for constants that are not JSON, such as NaN."""

    def refuse(word: str) -> Any:
        raise ValueError(f"{word} is not a JSON number")

    try:
        value = json.loads(data, parse_constant=refuse)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value


def written(values: Mapping[str, Any]) -> bytes:
    """Canonical JSON of values: equal values give equal bytes. NaN is rejected when it is read."""
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


class Fields:
    """Typed access to the fields of a JSON object.

    Parameters
    ----------
    values : Any
        The parsed object, which must be a dict.
    """

    def __init__(self, values: Any):
        if not isinstance(values, dict):
            raise ValueError("no object")
        self.values: dict[str, Any] = values

    def get(self, name: str) -> Any:
        """A field of any type."""
        if name not in self.values:
            raise ValueError(f"{name} is missing")
        return self.values[name]

    def count(self, name: str) -> int:
        """A non-negative integer."""
        return _count(name, self.get(name))

    def integer(self, name: str) -> int:
        """An integer that may be negative, such as a seed."""
        value = self.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) > MOST_COUNT:
            raise ValueError(f"{name} must be an integer up to {MOST_COUNT}")
        return value

    def number(self, name: str) -> float:
        """A finite number."""
        return _number(name, self.get(name))

    def amount(self, name: str) -> float:
        """A finite number that is not negative."""
        value = self.number(name)
        if value < 0:
            raise ValueError(f"{name} must not be negative")
        return value

    def text(self, name: str) -> str:
        """A text."""
        value = self.get(name)
        if not isinstance(value, str) or len(value) > MOST_TEXT:
            raise ValueError(f"{name} must be a text of at most {MOST_TEXT} characters")
        return value

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self.get(name)
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false")
        return value

    def sequence(self, name: str) -> list[Any]:
        """A list."""
        value = self.get(name)
        if not isinstance(value, list) or len(value) > MOST_ITEMS:
            raise ValueError(f"{name} must be a list of at most {MOST_ITEMS} values")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts as a tuple."""
        value = self.sequence(name)
        if not all(isinstance(each, str) and len(each) <= MOST_TEXT for each in value):
            raise ValueError(f"{name} must be texts of at most {MOST_TEXT} characters")
        return tuple(value)

    def counts(self, name: str) -> dict[str, int]:
        """Non-negative integers by name."""
        return {key: _count(f"{name} of {shown(key)}", each) for key, each in self._items(name)}

    def numbers(self, name: str) -> dict[str, float]:
        """Finite numbers by name."""
        return {key: _number(f"{name} of {shown(key)}", each) for key, each in self._items(name)}

    def _items(self, name: str) -> list[tuple[str, Any]]:
        value = self.get(name)
        if not isinstance(value, dict) or len(value) > MOST_ITEMS:
            raise ValueError(f"{name} must be an object of at most {MOST_ITEMS} fields")
        return list(value.items())


def _count(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_COUNT:
        raise ValueError(f"{name} must be an integer in 0..{MOST_COUNT}")
    return value


def _number(name: str, value: Any) -> float:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not plain or not math.isfinite(value) or abs(value) > _MOST_NUMBER:
        raise ValueError(f"{name} must be a finite number")
    return float(value)
