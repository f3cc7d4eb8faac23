"""Examples as numbers, ready to be shown to the model in batches."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler.llm.asking import Ask
from compiler.llm.corpus.examples import Example
from compiler.llm.language import LANGUAGE, PAD

_PAD = LANGUAGE.number(PAD)
#: How often each kind of answer is shown.
_SHARES = {Ask.SCHEDULE: 3, Ask.EDITS: 3, Ask.PROGRAM: 2}


@dataclass(frozen=True)
class Shown:
    """A question with its answer.

    Parameters
    ----------
    words : tuple of int
        Of both.
    asked : int
        Words of the question: the model is not trained to say those.
    ask : Ask
        Which kind of answer it is.
    """

    words: tuple[int, ...]
    asked: int
    ask: Ask = Ask.SCHEDULE


def shown(example: Example, *, best: bool, profile: bool = True, want: bool = True) -> Shown:
    """An example as the model sees it; `best`, `profile` and `want` as for `Example.question`."""
    question = LANGUAGE.encode(example.question(best=best, profile=profile, want=want))
    return Shown((*question, *LANGUAGE.encode(example.answer)), len(question), example.ask)


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


def batches(groups: Sequence[Sequence[Shown]], size: int, words: int, rng: random.Random) -> Iterator[Batch]:
    """Batches without end, by kinds of answer as often as they are to be shown.

    Each example comes from a group drawn first, so that large groups do not drown small ones; those of about the same
    length come together. All of a group are of one kind; `size` and `words` as for `parts`.
    """
    some = 16
    kinds = {ask: [group for group in groups if group[0].ask is ask] for ask in _SHARES}
    found = [ask for ask, own in kinds.items() if own]
    shares = [_SHARES[ask] for ask in found]
    while True:
        chosen = rng.choices(found, shares, k=some * size)
        drawn = list(parts([rng.choice(rng.choice(kinds[ask])) for ask in chosen], size, words))
        rng.shuffle(drawn)
        yield from map(batch_of, drawn)


def parts(shown_: Sequence[Shown], size: int, words: int) -> Iterator[list[Shown]]:
    """Examples by their length, so many at a time.

    Parameters
    ----------
    shown_ : sequence of Shown
        All of them.
    size : int
        Examples of a part, at most.
    words : int
        Words of a part at most, all as long as its longest; a longer example is a part by itself.
    """
    part: list[Shown] = []
    for each in sorted(shown_, key=lambda one: len(one.words)):
        if part and (len(part) == size or (len(part) + 1) * len(each.words) > words):
            yield part
            part = []
        part.append(each)
    if part:
        yield part


def batch_of(drawn: Sequence[Shown]) -> Batch:
    """Examples beside each other."""
    places = max(len(each.words) for each in drawn) - 1
    words = np.full((len(drawn), places + 1), _PAD, np.int64)
    counts = np.zeros((len(drawn), places), np.bool_)
    for row, each in enumerate(drawn):
        words[row, : len(each.words)] = each.words
        counts[row, each.asked - 1 : len(each.words) - 1] = True
    return Batch(words[:, :-1], words[:, 1:], counts)
