"""Answers of a model that knows nothing: what the grammar makes of them."""

from collections.abc import Sequence

import numpy as np
import pytest

from compiler.llm.decode.sampler import draw
from compiler.llm.model.numpy_transformer import Gpt, TransformerShape
from compiler.llm.tokens.schedule_delta import ScheduleDeltaGrammar, decode_schedule_delta
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.schedule.schedule import LayerSchedule

QUESTION = ["machine", "16", "answer"]


def _model(context: int = 200, seed: int = 0) -> Gpt:
    shape = TransformerShape(len(LANGUAGE), width=16, heads=2, layers=2, hidden=24, context=context)
    rng = np.random.default_rng(seed)
    weights = {name: rng.normal(size=size).astype(np.float32) * 0.3 for name, size in shape.tensors.items()}
    return Gpt(shape, weights)


class _Grammar(ScheduleDeltaGrammar):
    """Takes an even number of rows only."""

    def ends(self, tokens: Sequence[str]) -> bool:
        return decode_schedule_delta(tokens, LayerSchedule()).rows % 2 == 0


def test_constrained_answers_are_complete_and_wanted() -> None:
    for seed in range(5):
        answers = draw(_model(), LANGUAGE, QUESTION, _Grammar(), 16, np.random.default_rng(seed))
        complete = [each for each in answers if each.complete]
        assert len({each.tokens for each in complete}) > 8 and all(each.likelihood < 0 for each in complete)
        assert all(decode_schedule_delta(each.tokens, LayerSchedule()).rows % 2 == 0 for each in complete)
        # No field is left that could make it wanted again.
        assert all("set counted" in each.tokens for each in answers if not each.complete)


def test_the_same_chance_draws_the_same() -> None:
    first, again = (
        draw(_model(), LANGUAGE, QUESTION, _Grammar(), 4, np.random.default_rng(7)) for _ in range(2)
    )
    assert first == again


def test_no_chance_at_temperature_0() -> None:
    answers = draw(_model(), LANGUAGE, QUESTION, _Grammar(), 3, np.random.default_rng(0), temperature=0)
    assert len({each.tokens for each in answers}) == 1


def test_without_grammar_words_are_any_and_no_answer_is_complete() -> None:
    answers = draw(_model(context=20), LANGUAGE, QUESTION, None, 5, np.random.default_rng(0))
    assert all(len(each.tokens) == 17 and not each.complete for each in answers)


def test_an_answer_that_has_no_room_is_not_complete() -> None:
    answers = draw(_model(context=5), LANGUAGE, QUESTION, _Grammar(), 50, np.random.default_rng(0))
    assert {each.complete for each in answers} == {False, True}


def test_a_likelihood_is_that_of_the_words() -> None:
    model = _model()
    (answer,) = draw(model, LANGUAGE, QUESTION, None, 1, np.random.default_rng(3))
    total = 0.0
    for at, word in enumerate(answer.tokens):
        scores = model.read(LANGUAGE.encode([*QUESTION, *answer.tokens[:at]])).scores[0].astype(np.float64)
        total += scores[LANGUAGE.number(word)] - np.log(np.exp(scores).sum())
    assert answer.likelihood == pytest.approx(total, rel=1e-4)


def test_a_question_that_is_too_long() -> None:
    with pytest.raises(ValueError, match=r"a prompt must have 1\.\.\d+ tokens, not 3"):
        draw(_model(context=2), LANGUAGE, QUESTION, None, 1, np.random.default_rng(0))
