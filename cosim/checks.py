"""Argument checks for devices; each function returns the checked and converted value, or raises InputError.

The RTL device and the golden model both use these checks, so they reject the same arguments with the same messages.
"""

import math
from fractions import Fraction
from numbers import Integral, Rational, Real

import numpy as np

from hw.errors import InputError, shown

#: Maximum wait in cycles: longer than any run, and small enough that its sum with a cycle count fits 64 bits.
MAX_CYCLES = 1 << 62
#: Highest register address on the bus.
LAST_ADDRESS = 0xFFFC
MAX_LATENCY = MAX_RATE = 1_000_000
#: Largest share of the cycles in which the clock of the chip may be stalled.
MAX_THROTTLE = Fraction(9, 10)


def integer(value: object, what: str) -> int:
    """Return `value` as an int; raise InputError if it is not an integer, or if it is a bool."""
    if not isinstance(value, Integral) or isinstance(value, (bool, np.bool_)):
        raise InputError(f"{what} must be an integer, not {shown(value)}")
    return int(value)


def integer_in(value: object, low: int, high: int, what: str) -> int:
    """Return `value` as an int, which must be in low..high."""
    number = integer(value, what)
    if not low <= number <= high:
        raise InputError(f"{what} must be in {low}..{high}, not {shown(value)}")
    return number


def cycles(value: object, what: str = "cycles") -> int:
    """Return a number of cycles, which must be in 0..MAX_CYCLES."""
    number = integer(value, what)
    if number < 0:
        raise InputError(f"{what} must be 0 or more, not {shown(value)}")
    if number > MAX_CYCLES:
        raise InputError(f"{what} must be at most {MAX_CYCLES}, not {shown(value)}")
    return number


def register_address(value: object) -> int:
    """Check the byte address of a register and return it, without checking that a register has this address."""
    address = integer(value, "a register's address")
    if not 0 <= address <= LAST_ADDRESS or address % 4:
        rule = f"a multiple of 4 in 0..{LAST_ADDRESS:#x}"
        raise InputError(f"a register's address must be {rule}, not {_hexadecimal(address)}")
    return address


def word(value: object, what: str) -> int:
    """Convert a signed or unsigned 32-bit integer to an unsigned word."""
    number = integer(value, what)
    if not -(1 << 31) <= number < 1 << 32:
        raise InputError(f"{what} must fit 32 bits, not {_hexadecimal(number)}")
    return number & 0xFFFFFFFF


def span(what: str, first: object, count: object, size: int) -> tuple[int, int]:
    """Check that the elements first..first + count - 1 are within `size` elements; return (first, count)."""
    start, number = integer(first, f"the first of the {what}"), integer(count, f"the number of {what}")
    if not (start >= 0 and number >= 0 and start + number <= size):
        raise InputError(f"{what} must lie in 0..{size}, not {shown(start)}..{shown(start + number)}")
    return start, number


def raw_bytes(data: object) -> np.ndarray:
    """Convert an array of any numeric type to its bytes, a one-dimensional uint8 array."""
    if not isinstance(data, np.ndarray) or data.dtype.hasobject:
        raise InputError(f"scratchpad data must be an array of numbers, not {_kind(data)}")
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)


def accumulator_rows(data: object, n: int) -> np.ndarray:
    """Check rows of the accumulator, which must be int32 of shape (rows, n), and return them."""
    if not isinstance(data, np.ndarray) or data.dtype != np.int32 or data.ndim != 2 or data.shape[1] != n:
        raise InputError(f"accumulator data must be int32 of shape (rows, {n}), not {_kind(data)}")
    return np.ascontiguousarray(data)


def latency(value: object) -> int:
    """Check a DRAM latency, which is the number of cycles to the first beat of a read, and return it."""
    number = integer(value, "latency")
    if not 1 <= number <= MAX_LATENCY:
        raise InputError(f"latency must be 1..{MAX_LATENCY} cycles, not {shown(value)}")
    return number


def bandwidth(value: object) -> Fraction:
    """Convert a DRAM bandwidth in bytes per cycle to a fraction with a denominator of at most 1000."""
    rate = Fraction(0)
    if isinstance(value, (bool, np.bool_)):
        pass
    elif isinstance(value, Rational):
        rate = Fraction(value).limit_denominator(1000)
    elif isinstance(value, Real) and math.isfinite(value):
        rate = Fraction(float(value)).limit_denominator(1000)
    if not 0 < rate <= MAX_RATE:
        raise InputError(f"bytes_per_cycle must be in 0.001..{MAX_RATE}, not {shown(value)}")
    return rate


def throttle(value: object) -> Fraction:
    """Convert a share of stalled cycles to a fraction with a denominator of at most 1000."""
    share = Fraction(-1)
    if isinstance(value, Real) and not isinstance(value, (bool, np.bool_)) and math.isfinite(value):
        share = Fraction(float(value)).limit_denominator(1000)
    if not 0 <= share <= MAX_THROTTLE:
        raise InputError(f"throttle must be in 0..{float(MAX_THROTTLE)}, not {shown(value)}")
    return share


def _hexadecimal(number: int) -> str:
    return f"{number:#x}" if number.bit_length() <= 64 else shown(number)


def _kind(data: object) -> str:
    if isinstance(data, np.ndarray):
        return f"{data.dtype} of shape {data.shape}"
    return type(data).__name__
