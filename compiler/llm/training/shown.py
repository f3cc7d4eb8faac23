"""Examples as numbers, ready to be shown to the model in batches."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler.llm.corpus.examples import Example
from compiler.llm.language import LANGUAGE, PAD

_PAD = LANGUAGE.number(PAD)


@dataclass(frozen=True)
class Shown:
    """A question with its answer.

    Parameters
    ----------
    words : tuple of int
        Of both.
    asked : int
        Words of the question: the model is not trained to say those.
    """

    words: tuple[int, ...]
    asked: int


def shown(example: Example, *, best: bool, profile: bool = True, want: bool = True) -> Shown:
    """An example as the model sees it; `best`, `profile` and `want` as for `Example.question`."""
    question = LANGUAGE.encode(example.question(best=best, profile=profile, want=want))
    return Shown((*question, *LANGUAGE.encode(example.answer)), len(question))


@dataclass(frozen=True)
class Batch:
    """Some examples: (examples, places) arrays.

    Parameters
    ----------
    words, following : int64 arrays
        Each word, and the one behind it.
    counts : bool array
        Places of which the following word is part of an answer.
    """

    words: NDArray[np.int64]
    following: NDArray[np.int64]
    counts: NDArray[np.bool_]


def batches(groups: Sequence[Sequence[Shown]], size: int, rng: random.Random) -> Iterator[Batch]:
    """Batches without end: each example from a group drawn first, so that large groups do not drown small ones.

    Examples of about the same length come together.
    """
    some = 16
    while True:
        drawn = sorted(
            (rng.choice(rng.choice(groups)) for _ in range(some * size)), key=lambda each: len(each.words)
        )
        order = list(range(some))
        rng.shuffle(order)
        yield from (batch_of(drawn[at * size : (at + 1) * size]) for at in order)


def batch_of(drawn: Sequence[Shown]) -> Batch:
    """Examples beside each other."""
    places = max(len(each.words) for each in drawn) - 1
    words = np.full((len(drawn), places + 1), _PAD, np.int64)
    counts = np.zeros((len(drawn), places), np.bool_)
    for row, each in enumerate(drawn):
        words[row, : len(each.words)] = each.words
        counts[row, each.asked - 1 : len(each.words) - 1] = True
    return Batch(words[:, :-1], words[:, 1:], counts)
