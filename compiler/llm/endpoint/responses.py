"""What answers of an endpoint say, whatever shape they have."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any

from compiler.llm.endpoint.http import HttpReply

_MOST_TOKENS = 1 << 40
_MOST_WORDS = 200


@dataclass(frozen=True)
class ChatCompletion:
    """What a model has written.

    Parameters
    ----------
    text : str
        All of it; empty if there is nothing.
    cut : bool
        Whether it ends because the answer may not be longer.
    input_tokens, output_tokens : int or None
        As the endpoint counts them.
    """

    text: str
    cut: bool
    input_tokens: int | None
    output_tokens: int | None


def content_of(reply: HttpReply) -> Any:
    """The JSON value of an answer; None if it has none."""
    try:
        return json.loads(reply.text)
    except (ValueError, RecursionError):
        return None


def completion_of(content: Any) -> ChatCompletion | None:
    """What is in the answer to a chat; None if it is none."""
    choices = _at(content, "choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    message = _at(first, "message")
    if not isinstance(message, dict):
        return None
    usage = _at(content, "usage")
    return ChatCompletion(
        _text(message.get("content")),
        _at(first, "finish_reason") == "length",
        _count(_at(usage, "prompt_tokens")),
        _count(_at(usage, "completion_tokens")),
    )


def models_of(content: Any) -> list[str] | None:
    """Names of the models in a list of them; None if it is none."""
    data = _at(content, "data")
    if not isinstance(data, list):
        return None
    names = [_at(each, "id") for each in data]
    return [name for name in names if isinstance(name, str)]


def complaint_of(content: Any) -> str:
    """What an endpoint says is wrong; empty if it says nothing."""
    error = _at(content, "error")
    places = _at(error, "message"), error, _at(content, "message"), _at(content, "detail")
    return next((each for each in places if isinstance(each, str)), "")


def line_of(text: str) -> str:
    """A text of somebody else's as part of a line, shortened."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * _MOST_WORDS]).split())
    return plain if len(plain) <= _MOST_WORDS else f"{plain[:_MOST_WORDS]}..."


def pause_of(reply: HttpReply) -> float | None:
    """Seconds that an answer asks to wait; None if it does not say."""
    text = reply.headers.get("retry-after", "")
    try:
        seconds = float(text)
    except ValueError:
        try:
            then = parsedate_to_datetime(text)
        except (ValueError, OverflowError):
            return None
        seconds = (then.replace(tzinfo=then.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return max(seconds, 0.0) if isfinite(seconds) else None


def _at(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _text(value: Any) -> str:
    """What is written in a message, which may come in parts."""
    parts = [_at(each, "text") for each in value] if isinstance(value, list) else [value]
    return "".join(part for part in parts if isinstance(part, str))


def _count(value: Any) -> int | None:
    fine = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_TOKENS
    return value if fine else None
