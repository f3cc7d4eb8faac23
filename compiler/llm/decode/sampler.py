"""Answers drawn from the model word by word, of those words that a grammar allows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from compiler.llm.model.numpy_transformer import Floats
from compiler.llm.tokens.vocabulary import Vocabulary


class DecoderState(Protocol):
    """Continuations of the same words, all of one length: `compiler.llm.model.numpy_transformer.TransformerState`, or the like."""

    @property
    def scores(self) -> Floats:
        """(continuations, words): of the next word of each, before softmax."""
        ...

    @property
    def full(self) -> bool:
        """Whether there is no room for another word."""
        ...

    def spread(self, count: int) -> "DecoderState":
        """As many continuations of what is one so far."""
        ...

    def keep(self, which: Sequence[int]) -> None:
        """Only some of the continuations from now on."""
        ...

    def push(self, words: NDArray[np.integer]) -> None:
        """Go on by some words of each continuation: (continuations, words)."""
        ...


class TokenReader(Protocol):
    """Whoever finds some words likelier than others to follow: `compiler.llm.model.numpy_transformer.Gpt`, or the like."""

    def read(self, words: Sequence[int]) -> DecoderState:
        """The state after some words; ValueError: too many."""
        ...


class TokenGrammar(Protocol):
    """Says which words an answer may go on with."""

    def after(self, words: Sequence[str]) -> Sequence[str]:
        """Words that may follow; none: the answer is complete."""
        ...

    def ends(self, words: Sequence[str]) -> bool:
        """Whether a complete answer is one that is wanted: if not, its last word is drawn anew."""
        ...


@dataclass(frozen=True)
class SampledAnswer:
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
    model: TokenReader,
    language: Vocabulary,
    question: Sequence[str],
    grammar: TokenGrammar | None,
    count: int,
    rng: np.random.Generator,
    temperature: float = 1.0,
) -> list[SampledAnswer]:
    """Answers to a question.

    Parameters
    ----------
    model, language : Reader, Vocabulary
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
    """An answer as far as it goes."""

    words: list[str] = field(default_factory=list)
    likelihood: float = 0.0
    complete: bool = False


@dataclass(frozen=True)
class _Drawer:
    """Draws words of answers."""

    language: Vocabulary
    grammar: TokenGrammar | None
    rng: np.random.Generator
    temperature: float

    def next(self, one: _Drawn, scores: Floats) -> int | None:
        """The next word of an answer, if it goes on behind that one."""
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
        """A word by chance: to add such numbers and take the greatest is to draw by likelihood (Gumbel 1954)."""
        if self.temperature <= 0:
            return int(logs.argmax())
        return int((logs / self.temperature + self.rng.gumbel(size=len(logs))).argmax())


def _go_on(state: DecoderState, going: list[int], chosen: list[int]) -> None:
    if going:
        if len(going) < len(state.scores):
            state.keep(going)
        state.push(np.array(chosen)[:, None])


def _logs(scores: Floats) -> Floats:
    """Logarithms of likelihoods."""
    logs = scores - scores.max()
    return logs - np.log(np.exp(logs).sum())
