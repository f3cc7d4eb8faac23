"""What may come next: words by name, or numbers of one byte."""

from typing import NamedTuple


class TokenChoice(NamedTuple):
    """Words that may come next, all of which leave the same to be said.

    Parameters
    ----------
    what : str or (int, int)
        A word, or the name of a group of words (`groups.GROUPS`), or the least and the greatest byte.
    cost : int
        Words that must follow at least until the operand is whole.
    """

    what: str | tuple[int, int]
    cost: int = 0

    def has_byte(self, value: int) -> bool:
        """Whether a byte is one of them."""
        return isinstance(self.what, tuple) and self.what[0] <= value <= self.what[1]
