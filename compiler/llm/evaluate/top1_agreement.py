"""Runs two models on the same tokens and counts how often their top-1 predictions agree."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler.llm.decode.sampler import DecoderState, TokenReader
from compiler.llm.model.numpy_transformer import Floats


@dataclass
class AgreementTally:
    """Number of compared positions, and number of positions where the top-1 predictions agree."""

    words: int = 0
    same: int = 0

    def enter(self, first: Floats, second: Floats) -> None:
        """Count the agreement of two logit arrays."""
        self.words += len(first)
        self.same += int((first.argmax(axis=1) == second.argmax(axis=1)).sum())


class AgreementMeter:
    """Model whose predictions are compared with those of a second model.

    Parameters
    ----------
    first, second : TokenReader
        Model that provides the scores, and model to compare with.
    """

    def __init__(self, first: TokenReader, second: TokenReader):
        self.first, self.second, self.tally = first, second, AgreementTally()

    def read(self, words: Sequence[int]) -> "PairedDecoder":
        """Return the state of both models after a prompt."""
        return PairedDecoder(self.first.read(words), self.second.read(words), self.tally)


class PairedDecoder:
    """Decoding states of both models."""

    def __init__(
        self, first: DecoderState, second: DecoderState, tally: AgreementTally, *, known: bool = False
    ):
        self._first, self._second, self._tally = first, second, tally
        if not known:
            tally.enter(first.scores, second.scores)

    @property
    def scores(self) -> Floats:
        """Logits of the first model."""
        return self._first.scores

    @property
    def full(self) -> bool:
        """True if either context is full."""
        return self._first.full or self._second.full

    def spread(self, count: int) -> "PairedDecoder":
        """Return a state with `count` copies of the single continuation."""
        return PairedDecoder(self._first.spread(count), self._second.spread(count), self._tally, known=True)

    def keep(self, which: Sequence[int]) -> None:
        """Select continuations by index and drop the others."""
        self._first.keep(which)
        self._second.keep(which)

    def push(self, words: NDArray[np.integer]) -> None:
        """Append tokens to every continuation."""
        self._first.push(words)
        self._second.push(words)
        self._tally.enter(self._first.scores, self._second.scores)
