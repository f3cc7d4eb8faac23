"""Endpoint client with retries, usage accounting and budget."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any, NoReturn

from compiler.llm.endpoint.http import (
    ChatCompletion,
    FailedExchange,
    HttpReply,
    HttpRequest,
    complaint_of,
    completion_of,
    content_of,
    exchange,
    line_of,
    models_of,
    pause_of,
)
from compiler.llm.endpoint.settings import ApiKey, Endpoint, SpendingLimits
from hw.errors import InputError, WorkError

#: Assumed bytes of text per token, for endpoints that do not report usage; a low value, which overestimates tokens.
_BYTES_PER_TOKEN = 3
#: Minimum answer length in tokens for which a request is sent.
MIN_ANSWER_TOKENS = 64


def estimated_tokens(text: str) -> int:
    """Estimate the number of tokens of a string; the estimate tends to be too high."""
    return ceil(len(text.encode(errors="replace")) / _BYTES_PER_TOKEN)


@dataclass(frozen=True)
class Usage:
    """Usage of an endpoint: requests, tokens and time.

    Parameters
    ----------
    requests, failed : int
        Number of requests sent, and number of requests without a usable answer.
    input_tokens, output_tokens : int
        Tokens reported by the endpoint, or estimated.
    estimated_requests : int
        Number of requests whose tokens were estimated.
    seconds : float
        Time spent waiting for answers.
    """

    requests: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    estimated_requests: int = 0
    seconds: float = 0.0

    def add(self, **more: float) -> "Usage":
        """Return the usage with some fields increased."""
        return replace(self, **{name: getattr(self, name) + value for name, value in more.items()})

    def cost(self, limits: SpendingLimits) -> float | None:
        """Return the cost in the currency of the prices; None if there are no prices."""
        prices = limits.prices
        if prices is None:
            return None
        return (self.input_tokens * prices.input + self.output_tokens * prices.output) / 1e6

    def used_up(self, limits: SpendingLimits) -> str | None:
        """Return a message about a limit that has been reached; None if no limit has been reached."""
        for name, value in (
            ("seconds", self.seconds),
            ("requests", self.requests),
            ("tokens", self.input_tokens + self.output_tokens),
            ("cost", self.cost(limits)),
        ):
            limit = getattr(limits, name)
            if limit is not None and value is not None and value >= limit:
                return f"the limit of {name} is reached ({value:,.6g} of {limit:,.6g})"
        return None

    def answer_tokens(self, limits: SpendingLimits, prompt: int, wanted: int) -> int:
        """Return the maximum answer length within all limits; negative if the prompt alone exceeds a limit.

        Parameters
        ----------
        limits : SpendingLimits
            Limits of the search.
        prompt : int
            Number of prompt tokens.
        wanted : int
            Requested answer length in tokens.
        """
        left = limits.tokens - self.input_tokens - self.output_tokens - prompt
        prices, cost = limits.prices, self.cost(limits)
        if limits.cost is not None and prices is not None and cost is not None:
            money = (limits.cost - cost) * 1e6 - prompt * prices.input
            left = min(left, int(money / prices.output) if prices.output else left if money >= 0 else -1)
        return min(left, wanted)

    def document(self, limits: SpendingLimits) -> dict[str, Any]:
        """Return the usage as a JSON object."""
        cost = self.cost(limits)
        return asdict(replace(self, seconds=round(self.seconds, 3))) | {
            "cost": None if cost is None else round(cost, 6)
        }


#: Chat message: role and content.
Message = dict[str, str]

_RETRY_STATUSES = frozenset({408, 425, 429})
_MAX_LISTED_MODELS = 5


class LimitError(WorkError):
    """Error: a spending limit has been reached."""


class EndpointClient:
    """Client of one endpoint, with retries and limits.

    Parameters
    ----------
    endpoint : Endpoint
        Endpoint and its limits.

    Attributes
    ----------
    usage : Usage
        Usage so far.

    Raises
    ------
    InputError
        The API key is malformed.
    """

    def __init__(self, endpoint: Endpoint):
        self.endpoint, self.usage = endpoint, Usage()
        self._url, self._key = endpoint.url.rstrip("/"), ApiKey(endpoint.key)

    def check(self) -> None:
        """Check that the endpoint lists the model; the check costs no tokens.

        Raises
        ------
        InputError
            The endpoint rejects the key or path, has no such model, or is not a language model server.
        WorkError
            The endpoint cannot be reached or fails.
        """
        patience = self.endpoint.patience
        reply = self._received(HttpRequest("GET", f"{self._url}/models", self._key.headers), patience.check)
        if isinstance(reply, FailedExchange):
            raise WorkError(f"the endpoint {self._url} cannot be reached: {reply.reason}")
        content = content_of(reply)
        if reply.status != 200:
            self._raise_status(reply, content)
        names = models_of(content)
        if names is None:
            raise InputError(
                f"{self._url}/models does not return a list of models: the URL must be the base URL of an "
                "OpenAI-compatible endpoint"
            )
        if names and self.endpoint.model not in names:
            known = ", ".join(line_of(self._key.cleaned(name)) for name in names[:_MAX_LISTED_MODELS])
            more = f" and {len(names) - _MAX_LISTED_MODELS} more" if len(names) > _MAX_LISTED_MODELS else ""
            raise InputError(
                f"{self._url} does not have the model {self.endpoint.model!r}; models: {known}{more}"
            )

    def chat(self, messages: Sequence[Message], **fields: Any) -> ChatCompletion:
        """Request the next message of a chat.

        Parameters
        ----------
        messages : sequence of Message
            Messages of the chat so far.
        fields : Any
            Additional fields of the request.

        Raises
        ------
        LimitError
            A limit is reached or would be exceeded.
        InputError
            The endpoint rejects the request.
        WorkError
            The endpoint cannot be reached or fails, or its answer is not a chat completion.
        """
        prompt = sum(estimated_tokens(message["content"]) for message in messages)
        attempt = 0
        while True:
            reply = self._asked(self._body(messages, prompt, fields), prompt)
            pause = self._pause(reply, attempt)
            if pause is None:
                return self._read(reply, prompt)
            self._wait(pause)
            attempt += 1

    def _body(self, messages: Sequence[Message], prompt: int, fields: dict[str, Any]) -> bytes:
        endpoint = self.endpoint
        reached = self.usage.used_up(endpoint.limits)
        maximum = self.usage.answer_tokens(endpoint.limits, prompt, endpoint.answer)
        if reached is None and maximum < MIN_ANSWER_TOKENS:
            reached = "the remaining budget is too small for another request"
        if reached is not None:
            raise LimitError(reached)
        content = {"model": endpoint.model, "messages": list(messages), "max_tokens": maximum}
        content |= {"temperature": endpoint.temperature} | fields | dict(endpoint.fields)
        return json.dumps({name: value for name, value in content.items() if value is not None}).encode()

    def _asked(self, body: bytes, prompt: int) -> HttpReply | FailedExchange:
        """Send one request and count it; if the answer is lost, the prompt is assumed to have been processed."""
        headers = {"Content-Type": "application/json", **self._key.headers}
        request = HttpRequest("POST", f"{self._url}/chat/completions", headers, body)
        start = time.monotonic()
        reply = self._received(request, self._left)
        lost = isinstance(reply, FailedExchange) and reply.sent
        self.usage = self.usage.add(
            requests=1,
            seconds=time.monotonic() - start,
            failed=int(not _is_success(reply)),
            input_tokens=prompt if lost else 0,
            estimated_requests=int(lost),
        )
        return reply

    def _received(self, request: HttpRequest, seconds: float) -> HttpReply | FailedExchange:
        """Send a request and return the reply with the API key removed, since a server may repeat the key."""
        reply = exchange(request, self.endpoint.patience, seconds)
        if isinstance(reply, FailedExchange):
            return reply
        headers = {name: self._key.cleaned(value) for name, value in reply.headers.items()}
        return HttpReply(reply.status, headers, self._key.cleaned(reply.text))

    @property
    def _left(self) -> float:
        return max(self.endpoint.limits.seconds - self.usage.seconds, 0.0)

    def _pause(self, reply: HttpReply | FailedExchange, attempt: int) -> float | None:
        """Return the time in seconds until the next attempt; None if the request is not repeated."""
        patience = self.endpoint.patience
        delay = patience.pause * 2**attempt
        if attempt + 1 >= patience.attempts:
            return None
        if isinstance(reply, FailedExchange):
            return delay if reply.retry else None
        if reply.status not in _RETRY_STATUSES and reply.status < 500:
            return None
        asked = pause_of(reply)
        return delay if asked is None else asked

    def _wait(self, seconds: float) -> None:
        """Wait for the given time in seconds; raise LimitError if it exceeds the remaining time."""
        if seconds >= self._left:
            raise LimitError(
                f"the endpoint requests a pause of {seconds:,.6g} s, which exceeds the limit of seconds"
            )
        time.sleep(seconds)
        self.usage = self.usage.add(seconds=seconds)

    def _read(self, reply: HttpReply | FailedExchange, prompt: int) -> ChatCompletion:
        if isinstance(reply, FailedExchange):
            raise WorkError(f"the endpoint {self._url} does not answer: {reply.reason}")
        content = content_of(reply)
        if reply.status != 200:
            self._raise_status(reply, content)
        found = completion_of(content)
        if found is None:
            self.usage = self.usage.add(failed=1, input_tokens=prompt, estimated_requests=1)
            raise WorkError(f"{self._url}/chat/completions does not return a chat completion")
        known = found.input_tokens is not None and found.output_tokens is not None
        self.usage = self.usage.add(
            input_tokens=prompt if found.input_tokens is None else found.input_tokens,
            output_tokens=estimated_tokens(found.text)
            if found.output_tokens is None
            else found.output_tokens,
            estimated_requests=int(not known),
        )
        return ChatCompletion(
            self._key.cleaned(found.text), found.cut, found.input_tokens, found.output_tokens
        )

    def _raise_status(self, reply: HttpReply, content: Any) -> NoReturn:
        """Raise an error that explains a status other than 200."""
        detail = line_of(self._key.cleaned(complaint_of(content)))
        reason = f": {detail}" if detail else ""
        url, status, variable = self._url, reply.status, self._key.variable
        if status in (401, 403):
            what = (
                f"must contain a key that {url} accepts" if self._key else f"must contain the key for {url}"
            )
            raise InputError(f"the environment variable {variable} {what} ({status}{reason})")
        if status == 404:
            raise InputError(
                f"{url} does not have the model {self.endpoint.model!r}, or is not the base URL of an "
                f"OpenAI-compatible endpoint (404{reason})"
            )
        if 300 <= status < 400:
            target = line_of(reply.headers.get("location", "elsewhere").split("?")[0])
            raise InputError(
                f"{url} redirects to {target}, to which the key is not sent: specify the final URL"
            )
        if 400 <= status < 500 and status not in _RETRY_STATUSES:
            raise InputError(f"{url} rejects the request ({status}{reason})")
        raise WorkError(f"{url} does not answer: status {status}{reason}")


def _is_success(reply: HttpReply | FailedExchange) -> bool:
    return isinstance(reply, HttpReply) and reply.status == 200
