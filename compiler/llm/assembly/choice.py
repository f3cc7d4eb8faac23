"""Choices for the next token: named tokens or a range of byte tokens."""

from typing import NamedTuple


class TokenChoice(NamedTuple):
    """Next tokens that are equivalent for the rest of the operand.

    Parameters
    ----------
    what : str or (int, int)
        A token, the name of a token group (`token_groups.GROUPS`), or the smallest and largest byte.
    cost : int
        Minimum number of further tokens until the operand is complete.
    """

    what: str | tuple[int, int]
    cost: int = 0

    def has_byte(self, value: int) -> bool:
        """Return whether a byte is among the choices."""
        return isinstance(self.what, tuple) and self.what[0] <= value <= self.what[1]
