"""Tokenized examples and batches."""

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
#: Sampling weight of each type of answer.
_SHARES = {Ask.SCHEDULE: 3, Ask.EDITS: 3, Ask.PROGRAM: 2}


@dataclass(frozen=True)
class TokenizedExample:
    """Prompt with its answer as token ids.

    Parameters
    ----------
    words : tuple of int
        Token ids of prompt and answer.
    asked : int
        Number of prompt tokens, which are excluded from the loss.
    ask : Ask
        Type of the answer.
    """

    words: tuple[int, ...]
    asked: int
    ask: Ask = Ask.SCHEDULE


def shown(example: Example, *, best: bool, profile: bool = True, want: bool = True) -> TokenizedExample:
    """Tokenize an example; `best`, `profile` and `want` as in `Example.question`."""
    question = LANGUAGE.encode(example.question(best=best, profile=profile, want=want))
    return TokenizedExample((*question, *LANGUAGE.encode(example.answer)), len(question), example.ask)


@dataclass(frozen=True)
class Batch:
    """Batch of examples as (examples, positions) arrays.

    Parameters
    ----------
    words, following : int64 arrays
        Input tokens and next tokens.
    counts : bool array
        True where the next token belongs to an answer.
    """

    words: NDArray[np.int64]
    following: NDArray[np.int64]
    counts: NDArray[np.bool_]


def batches(
    groups: Sequence[Sequence[TokenizedExample]], size: int, words: int, rng: random.Random
) -> Iterator[Batch]:
    """Yield batches indefinitely, with types of answers by their weights.

    A group is sampled before its examples, so that large groups do not dominate; examples of similar length are
    batched together. All examples of a group have one type; `size` and `words` as in `parts`.
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
    """Yield examples in parts of similar length.

    Parameters
    ----------
    shown_ : sequence of TokenizedExample
        Examples to divide.
    size : int
        Maximum number of examples per part.
    words : int
        Maximum number of tokens per part, including padding; a longer example is a part of its own.
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
    """Return a padded batch of examples."""
    places = max(len(each.words) for each in drawn) - 1
    words = np.full((len(drawn), places + 1), _PAD, np.int64)
    counts = np.zeros((len(drawn), places), np.bool_)
    for row, each in enumerate(drawn):
        words[row, : len(each.words)] = each.words
        counts[row, each.asked - 1 : len(each.words) - 1] = True
    return Batch(words[:, :-1], words[:, 1:], counts)


#: Number of networks below which starting another process does not pay off.
_WORTH = 40
#: Networks per work item of a process.
_CHUNK = 8
#: Number of progress messages while a corpus is read.
_TOLD = 10


@dataclass(frozen=True)
class Style:
    """Options of prompts in training.

    Parameters
    ----------
    profile, want : bool
        Whether prompts include the current cost, and the target.
    longest : int
        Maximum number of tokens; longer examples are dropped.
    """

    profile: bool
    want: bool
    longest: int


@dataclass(frozen=True)
class Found:
    """Examples of a network: all, and those with the best answers, which ask for the best."""

    every: list[TokenizedExample]
    best: list[TokenizedExample]


def read_examples(
    walks: Sequence[Trajectory], style: Style, say: Callable[[str], None] = lambda _text: None
) -> list[Found]:
    """Tokenize the examples of each network, in order, in parallel processes.

    Parameters
    ----------
    walks : sequence of Trajectory
        Measured networks.
    style : Style
        Options of the prompts.
    say : callable
        Called with progress messages.
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
    """Yield tokenized examples in order, from `lanes` processes or this one."""
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
