"""Two readers of the same words: one that answers come from, one that says how often it would have said the same."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler.llm.decode.sampler import DecoderState, TokenReader
from compiler.llm.model.numpy_transformer import Floats


@dataclass
class AgreementTally:
    """How many words were read or written, and for how many both found the same one likeliest to follow."""

    words: int = 0
    same: int = 0

    def enter(self, first: Floats, second: Floats) -> None:
        """Enter what both find of some continuations."""
        self.words += len(first)
        self.same += int((first.argmax(axis=1) == second.argmax(axis=1)).sum())


class AgreementMeter:
    """A reader that has another one read along.

    Parameters
    ----------
    first, second : Reader
        Whose scores count; whose are compared.
    """

    def __init__(self, first: TokenReader, second: TokenReader):
        self.first, self.second, self.tally = first, second, AgreementTally()

    def read(self, words: Sequence[int]) -> "PairedDecoder":
        """The state of both after some words."""
        return PairedDecoder(self.first.read(words), self.second.read(words), self.tally)


class PairedDecoder:
    """Continuations of both."""

    def __init__(
        self, first: DecoderState, second: DecoderState, tally: AgreementTally, *, known: bool = False
    ):
        self._first, self._second, self._tally = first, second, tally
        if not known:
            tally.enter(first.scores, second.scores)

    @property
    def scores(self) -> Floats:
        """Those of the first."""
        return self._first.scores

    @property
    def full(self) -> bool:
        """Whether either has no room for another word."""
        return self._first.full or self._second.full

    def spread(self, count: int) -> "PairedDecoder":
        """As many continuations of what is one so far."""
        return PairedDecoder(self._first.spread(count), self._second.spread(count), self._tally, known=True)

    def keep(self, which: Sequence[int]) -> None:
        """Only some of the continuations from now on."""
        self._first.keep(which)
        self._second.keep(which)

    def push(self, words: NDArray[np.integer]) -> None:
        """Go on by some words of each continuation."""
        self._first.push(words)
        self._second.push(words)
        self._tally.enter(self._first.scores, self._second.scores)
