"""Tests of schedule changes that are encoded as words of the language model."""

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.llm.tokens.integer_tokens import TOKENS as NUMBERS
from compiler.llm.tokens.schedule_delta import (
    ADDED_TOKENS,
    END,
    SPANS,
    TOKENS,
    WITHOUT_WORDS,
    ScheduleDeltaGrammar,
    decode_schedule_delta,
    encode_schedule_delta,
)
from compiler.schedule.schedule import LayerSchedule

SCHEDULES = st.builds(
    LayerSchedule,
    **{
        item.name: st.sampled_from(["rows", "channels"])
        if item.name == "order"
        else st.booleans()
        if isinstance(item.default, bool)
        else st.integers(SPANS[item.name].low, SPANS[item.name].high)
        | st.integers(1, 80)
        | st.just(item.default)
        for item in fields(LayerSchedule)
        if item.name not in WITHOUT_WORDS
    },
)


@given(SCHEDULES, SCHEDULES)
def test_changes_round_trip_and_conform_to_the_grammar(schedule: LayerSchedule, base: LayerSchedule) -> None:
    words, grammar = encode_schedule_delta(schedule, base), ScheduleDeltaGrammar()
    assert decode_schedule_delta(words, base) == schedule
    assert set(words) <= {*TOKENS, *ADDED_TOKENS, *NUMBERS}
    assert all(word in grammar.after(words[:at]) for at, word in enumerate(words))
    assert not grammar.after(words)


@given(st.data(), SCHEDULES, st.sets(st.sampled_from(list(SPANS))))
def test_words_of_the_grammar_are_schedules(data: st.DataObject, base: LayerSchedule, names: set) -> None:
    grammar, words = ScheduleDeltaGrammar(tuple(names)), []
    while choices := grammar.after(words):
        words.append(data.draw(st.sampled_from(choices)))
    made = decode_schedule_delta(words, base)
    assert {name for name in SPANS if getattr(made, name) != getattr(base, name)} <= names


def test_fields_without_words_keep_their_values() -> None:
    base, schedule = LayerSchedule(stream_row_blocks=3), LayerSchedule(rows=5)
    assert decode_schedule_delta(encode_schedule_delta(schedule, base), base) == replace(base, rows=5)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "not a field"),
        (["set rows", "0", END], "1..16777216"),
        (["set order", "all", END], "byte"),
        (["set rows", END], "byte"),
        ([END, "set rows"], "follows"),
        (["rows", "1", END], "not a field"),
    ],
)
def test_invalid_words_are_rejected(words: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        decode_schedule_delta(words, LayerSchedule())


def test_every_field_and_value_of_a_schedule_has_words() -> None:
    default = LayerSchedule()
    assert set(SPANS) == {item.name for item in fields(LayerSchedule)} - WITHOUT_WORDS
    for name, span in SPANS.items():
        for value in (span.low, span.high):
            extreme: Any = (
                ("rows", "channels")[value] if name == "order" else type(getattr(default, name))(value)
            )
            schedule = replace(default, **{name: extreme})
            assert decode_schedule_delta(encode_schedule_delta(schedule, default), default) == schedule
