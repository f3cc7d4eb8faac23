"""API key of an endpoint, which appears only in request headers."""

import os
from typing import NoReturn

from compiler.llm.endpoint.settings import KEY_VARIABLE
from hw.errors import InputError

#: Replacement of the key in messages of the endpoint.
_HIDDEN = "[key]"


class ApiKey:
    """API key of the user; may be empty.

    Parameters
    ----------
    variable : str
        Name of the environment variable that holds the key.

    Raises
    ------
    InputError
        The value cannot be a key, or a variable given by the user is not set. The message shows neither name nor value,
        since the user may have given the key in place of the name.
    """

    __slots__ = ("_text", "variable")

    def __init__(self, variable: str):
        if variable != KEY_VARIABLE and variable not in os.environ:
            raise InputError("the environment variable that is to hold the endpoint's key is not set")
        self.variable = variable
        self._text = os.environ.get(variable, "").strip()
        if not (self._text.isascii() and self._text.isprintable()) or " " in self._text:
            raise InputError(f"{variable} must hold a key of printable ASCII characters without blanks")

    def __bool__(self) -> bool:
        return bool(self._text)

    def __repr__(self) -> str:
        return f"Key({self.variable!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key stays in its process")

    @property
    def headers(self) -> dict[str, str]:
        """Return the request headers with the key."""
        return {"Authorization": f"Bearer {self._text}"} if self._text else {}

    def cleaned(self, text: str) -> str:
        """Remove the key from a text, since servers may repeat it in messages."""
        return text.replace(self._text, _HIDDEN) if self._text else text
