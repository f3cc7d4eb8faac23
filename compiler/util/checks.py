"""Checks of arguments and of untrusted values; messages state the invalid value and describe the valid values."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.errors import InputError, shown

#: Exceptions raised when an entry is damaged or missing.
DAMAGE = (ValueError, TypeError, KeyError, InputError, OverflowError, RecursionError)
#: Maximum value of a count; larger values are rejected.
MAX_COUNT = 1 << 62
#: Maximum number of characters of a string, and maximum number of entries of a list or dict.
MAX_CHARACTERS, MAX_ITEMS = 4096, 1 << 16
_MAX_NUMBER = 1e30
#: Advice about arrays of types that numpy does not have.
CONVERT_ADVICE = "; bfloat16 and similar types must be converted to float32 first"


def parsed(data: bytes) -> dict[str, Any]:
    """Parse a JSON object; raise ValueError if it is invalid or contains NaN or an infinity."""

    def reject(word: str) -> Any:
        raise ValueError(f"{word} is not a JSON number")

    try:
        value = json.loads(data, parse_constant=reject)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def written(values: Mapping[str, Any]) -> bytes:
    """Return canonical JSON, so that equal values give equal bytes; NaN is written, but `parsed` rejects it."""
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


class Fields:
    """Typed access to the fields of a JSON object.

    Parameters
    ----------
    values : Any
        Parsed JSON value, which must be a dict.
    """

    def __init__(self, values: Any):
        if not isinstance(values, dict):
            raise ValueError("not a JSON object")
        self.values: dict[str, Any] = values

    def get(self, name: str) -> Any:
        """Return the value of a field, which may have any type; raise ValueError if the field is missing."""
        if name not in self.values:
            raise ValueError(f"{name} is missing")
        return self.values[name]

    def count(self, name: str) -> int:
        """Return the value of a field that must be a non-negative integer."""
        return _count(name, self.get(name))

    def integer(self, name: str) -> int:
        """Return the value of a field that must be an integer of either sign, such as a seed."""
        value = self.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) > MAX_COUNT:
            raise ValueError(f"{name} must be an integer up to {MAX_COUNT}")
        return value

    def number(self, name: str) -> float:
        """Return the value of a field that must be a finite number."""
        return _number(name, self.get(name))

    def amount(self, name: str) -> float:
        """Return the value of a field that must be a finite, non-negative number."""
        value = self.number(name)
        if value < 0:
            raise ValueError(f"{name} must not be negative")
        return value

    def text(self, name: str) -> str:
        """Return the value of a field that must be a string."""
        value = self.get(name)
        if not isinstance(value, str) or len(value) > MAX_CHARACTERS:
            raise ValueError(f"{name} must be a string of at most {MAX_CHARACTERS} characters")
        return value

    def flag(self, name: str) -> bool:
        """Return the value of a field that must be true or false."""
        value = self.get(name)
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false")
        return value

    def sequence(self, name: str) -> list[Any]:
        """Return the value of a field that must be a list."""
        value = self.get(name)
        if not isinstance(value, list) or len(value) > MAX_ITEMS:
            raise ValueError(f"{name} must be a list of at most {MAX_ITEMS} values")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return, as a tuple, the value of a field that must be a list of strings."""
        value = self.sequence(name)
        if not all(isinstance(each, str) and len(each) <= MAX_CHARACTERS for each in value):
            raise ValueError(f"{name} must be strings of at most {MAX_CHARACTERS} characters")
        return tuple(value)

    def counts(self, name: str) -> dict[str, int]:
        """Return the value of a field that must be an object whose values are non-negative integers."""
        return {key: _count(f"{name} of {shown(key)}", each) for key, each in self._items(name)}

    def numbers(self, name: str) -> dict[str, float]:
        """Return the value of a field that must be an object whose values are finite numbers."""
        return {key: _number(f"{name} of {shown(key)}", each) for key, each in self._items(name)}

    def _items(self, name: str) -> list[tuple[str, Any]]:
        value = self.get(name)
        if not isinstance(value, dict) or len(value) > MAX_ITEMS:
            raise ValueError(f"{name} must be an object of at most {MAX_ITEMS} fields")
        return list(value.items())


def _count(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COUNT:
        raise ValueError(f"{name} must be an integer in 0..{MAX_COUNT}")
    return value


def _number(name: str, value: Any) -> float:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not plain or not math.isfinite(value) or abs(value) > _MAX_NUMBER:
        raise ValueError(f"{name} must be a finite number")
    return float(value)


_CALIBRATION = "a dict of arrays by the names of the inputs, or a list of samples"


def is_integer(value: Any) -> bool:
    """Return True for integers of Python and numpy, but not for truth values."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Return True for real numbers of Python and numpy, but not for truth values."""
    return isinstance(value, Real) and not isinstance(value, bool)


def of_type(name: str, value: Any, kinds: type | tuple[type, ...], right: str) -> Any:
    """Check that an argument has one of the given types and return it; `right` describes valid values in messages.

    Raises
    ------
    InputError
        The argument has another type.
    """
    if not isinstance(value, kinds):
        raise InputError(f"{name} must be {right}, not {shown(value)}")
    return value


def integer(name: str, value: Any, minimum: int) -> int:
    """Convert an argument to an integer; raise InputError if it is not an integer or is less than `minimum`."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise InputError(f"{name} must be an integer of at least {minimum}, not {shown(value)}")
    if value < minimum:
        raise InputError(f"{name} must be at least {minimum}, not {shown(value)}")
    return int(value)


def integers(name: str, values: Any, minimum: int) -> tuple[int, ...]:
    """Convert an argument to integers; raise InputError unless it is a list of integers of at least `minimum`."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise InputError(f"{name} must be a list of integers, not {shown(values)}")
    return tuple(integer(name, value, minimum) for value in values)


def texts(name: str, values: Any) -> tuple[str, ...]:
    """Convert a list of names to a tuple; raise InputError if it is not a list of strings."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise InputError(f"{name} must be a list of names, not {shown(values)}")
    return tuple(of_type(f"each of {name}", value, str, "a name") for value in values)


def array(name: str, value: Any) -> NDArray:
    """Convert numbers to an array; raise InputError if they are not numbers, or if rows have different lengths."""
    try:
        made = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        advice = CONVERT_ADVICE if "bfloat16" in str(error).lower() else ""
        raise InputError(f"{name} must be an array of numbers: {error}{advice}") from None
    if made.dtype.kind == "V":  # types that numpy does not have, such as those of ml_dtypes
        raise InputError(f"{name} must be an array of numbers, not of {made.dtype}{CONVERT_ADVICE}")
    if made.dtype.kind not in "biuf":
        raise InputError(f"{name} must be an array of numbers, not {shown(value)}")
    return made


def arrays(name: str, values: Any) -> dict[str, NDArray]:
    """Convert the values of a dict to arrays; raise InputError if it is not a dict of arrays by name."""
    of_type(name, values, Mapping, "a dict of arrays by name")
    for key in values:
        of_type(f"a key of {name}", key, str, "the name of an input")
    return {key: array(f"{name} {key!r}", value) for key, value in values.items()}


def inputs(given: Any) -> Mapping[str, Any] | Sequence[Any]:
    """Check that inputs are a dict by name, a list, or an array, which becomes a list; raise InputError otherwise."""
    if isinstance(given, np.ndarray):
        return [given]
    if isinstance(given, (str, bytes)) or not isinstance(given, (Mapping, Sequence)):
        raise InputError(f"inputs must be a list, a dict by name, or one array, not {shown(given)}")
    return given


#: Maximum number of lengths of a dimension.
MAX_LENGTHS = 4096


def sizes(given: Any) -> "tuple[dict[str, int] | None, tuple[str, tuple[int, ...]] | None]":
    """Check the sizes of dimensions, given by name.

    Returns
    -------
    sizes, lengths
        The sizes, and the name and lengths of the dimension for which several are given; its size is the longest.

    Raises
    ------
    InputError
        A size is not a positive integer or a sequence of ascending ones, or there are several such sequences.
    """
    if given is None:
        return None, None
    of_type("sizes", given, Mapping, "a dict of sizes by the names of dimensions")
    found, several = dict[str, int](), list[tuple[str, tuple[int, ...]]]()
    for key, value in given.items():
        of_type("a key of sizes", key, str, "the name of a dimension")
        if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
            if not 1 <= len(value) <= MAX_LENGTHS:
                raise InputError(f"size of {key!r} must be 1..{MAX_LENGTHS:,} lengths, not {len(value):,}")
            each = integers(f"size of {key!r}", value, 1)
            if list(each) != sorted(set(each)):
                raise InputError(f"size of {key!r} must be lengths that ascend, not {shown(list(each))}")
            found[key] = each[-1]
            several += [(key, each)] if len(each) > 1 else []
        else:
            found[key] = integer(f"size of {key!r}", value, 1)
    if len(several) > 1:
        names = " and ".join(repr(key) for key, _ in several)
        raise InputError(f"sizes: only one dimension can have several lengths, not {names}")
    return found, several[0] if several else None


def calibration(given: Any, name: str = "calibration") -> Any:
    """Convert calibration samples, given as a dict, a list or an array, to arrays; raise InputError for other types.

    `name` is that of the argument.
    """
    if given is None:
        return None
    if isinstance(given, Mapping):
        return arrays(name, given)
    if isinstance(given, np.ndarray) and given.ndim:
        return array(name, given)
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise InputError(f"{name} must be {_CALIBRATION}, not {shown(given)}")
    return [
        arrays(name, sample) if isinstance(sample, Mapping) else array(f"a sample of {name}", sample)
        for sample in given
    ]


def known(function: Callable[..., Any], names: Sequence[str], given: Mapping[str, Any]) -> None:
    """Raise InputError if any keyword argument is not among the parameter names of a function."""
    unknown = [name for name in given if name not in names]
    if unknown:
        title = getattr(function, "__name__", "it")
        raise InputError(f"{title} has no argument {', '.join(unknown)}; arguments are {', '.join(names)}")
