"""Samples answers token by token from the model, masked by a grammar."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from compiler.llm.model.numpy_transformer import Floats
from compiler.llm.tokens.vocabulary import Vocabulary


class DecoderState(Protocol):
    """Decoding state of several continuations of equal length, e.g. `numpy_transformer.TransformerState`."""

    @property
    def scores(self) -> Floats:
        """Logits of the next token, shape (continuations, vocabulary size)."""
        ...

    @property
    def full(self) -> bool:
        """True if the context has no room for another token."""
        ...

    def spread(self, count: int) -> "DecoderState":
        """Return a state with `count` copies of the single continuation."""
        ...

    def keep(self, which: Sequence[int]) -> None:
        """Select continuations by index and drop the others."""
        ...

    def push(self, words: NDArray[np.integer]) -> None:
        """Append tokens to every continuation; shape (continuations, tokens)."""
        ...


class TokenReader(Protocol):
    """Autoregressive model that reads a prompt, e.g. `numpy_transformer.Gpt`."""

    def read(self, words: Sequence[int]) -> DecoderState:
        """Return the state after a prompt; ValueError if it exceeds the context."""
        ...


class TokenGrammar(Protocol):
    """Grammar that gives the tokens with which an answer may continue."""

    def after(self, words: Sequence[str]) -> Sequence[str]:
        """Return the tokens that may follow; empty if the answer is complete."""
        ...

    def ends(self, words: Sequence[str]) -> bool:
        """Return whether a complete answer is accepted; if not, its last token is sampled again."""
        ...


@dataclass(frozen=True)
class SampledAnswer:
    """Answer sampled from the model.

    Parameters
    ----------
    words : tuple of str
        Tokens of the answer; truncated if the context was full.
    likelihood : float
        Log probability of the answer under the model, renormalized over the tokens that the grammar allows.
    complete : bool
        True if the grammar ended the answer, False if it was truncated.
    """

    words: tuple[str, ...]
    likelihood: float
    complete: bool


def draw(
    model: TokenReader,
    language: Vocabulary,
    question: Sequence[str],
    grammar: TokenGrammar | None,
    count: int,
    rng: np.random.Generator,
    temperature: float = 1.0,
) -> list[SampledAnswer]:
    """Sample answers to a prompt.

    Parameters
    ----------
    model, language : TokenReader, Vocabulary
        Model to sample from, and its vocabulary.
    question : sequence of str
        Tokens of the prompt.
    grammar : TokenGrammar or None
        Grammar that masks invalid tokens; None allows all tokens, and answers end with the context.
    count : int
        Number of answers to sample.
    rng : numpy.random.Generator
        Random generator for the samples.
    temperature : float
        Softmax temperature: 1 samples from the model's distribution, 0 takes the most likely token.

    Raises
    ------
    ValueError
        The prompt is longer than the context.
    """
    state = model.read(language.encode(question)).spread(count)
    drawer = _Drawer(language, grammar, rng, temperature)
    drawn = [_Drawn() for _ in range(count)]
    open_ = list(range(count))
    while open_:
        going, chosen = [], []
        for place, number in enumerate(open_):
            word = None if state.full else drawer.next(drawn[number], state.scores[place])
            if word is not None:
                going.append(place)
                chosen.append(word)
        open_ = [open_[place] for place in going]
        _go_on(state, going, chosen)
    return [SampledAnswer(tuple(each.words), each.likelihood, each.complete) for each in drawn]


@dataclass
class _Drawn:
    """Partially sampled answer."""

    words: list[str] = field(default_factory=list)
    likelihood: float = 0.0
    complete: bool = False


@dataclass(frozen=True)
class _Drawer:
    """Samples the tokens of answers."""

    language: Vocabulary
    grammar: TokenGrammar | None
    rng: np.random.Generator
    temperature: float

    def next(self, one: _Drawn, scores: Floats) -> int | None:
        """Sample the next token of an answer; None if the answer is complete."""
        grammar = self.grammar
        allowed = list(self.language.words if grammar is None else grammar.after(one.words))
        among = np.array(self.language.encode(allowed))
        logs = _logs(scores[among])
        while allowed:
            at = self._pick(logs)
            words = [*one.words, allowed[at]]
            ended = grammar is not None and not grammar.after(words)
            if not ended or grammar is None or grammar.ends(words):
                one.words, one.likelihood, one.complete = words, one.likelihood + float(logs[at]), ended
                return None if ended else int(among[at])
            among, logs = np.delete(among, at), np.delete(logs, at)
            del allowed[at]
        return None

    def _pick(self, logs: Floats) -> int:
        """Sample a token by the Gumbel-max trick (Gumbel 1954)."""
        if self.temperature <= 0:
            return int(logs.argmax())
        return int((logs / self.temperature + self.rng.gumbel(size=len(logs))).argmax())


def _go_on(state: DecoderState, going: list[int], chosen: list[int]) -> None:
    if going:
        if len(going) < len(state.scores):
            state.keep(going)
        state.push(np.array(chosen)[:, None])


def _logs(scores: Floats) -> Floats:
    """Return log-softmax of logits."""
    logs = scores - scores.max()
    return logs - np.log(np.exp(logs).sum())
