"""Answers drawn from the model word by word, of those words that a grammar allows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from compiler.llm.gpt import Gpt, State
from compiler.llm.vocabulary import Vocabulary


class Grammar(Protocol):
    """Says which words an answer may go on with."""

    def after(self, words: Sequence[str]) -> Sequence[str]:
        """Words that may follow; none: the answer is complete."""
        ...


@dataclass(frozen=True)
class Answer:
    """What the model says.

    Parameters
    ----------
    words : tuple of str
        All of it; not complete if the context had no room for more.
    likelihood : float
        Natural logarithm of how likely the model found it, among what the grammar allows.
    complete : bool
        Whether the grammar has it that it ends there.
    """

    words: tuple[str, ...]
    likelihood: float
    complete: bool


def draw(
    model: Gpt, language: Vocabulary, question: Sequence[str], grammar: Grammar | None, count: int,
    rng: np.random.Generator, temperature: float = 1.0,
) -> list[Answer]:  # fmt: skip
    """Answers to a question.

    Parameters
    ----------
    model, language : Gpt, Vocabulary
        Who answers, and its words.
    question : sequence of str
        What is asked.
    grammar : Grammar or None
        Keeps the answers to what means something; None: all words are allowed, and an answer ends with the context.
    count : int
        Of answers.
    rng : numpy.random.Generator
        Chance.
    temperature : float
        1: as likely as the model says; less: rather what is likely; 0: always what is most likely.

    Raises
    ------
    ValueError
        The question is longer than the context.
    """
    state = model.read(language.encode(question)).spread(count)
    drawn = [_Drawn([], 0.0) for _ in range(count)]
    open_, done = list(range(count)), list[Answer | None]([None] * count)
    while open_:
        going: list[int] = []
        chosen: list[int] = []
        for place, number in enumerate(open_):
            one = drawn[number]
            allowed = None if grammar is None else grammar.after(one.words)
            if state.full or (allowed is not None and not allowed):
                done[number] = Answer(tuple(one.words), one.likelihood, allowed is not None and not allowed)
                continue
            among = np.arange(len(language)) if allowed is None else np.array(language.encode(allowed))
            at, likelihood = _pick(state.scores[place][among], rng, temperature)
            one.words.append(language.words[among[at]])
            one.likelihood += likelihood
            going.append(place)
            chosen.append(int(among[at]))
        open_ = [open_[place] for place in going]
        _go_on(state, going, chosen)
    return [answer for answer in done if answer is not None]


@dataclass
class _Drawn:
    words: list[str]
    likelihood: float


def _go_on(state: State, going: list[int], chosen: list[int]) -> None:
    if going:
        if len(going) < len(state.scores):
            state.keep(going)
        state.push(np.array(chosen)[:, None])


def _pick(scores: np.ndarray, rng: np.random.Generator, temperature: float) -> tuple[int, float]:
    """A word by its scores, and the logarithm of its likelihood."""
    logs = scores - scores.max()
    logs = logs - np.log(np.exp(logs).sum())
    at = int(logs.argmax())
    if temperature > 0:
        at = int(
            (logs / temperature + rng.gumbel(size=len(logs))).argmax()
        )  # the same as softmax, then a draw
    return at, float(logs[at])
