"""Endpoint settings reject invalid values and omit secrets from messages."""

from dataclasses import replace
from typing import Any

import pytest

from compiler.llm.endpoint.settings import Endpoint, Prices, SpendingLimits, fields_of
from hw.errors import InputError


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8080",
        "ftp://x/v1",
        "http://",
        "http://x:99999/",
        "http://a b/",
        "http://x\n",
        "http://[::1",
    ],
)
def test_invalid_urls_are_rejected(url: str) -> None:
    with pytest.raises(
        InputError, match="the endpoint's URL must have the form http://localhost:8080/v1, not"
    ):
        Endpoint(url, "m")


@pytest.mark.parametrize("url", ["http://me:secret@x/v1", "https://x/v1?key=secret", "https://x/v1#secret"])
def test_secrets_in_urls_are_not_shown(url: str) -> None:
    with pytest.raises(InputError, match=r"must (not contain|end with) ") as caught:
        Endpoint(url, "m")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"model": ""}, "must have a name, not ''"),
        ({"context": 1000, "answer": 600}, "context of 1,000 tokens must be at least twice"),
        (
            {"grammar": "lark"},
            "one of response_format, grammar, structured_outputs, guided_grammar, not 'lark'",
        ),
        ({"fields": {"messages": []}}, "'messages' must not be among the additional request fields"),
    ],
)
def test_invalid_settings_are_rejected(more: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        replace(Endpoint("http://x", "m"), **more)


def test_invalid_limits_and_prices_are_rejected() -> None:
    some: tuple[dict[str, Any], ...] = (
        {"seconds": 0},
        {"tokens": -1},
        {"cost": float("nan"), "prices": Prices(1, 1)},
    )
    for bad in some:
        with pytest.raises(InputError, match="must be more than 0, not"):
            SpendingLimits(**bad)
    with pytest.raises(InputError, match="a cost limit requires the prices"):
        SpendingLimits(cost=1.0)
    with pytest.raises(InputError, match="a price must be a number of at least 0, not -1"):
        Prices(1, -1)


def test_fields_must_be_a_json_object() -> None:
    assert fields_of('{"a": null}') == {"a": None}
    for bad in ("", "[]", "{", "[" * 100_000):
        with pytest.raises(InputError, match="must be a JSON object"):
            fields_of(bad)
