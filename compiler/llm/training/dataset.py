"""Examples as token arrays, and batches of them."""

import multiprocessing
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from compiler.llm.data.example import Example
from compiler.llm.data.examples import examples
from compiler.llm.data.trajectories import Trajectory
from compiler.llm.tokens.prompt_tokens import Ask
from compiler.llm.tokens.vocabulary import LANGUAGE, PAD

_PAD = LANGUAGE.number(PAD)
#: How often each kind of answer is shown.
_SHARES = {Ask.SCHEDULE: 3, Ask.EDITS: 3, Ask.PROGRAM: 2}


@dataclass(frozen=True)
class TokenizedExample:
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


def shown(example: Example, *, best: bool, profile: bool = True, want: bool = True) -> TokenizedExample:
    """An example as the model sees it; `best`, `profile` and `want` as for `Example.question`."""
    question = LANGUAGE.encode(example.question(best=best, profile=profile, want=want))
    return TokenizedExample((*question, *LANGUAGE.encode(example.answer)), len(question), example.ask)


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


def batches(
    groups: Sequence[Sequence[TokenizedExample]], size: int, words: int, rng: random.Random
) -> Iterator[Batch]:
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


def parts(shown_: Sequence[TokenizedExample], size: int, words: int) -> Iterator[list[TokenizedExample]]:
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
    part: list[TokenizedExample] = []
    for each in sorted(shown_, key=lambda one: len(one.words)):
        if part and (len(part) == size or (len(part) + 1) * len(each.words) > words):
            yield part
            part = []
        part.append(each)
    if part:
        yield part


def batch_of(drawn: Sequence[TokenizedExample]) -> Batch:
    """Examples beside each other."""
    places = max(len(each.words) for each in drawn) - 1
    words = np.full((len(drawn), places + 1), _PAD, np.int64)
    counts = np.zeros((len(drawn), places), np.bool_)
    for row, each in enumerate(drawn):
        words[row, : len(each.words)] = each.words
        counts[row, each.asked - 1 : len(each.words) - 1] = True
    return Batch(words[:, :-1], words[:, 1:], counts)


#: Networks that are read while another process starts: for fewer it is not worth it.
_WORTH = 40
#: Networks that a process is given at a time.
_CHUNK = 8
#: Messages while a corpus is read.
_TOLD = 10


@dataclass(frozen=True)
class Style:
    """How examples are put.

    Parameters
    ----------
    profile, want : bool
        Whether the model is told what a layer costs now; what is wanted.
    longest : int
        Examples of more words are left out.
    """

    profile: bool
    want: bool
    longest: int


@dataclass(frozen=True)
class Found:
    """Examples of a network: all, and those whose answer is the best there is, asked for as that."""

    every: list[TokenizedExample]
    best: list[TokenizedExample]


def read_examples(
    walks: Sequence[Trajectory], style: Style, say: Callable[[str], None] = lambda _text: None
) -> list[Found]:
    """Examples of each network, in their order, however many processes read them.

    Parameters
    ----------
    walks : sequence of Walk
        The networks.
    style : Style
        How they are put.
    say : callable
        Hears of progress.
    """
    lanes = min(len(os.sched_getaffinity(0)), len(walks) // _WORTH)
    out: list[Found] = []
    with _mapped(walks, style, lanes) as found:
        for number, each in enumerate(found, 1):
            out.append(each)
            if number * _TOLD // len(walks) > (number - 1) * _TOLD // len(walks):
                say(f"read {number:,} of {len(walks):,} networks")
    return out


@contextmanager
def _mapped(walks: Sequence[Trajectory], style: Style, lanes: int) -> Iterator[Iterator[Found]]:
    """What is found, in order, by so many processes, or by this one."""
    read = partial(_read, style=style)
    if lanes < 2:
        yield map(read, walks)
        return
    with multiprocessing.get_context("spawn").Pool(lanes) as pool:
        yield pool.imap(read, walks, _CHUNK)


def _read(walk: Trajectory, style: Style) -> Found:
    every, best = [], []
    for example in examples(walk):
        every.append(shown(example, best=False, profile=style.profile, want=style.want))
        if example.best:
            best.append(shown(example, best=True, profile=style.profile, want=style.want))
    return Found(*([each for each in part if len(each.words) <= style.longest] for part in (every, best)))
