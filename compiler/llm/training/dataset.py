"""Tokenization of training examples, and batches of examples."""

import multiprocessing
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from compiler.llm.data.examples import Example, examples
from compiler.llm.data.trajectories import Trajectory
from compiler.llm.tokens.layer_prompt import Ask
from compiler.llm.tokens.vocabulary import LANGUAGE, PAD

_PAD = LANGUAGE.number(PAD)
#: Sampling weight of each type of answer; whole programs are long and at best as fast as the compiled ones.
_SAMPLING_WEIGHTS = {Ask.SCHEDULE: 4, Ask.EDITS: 2, Ask.PROGRAM: 1, Ask.FUSION: 1}


@dataclass(frozen=True)
class TokenizedExample:
    """Prompt with its answer as token ids.

    Parameters
    ----------
    tokens : tuple of int
        Token ids of prompt and answer.
    prompt_length : int
        Number of prompt tokens, which are excluded from the loss.
    ask : Ask
        Type of the answer.
    """

    tokens: tuple[int, ...]
    prompt_length: int
    ask: Ask = Ask.SCHEDULE


def tokenize(example: Example, *, best: bool, profile: bool = True, want: bool = True) -> TokenizedExample:
    """Tokenize an example; `best`, `profile` and `want` have the same meaning as in `Example.prompt`."""
    prompt = LANGUAGE.encode(example.prompt(best=best, profile=profile, want=want))
    return TokenizedExample((*prompt, *LANGUAGE.encode(example.answer)), len(prompt), example.ask)


@dataclass(frozen=True)
class Batch:
    """Batch of examples as (examples, positions) arrays.

    Parameters
    ----------
    tokens, following : int64 arrays
        Input tokens and next tokens.
    mask : bool array
        True where the next token belongs to an answer.
    """

    tokens: NDArray[np.int64]
    following: NDArray[np.int64]
    mask: NDArray[np.bool_]


def batches(
    groups: Sequence[Sequence[TokenizedExample]], size: int, tokens: int, rng: random.Random
) -> Iterator[Batch]:
    """Yield batches indefinitely; answer types are sampled according to their weights.

    First a group is sampled, then one of its examples, so that large groups do not dominate. Examples of similar length
    form a batch. All examples of a group must have the same answer type. `size` and `tokens` have the same meaning as
    in `length_batches`.
    """
    batches_per_chunk = 16
    groups_by_ask = {ask: [group for group in groups if group[0].ask is ask] for ask in _SAMPLING_WEIGHTS}
    types = [ask for ask, own in groups_by_ask.items() if own]
    weights = [_SAMPLING_WEIGHTS[ask] for ask in types]
    while True:
        chosen = rng.choices(types, weights, k=batches_per_chunk * size)
        drawn = list(
            length_batches([rng.choice(rng.choice(groups_by_ask[ask])) for ask in chosen], size, tokens)
        )
        rng.shuffle(drawn)
        yield from map(batch_of, drawn)


def length_batches(
    examples_: Sequence[TokenizedExample], size: int, tokens: int
) -> Iterator[list[TokenizedExample]]:
    """Yield examples in batches of similar length.

    Parameters
    ----------
    examples_ : sequence of TokenizedExample
        Examples to divide.
    size : int
        Maximum number of examples per batch.
    tokens : int
        Maximum number of tokens per batch, including padding; a longer example forms a separate batch.
    """
    batch: list[TokenizedExample] = []
    for each in sorted(examples_, key=lambda one: len(one.tokens)):
        if batch and (len(batch) == size or (len(batch) + 1) * len(each.tokens) > tokens):
            yield batch
            batch = []
        batch.append(each)
    if batch:
        yield batch


def batch_of(drawn: Sequence[TokenizedExample]) -> Batch:
    """Return a padded batch of examples."""
    length = max(len(each.tokens) for each in drawn) - 1
    tokens = np.full((len(drawn), length + 1), _PAD, np.int64)
    mask = np.zeros((len(drawn), length), np.bool_)
    for row, each in enumerate(drawn):
        tokens[row, : len(each.tokens)] = each.tokens
        mask[row, each.prompt_length - 1 : len(each.tokens) - 1] = True
    return Batch(tokens[:, :-1], tokens[:, 1:], mask)


#: Minimum number of networks per process; with fewer networks, starting a process takes longer than it saves.
_NETWORKS_PER_PROCESS = 40
#: Number of networks per work item of a process.
_NETWORKS_PER_TASK = 8
#: Number of progress messages during tokenization of a corpus.
_REPORTS = 10


@dataclass(frozen=True)
class PromptOptions:
    """Options of prompts in training.

    Parameters
    ----------
    profile, want : bool
        True if prompts include the current cost (`profile`) and the requested ratio of cycles (`want`).
    max_tokens : int
        Maximum number of tokens; longer examples are dropped.
    known : int
        Maximum number of known schedules of similar layers in a prompt; each prompt has a random number of them.
    """

    profile: bool
    want: bool
    max_tokens: int
    known: int = 0


@dataclass(frozen=True)
class NetworkExamples:
    """Tokenized examples of a network.

    Attributes
    ----------
    every : list of TokenizedExample
        Examples of all measured answers, whose prompts request the measured cost.
    best : list of TokenizedExample
        Examples of the best answers, whose prompts request the best cost.
    """

    every: list[TokenizedExample]
    best: list[TokenizedExample]


def tokenize_examples(
    trajectories: Sequence[Trajectory],
    options: PromptOptions,
    say: Callable[[str], None] = lambda _text: None,
) -> list[NetworkExamples]:
    """Tokenize the examples of each network, in order, in parallel processes.

    Parameters
    ----------
    trajectories : sequence of Trajectory
        Measured networks to tokenize.
    options : PromptOptions
        Options of the prompts.
    say : callable
        Called with progress messages.
    """
    processes = min(len(os.sched_getaffinity(0)), len(trajectories) // _NETWORKS_PER_PROCESS)
    out: list[NetworkExamples] = []
    with _map_networks(trajectories, options, processes) as networks:
        for number, each in enumerate(networks, 1):
            out.append(each)
            if number * _REPORTS // len(trajectories) > (number - 1) * _REPORTS // len(trajectories):
                say(f"tokenized {number:,} of {len(trajectories):,} networks")
    return out


@contextmanager
def _map_networks(
    trajectories: Sequence[Trajectory], options: PromptOptions, processes: int
) -> Iterator[Iterator[NetworkExamples]]:
    """Yield an iterator over the examples of all networks; with fewer than two processes, this process tokenizes."""
    read = partial(_tokenize_network, options=options)
    if processes < 2:
        yield map(read, trajectories)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield pool.imap(read, trajectories, _NETWORKS_PER_TASK)


def _tokenize_network(trajectory: Trajectory, options: PromptOptions) -> NetworkExamples:
    every, best = [], []
    for example in examples(trajectory, options.known):
        every.append(tokenize(example, best=False, profile=options.profile, want=options.want))
        if example.best:
            best.append(tokenize(example, best=True, profile=options.profile, want=options.want))
    return NetworkExamples(
        *([each for each in batch if len(each.tokens) <= options.max_tokens] for batch in (every, best))
    )
