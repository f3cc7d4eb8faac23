"""Integer tokens: one token below 256, otherwise a length token and big-endian byte tokens."""

from collections.abc import Iterator, Sequence

#: Byte tokens; each also represents a number below 256.
BYTES = tuple(str(value) for value in range(256))
#: Length tokens: the digit is the number of byte tokens that follow.
LONG = ("x2", "x3", "x4")
MINUS = "-"
TOKENS = (*BYTES, *LONG, MINUS)
#: Exclusive upper bound of magnitudes.
LIMIT = 1 << 32


def encode_number(value: int) -> list[str]:
    """Encode an integer as tokens; the encoding is unique.

    Raises
    ------
    ValueError
        The magnitude is 2**32 or more.
    """
    if not -LIMIT < value < LIMIT:
        raise ValueError(f"the magnitude of a number must be below 2**32, not {value}")
    if value < 0:
        return [MINUS, *encode_number(-value)]
    if value < len(BYTES):
        return [BYTES[value]]
    data = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return [f"x{len(data)}", *(BYTES[each] for each in data)]


def decode_number(tokens: Iterator[str]) -> int:
    """Decode the next integer of a token stream, consuming only the tokens of the integer.

    Raises
    ------
    ValueError
        The tokens are not an encoding as returned by `encode_number`.
    """
    first = next(tokens, "")
    if first == MINUS:
        value = decode_number(tokens)
        if value <= 0:
            raise ValueError(f"a magnitude must be more than 0, not {value}")
        return -value
    if first in LONG:
        data = [_byte(next(tokens, "")) for _ in range(int(first[1:]))]
        if not data[0]:
            raise ValueError("the highest byte of a number must not be 0")
        return int.from_bytes(bytes(data), "big")
    return _byte(first)


def decode_single_number(tokens: Sequence[str]) -> int:
    """Decode a token sequence that consists of one integer; raise ValueError for other sequences."""
    rest = iter(tokens)
    value = decode_number(rest)
    if (more := next(rest, None)) is not None:
        raise ValueError(f"{more!r} follows a number")
    return value


def _byte(token: str) -> int:
    if token not in _VALUES:
        raise ValueError(f"{token!r} is not a byte")
    return _VALUES[token]


_VALUES = {token: value for value, token in enumerate(BYTES)}


def following(prefix: Sequence[str], low: int, high: int) -> tuple[str, ...]:
    """Return the tokens that may follow a prefix of an integer in a range; empty if the integer is complete.

    Parameters
    ----------
    prefix : sequence of str
        Tokens written so far.
    low, high : int
        Range of values, inclusive, both within 32 bits.
    """
    if prefix and prefix[0] == MINUS:
        return following(prefix[1:], max(1, -high), -low)
    if not prefix:
        signed = (MINUS,) if low < 0 else ()
        low = max(low, 0)
        short = BYTES[low : max(high + 1, 0)]
        long = (token for token, (minimum, maximum) in _RANGES.items() if low <= maximum and minimum <= high)
        return (*signed, *short, *long)
    if prefix[0] not in LONG or len(prefix) > int(prefix[0][1:]):
        return ()
    minimum, maximum = _RANGES[prefix[0]]
    left = int(prefix[0][1:]) - len(prefix)
    prefix_value = 0
    for token in prefix[1:]:
        prefix_value = prefix_value << 8 | _byte(token)
    minimum, maximum = max(low, minimum), min(high, maximum)
    # Bytes for which some continuation stays within the range.
    first = max((minimum >> 8 * left) - (prefix_value << 8), 0)
    last = min((maximum >> 8 * left) - (prefix_value << 8), len(BYTES) - 1)
    return BYTES[first : last + 1]


#: Smallest and largest integer by number of bytes.
_RANGES = {token: (1 << 8 * (int(token[1:]) - 1), (1 << 8 * int(token[1:])) - 1) for token in LONG}
