"""What callers in Python hand over, checked before anything else sees it: one sentence instead of a traceback."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.errors import InputError, shown

_CALIBRATION = "a dict of arrays by the names of the inputs, or a list of samples"


def of_type(name: str, value: Any, kinds: type | tuple[type, ...], right: str) -> Any:
    """The argument of this name; `right` says in words what it may be.

    Raises
    ------
    InputError
        It is of none of the types.
    """
    if not isinstance(value, kinds):
        raise InputError(f"{name} must be {right}, not {shown(value)}")
    return value


def integer(name: str, value: Any, least: int) -> int:
    """An integer argument; InputError if it is none or less than `least`."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise InputError(f"{name} must be an integer of at least {least}, not {shown(value)}")
    if value < least:
        raise InputError(f"{name} must be at least {least}, not {shown(value)}")
    return int(value)


def integers(name: str, values: Any, least: int) -> tuple[int, ...]:
    """Several integers as a tuple; InputError if they are none, or one is less than `least`."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise InputError(f"{name} must be a list of integers, not {shown(values)}")
    return tuple(integer(name, value, least) for value in values)


def texts(name: str, values: Any) -> tuple[str, ...]:
    """Several names as a tuple; InputError if they are not a list of strings."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise InputError(f"{name} must be a list of names, not {shown(values)}")
    return tuple(of_type(f"each of {name}", value, str, "a name") for value in values)


def array(name: str, value: Any) -> NDArray:
    """Numbers as an array; InputError if they are none, or rows of different lengths."""
    try:
        made = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{name} must be an array of numbers: {error}") from None
    if made.dtype.kind not in "biuf":
        raise InputError(f"{name} must be an array of numbers, not {shown(value)}")
    return made


def arrays(name: str, values: Any) -> dict[str, NDArray]:
    """A dict of arrays by name; InputError if it is none."""
    of_type(name, values, Mapping, "a dict of arrays by name")
    for key in values:
        of_type(f"a key of {name}", key, str, "the name of an input")
    return {key: array(f"{name} {key!r}", value) for key, value in values.items()}


def inputs(given: Any) -> Mapping[str, Any] | Sequence[Any]:
    """Inputs of a model by name or in its order, the one array of a model of one input as a list; else InputError."""
    if isinstance(given, np.ndarray):
        return [given]
    if isinstance(given, (str, bytes)) or not isinstance(given, (Mapping, Sequence)):
        raise InputError(f"inputs must be a list, a dict by name, or one array, not {shown(given)}")
    return given


def sizes(given: Any) -> dict[str, int] | None:
    """Sizes of dimensions by name; InputError if they are no positive integers."""
    if given is None:
        return None
    of_type("sizes", given, Mapping, "a dict of sizes by the names of dimensions")
    for key in given:
        of_type("a key of sizes", key, str, "the name of a dimension")
    return {key: integer(f"size of {key!r}", value, 1) for key, value in given.items()}


def calibration(given: Any) -> Any:
    """Calibration samples as arrays in the containers they come in; InputError if they are in none."""
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
    """InputError if keyword arguments have names that a function does not take."""
    unknown = [name for name in given if name not in names]
    if unknown:
        title = getattr(function, "__name__", "it")
        raise InputError(f"{title} takes {', '.join(names)}, and no {', '.join(unknown)}")
