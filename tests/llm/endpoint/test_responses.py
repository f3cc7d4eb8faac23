"""Replies of any form, whatever a server sends, are parsed to a value or to None."""

import json
from email.utils import formatdate
from time import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.llm.endpoint.http import (
    ChatCompletion,
    HttpReply,
    complaint_of,
    completion_of,
    content_of,
    line_of,
    models_of,
    pause_of,
)

#: Keys that the parser reads; values of all types occur under them.
KEYS = (
    "choices",
    "message",
    "content",
    "usage",
    "prompt_tokens",
    "error",
    "detail",
    "data",
    "id",
    "finish_reason",
    "text",
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_any_json_value(value: Any) -> None:
    content = content_of(HttpReply(200, {}, json.dumps(value)))
    found = completion_of(content)
    assert found is None or isinstance(found.text, str)
    names = models_of(content)
    assert names is None or all(isinstance(name, str) for name in names)
    line = line_of(complaint_of(content))
    assert len(line) <= 203 and line.isprintable()


@given(st.text())
def test_any_retry_after_text(text: str) -> None:
    reply = HttpReply(429, {"retry-after": text}, text)
    content_of(reply)
    pause = pause_of(reply)
    assert pause is None or pause >= 0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7),
        ("0.5", 0.5),
        ("-3", 0),
        ("inf", None),
        ("nan", None),
        ("soon", None),
        ("", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
        ("Wed, 99 Oct 99999 07:28:00 GMT", None),
        ("1e999", None),
    ],
)
def test_retry_after_in_seconds(text: str, seconds: float | None) -> None:
    assert pause_of(HttpReply(429, {"retry-after": text}, "")) == seconds


def test_retry_after_as_a_date() -> None:
    pause = pause_of(HttpReply(503, {"retry-after": formatdate(time() + 3600, usegmt=True)}, ""))
    assert pause is not None and 3000 < pause <= 3600
    assert pause_of(HttpReply(503, {}, "")) is None


def test_completion_of_several_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, 3, {"text": "b"}]
    content = {
        "choices": [{"message": {"content": parts}, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 5},
    }
    assert completion_of(content) == ChatCompletion("ab", cut=True, input_tokens=5, output_tokens=None)
