"""HTTP exchange with an endpoint, bounded in time and size, and parsers of the protocol's responses."""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from ssl import SSLError
from typing import Any

import anyio
import httpx
from anyio.from_thread import start_blocking_portal

from compiler.llm.endpoint.settings import Patience

#: Maximum size of an answer in bytes.
MAX_BYTES = 4 << 20
#: Loggers of the HTTP library are silenced, since server messages may repeat the key.
for _name in ("httpx", "httpcore"):
    logging.getLogger(_name).setLevel(logging.WARNING)


@dataclass(frozen=True)
class HttpRequest:
    """HTTP request; `repr` omits the headers, which include the key."""

    method: str
    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class HttpReply:
    """HTTP response of a server."""

    status: int
    headers: Mapping[str, str]
    text: str = field(repr=False)


@dataclass(frozen=True)
class FailedExchange:
    """Failure of an HTTP exchange.

    Parameters
    ----------
    reason : str
        Reason for the failure, as part of a message.
    retry : bool
        True if a second attempt may succeed.
    sent : bool
        True if the server may have started to process the request.
    """

    reason: str
    retry: bool = False
    sent: bool = True


def exchange(request: HttpRequest, patience: Patience, seconds: float) -> HttpReply | FailedExchange:
    """Send a request and wait up to `seconds` for the complete response.

    Redirects are returned like any other response. A proxy from the environment is used for https only, since it could
    read the API key over http.
    """
    # A separate event loop bounds the total time even if a server sends single bytes, and works for callers in a loop.
    with start_blocking_portal() as portal:
        return portal.call(_exchange, request, patience, seconds)


async def _exchange(request: HttpRequest, patience: Patience, seconds: float) -> HttpReply | FailedExchange:
    """Perform the exchange and return failures as values, since exceptions would contain the request."""
    timeout = httpx.Timeout(min(patience.read, seconds), connect=min(patience.connect, seconds))
    try:
        with anyio.fail_after(seconds):
            return await _answered(request, timeout)
    except httpx.ConnectTimeout:
        return FailedExchange(f"no connection in {timeout.connect:g} s", retry=True, sent=False)
    except httpx.TimeoutException:
        return FailedExchange(f"no answer in {timeout.read:g} s")
    except TimeoutError:
        return FailedExchange(f"no complete answer in {seconds:.3g} s")
    except httpx.ProxyError:
        return FailedExchange("the proxy of the environment does not allow the connection", sent=False)
    except httpx.ConnectError as error:
        return FailedExchange(*_connection_failure(error), sent=False)
    except httpx.RemoteProtocolError:
        return FailedExchange("the server closes the connection, or its answer is not HTTP", retry=True)
    except httpx.HTTPError:
        return FailedExchange("the connection broke", retry=True)
    except (ValueError, ImportError, httpx.InvalidURL):
        return FailedExchange("the proxy of the environment must have the form http://HOST:PORT", sent=False)
    except OSError as error:
        return FailedExchange(f"certificates cannot be read: {error.strerror or 'bad file'}", sent=False)


async def _answered(request: HttpRequest, timeout: httpx.Timeout) -> HttpReply | FailedExchange:
    headers = {"Accept": "application/json", "Accept-Encoding": "identity", **request.headers}
    environment = request.url.startswith("https:")
    async with (
        httpx.AsyncClient(timeout=timeout, trust_env=environment, follow_redirects=False) as client,
        client.stream(request.method, request.url, headers=headers, content=request.body) as response,
    ):
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > MAX_BYTES:
                return FailedExchange(f"the answer is longer than {MAX_BYTES:,} bytes")
        return HttpReply(response.status_code, dict(response.headers), body.decode(errors="replace"))


def _connection_failure(error: httpx.ConnectError) -> tuple[str, bool]:
    """Return the reason why the connection failed, and True if another attempt may succeed."""
    for cause in _causes(error):
        if isinstance(cause, SSLError):
            return f"no secure connection: {getattr(cause, 'verify_message', '') or cause.reason}", False
        if isinstance(cause, OSError) and cause.errno is not None:
            message = os.strerror(cause.errno) if cause.errno > 0 else cause.strerror
            return f"{str(message).lower()}: no server may be running there", True
    return "no connection", True


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes, deepest first."""
    inner = error.__cause__ or error.__context__
    if inner is not None:
        yield from _causes(inner)
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _causes(each)
    yield error


_MAX_TOKENS = 1 << 40
_MAX_LINE_CHARACTERS = 200


@dataclass(frozen=True)
class ChatCompletion:
    """Text generated by a model.

    Parameters
    ----------
    text : str
        Generated text; may be empty.
    cut : bool
        True if the answer was truncated at the maximum length.
    input_tokens, output_tokens : int or None
        Usage reported by the endpoint.
    """

    text: str
    cut: bool
    input_tokens: int | None
    output_tokens: int | None


def content_of(reply: HttpReply) -> Any:
    """Return the JSON value of a response; None if the response is not JSON."""
    try:
        return json.loads(reply.text)
    except (ValueError, RecursionError):
        return None


def completion_of(content: Any) -> ChatCompletion | None:
    """Return the chat completion of a JSON value; None if the value is not a chat completion."""
    choices = _field(content, "choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    message = _field(first, "message")
    if not isinstance(message, dict):
        return None
    usage = _field(content, "usage")
    return ChatCompletion(
        _text(message.get("content")),
        _field(first, "finish_reason") == "length",
        _count(_field(usage, "prompt_tokens")),
        _count(_field(usage, "completion_tokens")),
    )


def models_of(content: Any) -> list[str] | None:
    """Return the model names of a JSON value; None if the value is not a list of models."""
    data = _field(content, "data")
    if not isinstance(data, list):
        return None
    names = [_field(each, "id") for each in data]
    return [name for name in names if isinstance(name, str)]


def complaint_of(content: Any) -> str:
    """Return the error message in a JSON value; empty if the value does not contain an error message."""
    error = _field(content, "error")
    candidates = _field(error, "message"), error, _field(content, "message"), _field(content, "detail")
    return next((each for each in candidates if isinstance(each, str)), "")


def line_of(text: str) -> str:
    """Return an untrusted string as one line, truncated if necessary."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * _MAX_LINE_CHARACTERS]).split())
    return plain if len(plain) <= _MAX_LINE_CHARACTERS else f"{plain[:_MAX_LINE_CHARACTERS]}..."


def pause_of(reply: HttpReply) -> float | None:
    """Return the pause in seconds that a response requests; None if it does not request a pause."""
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


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _text(value: Any) -> str:
    """Return the text of a message content, which may be a list of parts."""
    parts = [_field(each, "text") for each in value] if isinstance(value, list) else [value]
    return "".join(part for part in parts if isinstance(part, str))


def _count(value: Any) -> int | None:
    valid = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_TOKENS
    return value if valid else None
