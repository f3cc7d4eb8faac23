"""Tests of answers that an untrained model gives under a grammar."""

from collections.abc import Sequence

import numpy as np
import pytest

from compiler.llm.generate.sampler import draw
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
    """Grammar that accepts only an even number of rows."""

    def ends(self, tokens: Sequence[str]) -> bool:
        return decode_schedule_delta(tokens, LayerSchedule()).rows % 2 == 0


def test_constrained_answers_are_complete_and_accepted() -> None:
    for seed in range(5):
        answers = draw(_model(), LANGUAGE, QUESTION, _Grammar(), 16, np.random.default_rng(seed))
        complete = [each for each in answers if each.complete]
        assert len({each.tokens for each in complete}) > 8 and all(each.likelihood < 0 for each in complete)
        assert all(decode_schedule_delta(each.tokens, LayerSchedule()).rows % 2 == 0 for each in complete)
        # No remaining field could make an incomplete answer acceptable.
        assert all("set strip_width" in each.tokens for each in answers if not each.complete)


def test_equal_seeds_give_equal_answers() -> None:
    first, again = (
        draw(_model(), LANGUAGE, QUESTION, _Grammar(), 4, np.random.default_rng(7)) for _ in range(2)
    )
    assert first == again


def test_temperature_0_is_deterministic() -> None:
    answers = draw(_model(), LANGUAGE, QUESTION, _Grammar(), 3, np.random.default_rng(0), temperature=0)
    assert len({each.tokens for each in answers}) == 1


def test_without_a_grammar_no_answer_is_complete() -> None:
    answers = draw(_model(context=20), LANGUAGE, QUESTION, None, 5, np.random.default_rng(0))
    assert all(len(each.tokens) == 17 and not each.complete for each in answers)


def test_truncated_answer_is_not_complete() -> None:
    answers = draw(_model(context=5), LANGUAGE, QUESTION, _Grammar(), 50, np.random.default_rng(0))
    assert {each.complete for each in answers} == {False, True}


def test_likelihood_is_that_of_the_words() -> None:
    model = _model()
    (answer,) = draw(model, LANGUAGE, QUESTION, None, 1, np.random.default_rng(3))
    total = 0.0
    for at, word in enumerate(answer.tokens):
        scores = model.read(LANGUAGE.encode([*QUESTION, *answer.tokens[:at]])).scores[0].astype(np.float64)
        total += scores[LANGUAGE.number(word)] - np.log(np.exp(scores).sum())
    assert answer.likelihood == pytest.approx(total, rel=1e-4)


def test_too_long_question_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"a prompt must have 1\.\.\d+ tokens, not 3"):
        draw(_model(context=2), LANGUAGE, QUESTION, None, 1, np.random.default_rng(0))
