"""The language model on the accelerator gives nearly the same scores as on the host."""

import numpy as np
import pytest

from compiler.llm.evaluation import AgreementMeter
from compiler.llm.generate.sampler import draw
from compiler.llm.model.accelerated import ChipGpt
from compiler.llm.model.numpy_transformer import Gpt, TransformerShape
from compiler.llm.tokens.vocabulary import Vocabulary
from cosim.golden import GoldenDevice
from hw.config import load_target

LENGTH = 10
LANGUAGE = Vocabulary([f"w{number}" for number in range(24)])
SHAPE = TransformerShape(len(LANGUAGE), width=16, heads=2, layers=2, hidden=24, context=12)


@pytest.fixture(scope="module")
def model() -> Gpt:
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=size).astype(np.float32) * 0.3 for name, size in SHAPE.tensors.items()}
    return Gpt(SHAPE, weights)


@pytest.fixture(scope="module")
def chip(model: Gpt):
    rng = np.random.default_rng(1)
    texts = [rng.integers(len(LANGUAGE), size=LENGTH).tolist() for _ in range(4)]
    made = ChipGpt(model, load_target("n4"), GoldenDevice, LENGTH, texts, continuations=3)
    yield made
    made.close()


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_close_to_the_host(model: Gpt, chip: ChipGpt, seed: int) -> None:
    words = np.random.default_rng(10 + seed).integers(len(LANGUAGE), size=LENGTH).tolist()
    state = chip.read(words[:4])
    for place in range(4, LENGTH):
        wanted = model.read(words[:place]).scores[0]
        assert np.corrcoef(state.scores[0], wanted)[0, 1] > 0.98
        assert wanted[state.scores[0].argmax()] > wanted.max() - 0.1 * np.ptp(wanted)
        state.push(np.array([[words[place]]]))
    assert state.full


def test_continuations_have_separate_keys_and_values(model: Gpt, chip: ChipGpt) -> None:
    state = chip.read([3, 1, 4, 1]).fork(3)
    ways = np.array([[5, 9], [2, 6], [5, 3]])
    state.push(ways)
    state.select([2, 1])
    state.push(np.array([[7], [8]]))
    for scores, way in zip(state.scores, ([5, 3, 7], [2, 6, 8]), strict=True):
        assert np.array_equal(scores, chip_scores(chip, [3, 1, 4, 1, *way]))


def chip_scores(chip: ChipGpt, words: list[int]) -> np.ndarray:
    return chip.read(words).scores[0]


def test_answers_of_the_accelerated_model(model: Gpt, chip: ChipGpt) -> None:
    before = chip.tokens
    tally = (along := AgreementMeter(chip, model)).tally
    answers = draw(along, LANGUAGE, ["w1", "w2"], None, 2, np.random.default_rng(2))
    assert [len(each.tokens) for each in answers] == [LENGTH - 2] * 2
    assert chip.tokens - before == 2 + 2 * (LENGTH - 2) and chip.cycles > 0
    assert tally.tokens == 1 + 2 * (LENGTH - 2) and tally.same > 0.7 * tally.tokens


@pytest.mark.parametrize("count", [0, LENGTH + 1])
def test_too_long_texts_are_rejected(chip: ChipGpt, count: int) -> None:
    with pytest.raises(ValueError, match=rf"a prompt must have 1\.\.{LENGTH} tokens, not {count}"):
        chip.read([1] * count)
