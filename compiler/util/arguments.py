"""Validation of arguments of the Python API: errors are one-line messages instead of tracebacks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.errors import InputError, shown

_CALIBRATION = "a dict of arrays by the names of the inputs, or a list of samples"


def of_type(name: str, value: Any, kinds: type | tuple[type, ...], right: str) -> Any:
    """Check that an argument has one of the given types; `right` describes valid values in the message.

    Raises
    ------
    InputError
        The argument has another type.
    """
    if not isinstance(value, kinds):
        raise InputError(f"{name} must be {right}, not {shown(value)}")
    return value


def integer(name: str, value: Any, least: int) -> int:
    """Check an integer argument; InputError if it is not an integer or less than `least`."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise InputError(f"{name} must be an integer of at least {least}, not {shown(value)}")
    if value < least:
        raise InputError(f"{name} must be at least {least}, not {shown(value)}")
    return int(value)


def integers(name: str, values: Any, least: int) -> tuple[int, ...]:
    """Check a list of integers; InputError if it is not one, or a value is less than `least`."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise InputError(f"{name} must be a list of integers, not {shown(values)}")
    return tuple(integer(name, value, least) for value in values)


def texts(name: str, values: Any) -> tuple[str, ...]:
    """Check a list of names; InputError if it is not a list of strings."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise InputError(f"{name} must be a list of names, not {shown(values)}")
    return tuple(of_type(f"each of {name}", value, str, "a name") for value in values)


def array(name: str, value: Any) -> NDArray:
    """Convert numbers to an array; InputError if they are not numbers, or rows have different lengths."""
    try:
        made = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{name} must be an array of numbers: {error}") from None
    if made.dtype.kind not in "biuf":
        raise InputError(f"{name} must be an array of numbers, not {shown(value)}")
    return made


def arrays(name: str, values: Any) -> dict[str, NDArray]:
    """Convert a dict of arrays by name; InputError if it is not one."""
    of_type(name, values, Mapping, "a dict of arrays by name")
    for key in values:
        of_type(f"a key of {name}", key, str, "the name of an input")
    return {key: array(f"{name} {key!r}", value) for key, value in values.items()}


def inputs(given: Any) -> Mapping[str, Any] | Sequence[Any]:
    """Check the inputs of a model: a dict by name, a list, or one array, which becomes a list; else InputError."""
    if isinstance(given, np.ndarray):
        return [given]
    if isinstance(given, (str, bytes)) or not isinstance(given, (Mapping, Sequence)):
        raise InputError(f"inputs must be a list, a dict by name, or one array, not {shown(given)}")
    return given


def sizes(given: Any) -> dict[str, int] | None:
    """Check sizes of dimensions by name; InputError if they are not positive integers."""
    if given is None:
        return None
    of_type("sizes", given, Mapping, "a dict of sizes by the names of dimensions")
    for key in given:
        of_type("a key of sizes", key, str, "the name of a dimension")
    return {key: integer(f"size of {key!r}", value, 1) for key, value in given.items()}


def calibration(given: Any) -> Any:
    """Convert calibration samples to arrays, keeping their container; InputError for any other type."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        return arrays("calibration", given)
    if isinstance(given, np.ndarray) and given.ndim:
        return array("calibration", given)
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise InputError(f"calibration must be {_CALIBRATION}, not {shown(given)}")
    return [
        arrays("calibration", sample)
        if isinstance(sample, Mapping)
        else array("a calibration sample", sample)
        for sample in given
    ]


def known(function: Callable[..., Any], names: Sequence[str], given: Mapping[str, Any]) -> None:
    """Raise InputError if keyword arguments have names that a function does not take."""
    unknown = [name for name in given if name not in names]
    if unknown:
        title = getattr(function, "__name__", "it")
        raise InputError(f"{title} has no argument {', '.join(unknown)}; arguments are {', '.join(names)}")
