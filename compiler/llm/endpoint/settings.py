"""Which language model is asked, where, and what that may cost."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any
from urllib.parse import urlsplit

from hw.errors import InputError, shown

#: Environment variable that holds the key, if no other is named.
KEY_VARIABLE = "MLA_ENDPOINT_KEY"
#: Fields of a request by which servers take a grammar of answers.
GRAMMARS = ("response_format", "grammar", "structured_outputs", "guided_grammar")
#: Fields of a request that are not for the user to give.
_OWN = ("model", "messages", "stream", "n")
_MOST_CHARACTERS = 2000


@dataclass(frozen=True)
class Prices:
    """What a million tokens of input, and of output, cost; in any currency."""

    input: float
    output: float

    def __post_init__(self) -> None:
        for each in (self.input, self.output):
            if not (isfinite(each) and each >= 0):
                raise InputError(f"a price must be a number of at least 0, not {shown(each)}")


@dataclass(frozen=True)
class SpendingLimits:
    """What may be spent in a search.

    Parameters
    ----------
    seconds : float
        Waiting for the endpoint.
    requests : int
        Sent, those that are sent again included.
    tokens : int
        Of input and output.
    cost : float or None
        In the currency of the prices, without which there is no such limit.
    prices : Prices or None
        What tokens cost.

    Raises
    ------
    InputError
        A limit is none, or cost is limited without prices.
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
            raise InputError("a limit of cost needs the prices of a million input and output tokens")


@dataclass(frozen=True)
class Patience:
    """How long is waited for what.

    Parameters
    ----------
    connect, read : float
        Seconds for a connection, and without a byte.
    check : float
        Seconds for the whole question whether anybody is there.
    attempts : int
        Requests at most until one is answered.
    pause : float
        Seconds before the second one; twice as long before each further one.
    """

    connect: float = 10.0
    read: float = 300.0
    check: float = 30.0
    attempts: int = 5
    pause: float = 1.0


@dataclass(frozen=True)
class Endpoint:
    """A language model at a URL.

    Parameters
    ----------
    url : str
        What `/chat/completions` comes behind, such as http://localhost:8080/v1.
    model : str
        Its name there.
    limits : Limits
        What may be spent.
    key : str
        Name of the environment variable that holds the key, if the endpoint wants one. Never the key itself: this
        object goes to other processes and into messages.
    context : int
        Tokens of a prompt and its answer together.
    answer : int
        Tokens of an answer at most.
    temperature : float
        As the endpoint takes it.
    grammar : str or None
        One of `GRAMMARS`: how the endpoint takes a grammar of answers; None: it is in the prompt alone.
    fields : mapping
        More fields of a request, or other values of them; None leaves one out.
    retries : int
        Answers without any gain in a row until a task is given up.
    patience : Patience
        How long is waited.

    Raises
    ------
    InputError
        Something of it is wrong.
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
        if not (self.model and self.model.isprintable() and len(self.model) <= _MOST_CHARACTERS):
            raise InputError(f"the endpoint's model must have a name, not {shown(self.model)}")
        if not 0 < self.answer <= self.context // 2:
            raise InputError(
                f"a context of {self.context:,} tokens must be at least twice an answer's {self.answer:,}"
            )
        if self.grammar is not None and self.grammar not in GRAMMARS:
            raise InputError(f"a grammar goes by one of {', '.join(GRAMMARS)}, not {shown(self.grammar)}")
        for name in _OWN:
            if name in self.fields:
                raise InputError(f"{name!r} must not be among the fields given for requests")


def check_url(url: str) -> None:
    """Refuse what is no URL of an endpoint, or has a secret in it; a message never shows that.

    Raises
    ------
    InputError
        As said.
    """
    example = "must be such as http://localhost:8080/v1"
    if "@" in url:
        raise InputError(f"the endpoint's URL must have no user and password in it: it {example}")
    if "?" in url or "#" in url:
        raise InputError(f"the endpoint's URL must have nothing behind its path: it {example}")
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine or len(url) > _MOST_CHARACTERS or not (url.isascii() and url.isprintable()) or " " in url:
        raise InputError(f"the endpoint's URL {example}, not {shown(url)}")


def fields_of(text: str) -> dict[str, Any]:
    """More fields of a request, from JSON.

    Raises
    ------
    InputError
        It is no JSON object.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise InputError('must be a JSON object such as {"top_p": 0.9}')
    return data
