"""Tests of integers that are encoded as words of the language model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.llm.tokens.integer_tokens import TOKENS, decode_single_number, encode_number, following
from compiler.llm.tokens.vocabulary import Vocabulary


@given(st.integers(-(2**32) + 1, 2**32 - 1))
def test_round_trip(value: int) -> None:
    words = encode_number(value)
    assert set(words) <= set(TOKENS) and len(words) <= 6
    assert decode_single_number(words) == value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, ["0"]),
        (255, ["255"]),
        (256, ["x2", "1", "0"]),
        (-1, ["-", "1"]),
        (65553, ["x3", "1", "0", "17"]),
    ],
)
def test_integers_to_tokens_and_back(value: int, words: list[str]) -> None:
    assert encode_number(value) == words


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["x2", "0", "1"],
        ["x2", "1"],
        ["-", "0"],
        ["-", "-", "1"],
        ["256"],
        ["1", "2"],
        ["x5", "1", "1", "1", "1", "1"],
    ],
)
def test_invalid_words_are_rejected(words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decode_single_number(words)


@pytest.mark.parametrize("value", [2**32, -(2**32)])
def test_too_large_integers_are_rejected(value: int) -> None:
    with pytest.raises(ValueError, match="must be below 2"):
        encode_number(value)


def test_vocabulary() -> None:
    words = Vocabulary(TOKENS)
    assert words.decode(words.encode(["x2", "1", "0"])) == ["x2", "1", "0"] and len(words) == 260
    assert "x2" in words and "x9" not in words
    with pytest.raises(ValueError, match="once"):
        Vocabulary(["a", "a"])


@given(st.data())
def test_following_covers_exactly_the_range(data: st.DataObject) -> None:
    span = st.integers(-(2**32) + 1, 2**32 - 1) | st.integers(-300, 70_000)
    low, high = sorted((data.draw(span), data.draw(span)))
    inside = encode_number(data.draw(st.integers(low, high)))
    assert all(word in following(inside[:at], low, high) for at, word in enumerate(inside))
    drawn: list[str] = []
    while choices := following(drawn, low, high):
        drawn.append(data.draw(st.sampled_from(choices)))
    assert low <= decode_single_number(drawn) <= high
