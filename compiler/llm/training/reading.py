"""Examples of a corpus as numbers: every network is lowered for that, which all cores do together."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from compiler.llm.corpus.examples import examples
from compiler.llm.corpus.walk import Walk
from compiler.llm.training.shown import Shown, shown

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

    every: list[Shown]
    best: list[Shown]


def read_examples(
    walks: Sequence[Walk], style: Style, say: Callable[[str], None] = lambda _text: None
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
def _mapped(walks: Sequence[Walk], style: Style, lanes: int) -> Iterator[Iterator[Found]]:
    """What is found, in order, by so many processes, or by this one."""
    read = partial(_read, style=style)
    if lanes < 2:
        yield map(read, walks)
        return
    with multiprocessing.get_context("spawn").Pool(lanes) as pool:
        yield pool.imap(read, walks, _CHUNK)


def _read(walk: Walk, style: Style) -> Found:
    every, best = [], []
    for example in examples(walk):
        every.append(shown(example, best=False, profile=style.profile, want=style.want))
        if example.best:
            best.append(shown(example, best=True, profile=style.profile, want=style.want))
    return Found(*([each for each in part if len(each.words) <= style.longest] for part in (every, best)))
