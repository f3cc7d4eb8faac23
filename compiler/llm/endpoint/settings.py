"""Endpoint settings: URL, model, API key, prices, limits."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NoReturn
from urllib.parse import urlsplit

from hw.errors import InputError, shown

#: Replacement for the key in messages of the endpoint.
_KEY_PLACEHOLDER = "[key]"


class ApiKey:
    """API key of the user, which may be empty.

    Parameters
    ----------
    variable : str
        Name of the environment variable that holds the key.

    Raises
    ------
    InputError
        The value is not a valid key, or a variable named by the user is not set. The message contains neither name nor
        value, since the user may have specified the key instead of the name.
    """

    __slots__ = ("_text", "variable")

    def __init__(self, variable: str):
        if variable != KEY_VARIABLE and variable not in os.environ:
            raise InputError("the environment variable for the endpoint's key is not set")
        self.variable = variable
        self._text = os.environ.get(variable, "").strip()
        if not (self._text.isascii() and self._text.isprintable()) or " " in self._text:
            raise InputError(f"{variable} must contain a key of printable ASCII characters without blanks")

    def __bool__(self) -> bool:
        return bool(self._text)

    def __repr__(self) -> str:
        return f"Key({self.variable!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key must not be sent to other processes")

    @property
    def headers(self) -> dict[str, str]:
        """Request headers with the key."""
        return {"Authorization": f"Bearer {self._text}"} if self._text else {}

    def cleaned(self, text: str) -> str:
        """Return a string without the key, which servers may repeat in messages."""
        return text.replace(self._text, _KEY_PLACEHOLDER) if self._text else text


#: Default environment variable of the API key.
KEY_VARIABLE = "MLA_ENDPOINT_KEY"
#: Request fields by which servers accept an answer grammar.
GRAMMARS = ("response_format", "grammar", "structured_outputs", "guided_grammar")
#: Request fields that users cannot set.
_RESERVED_FIELDS = ("model", "messages", "stream", "n")
_MAX_CHARACTERS = 2000


@dataclass(frozen=True)
class Prices:
    """Prices per million input and output tokens, in any currency."""

    input: float
    output: float

    def __post_init__(self) -> None:
        for each in (self.input, self.output):
            if not (isfinite(each) and each >= 0):
                raise InputError(f"a price must be a number of at least 0, not {shown(each)}")


@dataclass(frozen=True)
class SpendingLimits:
    """Spending limits of a search.

    Parameters
    ----------
    seconds : float
        Maximum total time spent waiting for the endpoint.
    requests : int
        Maximum number of requests, including retries.
    tokens : int
        Maximum number of input and output tokens.
    cost : float or None
        Maximum cost in the currency of the prices; None for no limit.
    prices : Prices or None
        Prices of tokens; required for a cost limit.

    Raises
    ------
    InputError
        A limit is invalid, or cost is limited without prices.
    """

    seconds: float = 600.0
    requests: int = 100
    tokens: int = 1_000_000
    cost: float | None = None
    prices: Prices | None = None

    def __post_init__(self) -> None:
        for name in ("seconds", "requests", "tokens", "cost"):
            value = getattr(self, name)
            if value is not None and not (isfinite(value) and value > 0):
                raise InputError(f"the endpoint's limit of {name} must be more than 0, not {shown(value)}")
        if self.cost is not None and self.prices is None:
            raise InputError("a cost limit requires the prices per million input and output tokens")


@dataclass(frozen=True)
class Patience:
    """Timeouts and retries.

    Parameters
    ----------
    connect, read : float
        Timeouts in seconds for the connection and between bytes.
    check : float
        Timeout in seconds for checking the endpoint.
    attempts : int
        Maximum attempts per request.
    pause : float
        Seconds before the second attempt; doubled before each further attempt.
    """

    connect: float = 10.0
    read: float = 300.0
    check: float = 30.0
    attempts: int = 5
    pause: float = 1.0


@dataclass(frozen=True)
class Endpoint:
    """Language model at a URL.

    Parameters
    ----------
    url : str
        Base URL to which `/chat/completions` is appended, such as http://localhost:8080/v1.
    model : str
        Name of the model on the server.
    limits : SpendingLimits
        Spending limits of a search.
    key : str
        Name of the environment variable that holds the API key, never the key itself: this
        object is sent to other processes and appears in messages.
    context : int
        Context length: prompt and answer tokens.
    answer : int
        Maximum tokens per answer.
    temperature : float
        Sampling temperature, sent to the endpoint.
    grammar : str or None
        Request field for the answer grammar, one of `GRAMMARS`; None: only the prompt describes the grammar.
    fields : mapping
        Additional request fields, which override the default fields; None removes a field.
    retries : int
        Number of consecutive answers without improvement after which no more requests are sent for a task.
    patience : Patience
        Timeouts and retries.

    Raises
    ------
    InputError
        A setting is invalid.
    """

    url: str
    model: str
    limits: SpendingLimits = SpendingLimits()
    key: str = KEY_VARIABLE
    context: int = 32768
    answer: int = 4096
    temperature: float = 0.7
    grammar: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    retries: int = 4
    patience: Patience = Patience()

    def __post_init__(self) -> None:
        check_url(self.url)
        if not (self.model and self.model.isprintable() and len(self.model) <= _MAX_CHARACTERS):
            raise InputError(f"the endpoint's model must have a name, not {shown(self.model)}")
        if not 0 < self.answer <= self.context // 2:
            raise InputError(
                f"a context of {self.context:,} tokens must be at least twice an answer's {self.answer:,}"
            )
        if self.grammar is not None and self.grammar not in GRAMMARS:
            raise InputError(
                f"the grammar field must be one of {', '.join(GRAMMARS)}, not {shown(self.grammar)}"
            )
        for name in _RESERVED_FIELDS:
            if name in self.fields:
                raise InputError(f"{name!r} must not be among the additional request fields")


def check_url(url: str) -> None:
    """Check the URL of an endpoint, which must not contain a secret; error messages never repeat secrets of the URL.

    Raises
    ------
    InputError
        The URL is invalid.
    """
    example = "must have the form http://localhost:8080/v1"
    if "@" in url:
        raise InputError(f"the endpoint's URL must not contain a user name or password: it {example}")
    if "?" in url or "#" in url:
        raise InputError(f"the endpoint's URL must end with its path: it {example}")
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or len(url) > _MAX_CHARACTERS or not (url.isascii() and url.isprintable()) or " " in url:
        raise InputError(f"the endpoint's URL {example}, not {shown(url)}")


def fields_of(text: str) -> dict[str, Any]:
    """Parse additional request fields from JSON.

    Raises
    ------
    InputError
        The string is not a JSON object.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise InputError('must be a JSON object such as {"top_p": 0.9}')
    return data
