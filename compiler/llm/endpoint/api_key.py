"""The secret that an endpoint wants, which nothing but a request's header ever shows."""

import os
from typing import NoReturn

from compiler.llm.endpoint.settings import KEY_VARIABLE
from hw.errors import InputError

#: Stands for the key in what an endpoint says.
_HIDDEN = "[key]"


class ApiKey:
    """What the endpoint knows the user by; may be none.

    Parameters
    ----------
    variable : str
        The environment variable that holds it.

    Raises
    ------
    InputError
        What the variable holds cannot be a key, or one that the user named is not set; the message shows neither:
        somebody may have given the key itself in place of the name.
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
        """Headers of a request that carry it."""
        return {"Authorization": f"Bearer {self._text}"} if self._text else {}

    def cleaned(self, text: str) -> str:
        """A text without the key in it: what servers say may repeat it."""
        return text.replace(self._text, _HIDDEN) if self._text else text
