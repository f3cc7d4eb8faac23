"""Sampler of answers, token by token under a grammar, and the grammar of program edits."""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from compiler.codegen.semaphores import Issued
from compiler.llm.model.numpy_transformer import Floats
from compiler.llm.tokens.integer_tokens import LONG, MINUS, decode_single_number, encode_number
from compiler.llm.tokens.program_tokens import MAX_EDITS, MOVE, SPLIT, edit_of, index_from_nearer_end
from compiler.llm.tokens.schedule_delta import END
from compiler.llm.tokens.vocabulary import Vocabulary
from compiler.tuning.edits.edit import (
    MAX_DIMS,
    MAX_RUN,
    Dim,
    Edit,
    apply_edits,
    dims_of,
    move_range,
    must_precede,
    resolve_index,
    split,
)
from hw.config import MlaConfig


class DecoderState(Protocol):
    """Decoding state of several continuations of equal length, for example `numpy_transformer.TransformerState`."""

    @property
    def scores(self) -> Floats:
        """Logits of the next token, shape (continuations, vocabulary size)."""
        ...

    @property
    def full(self) -> bool:
        """True if the context has no room for another token."""
        ...

    def fork(self, count: int) -> "DecoderState":
        """Return a state with `count` copies of the single continuation."""
        ...

    def select(self, which: Sequence[int]) -> None:
        """Select continuations by index and drop the others."""
        ...

    def push(self, tokens: NDArray[np.integer]) -> None:
        """Append tokens to every continuation; shape (continuations, tokens)."""
        ...


class TokenReader(Protocol):
    """Autoregressive model, for example `numpy_transformer.Gpt`."""

    def read(self, tokens: Sequence[int]) -> DecoderState:
        """Return the decoding state after a prompt; raise ValueError if the prompt exceeds the context."""
        ...


class TokenGrammar(Protocol):
    """Grammar that determines the valid next tokens of an answer."""

    def after(self, tokens: Sequence[str]) -> Sequence[str]:
        """Return the tokens that may follow; empty if the answer is complete."""
        ...

    def ends(self, tokens: Sequence[str]) -> bool:
        """Return whether a complete answer is accepted; if not, its last token is sampled again."""
        ...


#: Function of an answer so far and the allowed next tokens, with values that are added to their logits.
WordWeigher = Callable[[Sequence[str], Sequence[str]], Floats]


@dataclass(frozen=True)
class SampledAnswer:
    """Answer sampled from the model.

    Parameters
    ----------
    tokens : tuple of str
        Tokens of the answer; truncated if the context was full.
    likelihood : float
        Log probability of the answer under the model, renormalized over the tokens that the grammar allows.
    complete : bool
        True if the grammar ended the answer, False if the context was full.
    """

    tokens: tuple[str, ...]
    likelihood: float
    complete: bool


def draw(
    model: TokenReader,
    language: Vocabulary,
    prompt: Sequence[str],
    grammar: TokenGrammar | None,
    count: int,
    rng: np.random.Generator,
    temperature: float = 1.0,
    weigh: WordWeigher | None = None,
) -> list[SampledAnswer]:
    """Sample answers to a prompt.

    Parameters
    ----------
    model, language : TokenReader, Vocabulary
        Model to sample from, and its vocabulary.
    prompt : sequence of str
        Tokens of the prompt.
    grammar : TokenGrammar or None
        Grammar that masks invalid tokens; if None, all tokens are allowed, and answers end when the context is full.
    count : int
        Number of answers to sample.
    rng : numpy.random.Generator
        Random generator for the samples.
    temperature : float
        Softmax temperature: 1 samples from the model's distribution, 0 selects the most likely token.
    weigh : callable or None
        Function that returns what is added to the logits of the allowed tokens, given the answer so far and these
        tokens; None: nothing is added.

    Raises
    ------
    ValueError
        The prompt is longer than the context.
    """
    state = model.read(language.encode(prompt)).fork(count)
    sampler = _TokenSampler(language, grammar, rng, temperature, weigh)
    drawn = [_PartialAnswer() for _ in range(count)]
    open_ = list(range(count))
    while open_:
        rows, chosen = [], []
        for row, number in enumerate(open_):
            token = None if state.full else sampler.next(drawn[number], state.scores[row])
            if token is not None:
                rows.append(row)
                chosen.append(token)
        open_ = [open_[row] for row in rows]
        _push(state, rows, chosen)
    return [SampledAnswer(tuple(each.tokens), each.likelihood, each.complete) for each in drawn]


@dataclass
class _PartialAnswer:
    """Partially sampled answer."""

    tokens: list[str] = field(default_factory=list)
    likelihood: float = 0.0
    complete: bool = False


@dataclass(frozen=True)
class _TokenSampler:
    """Sampler of the next token of an answer."""

    language: Vocabulary
    grammar: TokenGrammar | None
    rng: np.random.Generator
    temperature: float
    weigh: WordWeigher | None

    def next(self, answer: _PartialAnswer, scores: Floats) -> int | None:
        """Sample and append the next token of an answer; return its id, or None if the answer has ended."""
        grammar = self.grammar
        allowed = list(self.language.tokens if grammar is None else grammar.after(answer.tokens))
        among = np.array(self.language.encode(allowed))
        found = scores[among] if self.weigh is None else scores[among] + self.weigh(answer.tokens, allowed)
        logs = log_softmax(found)
        while allowed:
            at = self._pick(logs)
            tokens = [*answer.tokens, allowed[at]]
            ended = grammar is not None and not grammar.after(tokens)
            if not ended or grammar is None or grammar.ends(tokens):
                answer.tokens, answer.likelihood, answer.complete = (
                    tokens,
                    answer.likelihood + float(logs[at]),
                    ended,
                )
                return None if ended else int(among[at])
            among, logs = np.delete(among, at), np.delete(logs, at)
            del allowed[at]
        return None

    def _pick(self, logs: Floats) -> int:
        """Sample a token by the Gumbel-max trick (Gumbel 1954)."""
        if self.temperature <= 0:
            return int(logs.argmax())
        return int((logs / self.temperature + self.rng.gumbel(size=len(logs))).argmax())


def _push(state: DecoderState, rows: list[int], chosen: list[int]) -> None:
    """Append the chosen tokens to the continuations in `rows`, and drop the others."""
    if rows:
        if len(rows) < len(state.scores):
            state.select(rows)
        state.push(np.array(chosen)[:, None])


def log_softmax(scores: Floats) -> Floats:
    """Return the log-softmax of logits."""
    logs = scores - scores.max()
    return logs - np.log(np.exp(logs).sum())


#: Fractions of a command, in eighths, for the first part of a split.
_EIGHTHS = range(1, 8)
_ALL = sum(1 << each for each in _EIGHTHS)
_encode_number = lru_cache(1 << 14)(encode_number)


class EditsGrammar:
    """Grammar of the edit sequences that a program allows.

    Complete sequences must be new and must change the program.

    States after edit prefixes are cached, since answers share prefixes.

    Parameters
    ----------
    config : MlaConfig
        Hardware configuration of the programs.
    commands : sequence of Issued
        Commands of the program, in issue order.
    tried : collection of tuples of Edit
        Edit sequences to exclude; may be extended between answers.
    """

    def __init__(self, config: MlaConfig, commands: Sequence[Issued], tried: Collection[Hashable] = ()):
        self.tried = tried
        self._known = _CommandCache(config)
        self._states: dict[tuple[Edit, ...], _State] = {(): _State(self._known, list(commands))}

    @property
    def satisfiable(self) -> bool:
        """True if the program allows any edit."""
        return bool(self.after(()))

    def after(self, tokens: Sequence[str]) -> tuple[str, ...]:
        """Return the tokens that may follow a prefix; empty if the answer is complete."""
        edits, head, rest = _read(tokens)
        if head == END:
            return ()
        state = self._state(edits)
        if head is None:
            heads = (
                [token for token in (SPLIT, MOVE) if state.choices(token, ())]
                if len(edits) < MAX_EDITS
                else []
            )
            return (*heads, *([END] if edits else []))
        numbers, part = _numbers(rest)
        return state.toward(head, numbers, part)

    def ends(self, tokens: Sequence[str]) -> bool:
        """Return whether a complete edit sequence is new and changes the program."""
        edits, _, _ = _read(tokens)
        return edits not in self.tried and self._state(edits).commands != self._states[()].commands

    def _state(self, edits: tuple[Edit, ...]) -> "_State":
        if edits not in self._states:
            self._states[edits] = self._state(edits[:-1]).after(edits[-1])
        return self._states[edits]


class _CommandCache:
    """Cache of those properties of commands and command pairs that do not depend on the program."""

    def __init__(self, config: MlaConfig):
        self.config = config
        self._parts: dict[Issued, list[int]] = {}
        self._ordered: dict[tuple[Issued, Issued], bool] = {}

    def parts(self, command: Issued) -> list[int]:
        """Return, for each dimension, a bit mask of the eighths at which a command can be split."""
        if command not in self._parts:
            dims = dims_of(command, self.config.n)[:MAX_DIMS]
            self._parts[command] = [_eighths(command, dim) for dim in dims]
        return self._parts[command]

    def ordered(self, first: Issued, second: Issued) -> bool:
        """Return whether the first command must be issued before the second."""
        if (first, second) not in self._ordered:
            self._ordered[first, second] = must_precede(self.config, first, second)
        return self._ordered[first, second]


def _eighths(command: Issued, dim: Dim) -> int:
    """Return the bit mask of valid split points.

    Field values are linear in the split point: if both extremes are valid, all points are valid.
    """
    if all(_splits(command, dim, each) for each in (_EIGHTHS[0], _EIGHTHS[-1])):
        return _ALL
    return sum(1 << each for each in _EIGHTHS if _splits(command, dim, each))


def _splits(command: Issued, dim: Dim, eighths: int) -> bool:
    try:
        split(command, dim, eighths)
    except ValueError:
        return False
    return True


class _State:
    """Program state after a prefix of edits."""

    def __init__(self, known: _CommandCache, commands: list[Issued]):
        self.known, self.commands = known, commands
        self._choices: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        self._next: dict[tuple[str, tuple[int, ...]], dict[tuple[str, ...], dict[str, None]]] = {}

    def after(self, edit: Edit) -> "_State":
        """Return the state after one more edit."""
        return _State(self.known, apply_edits(self.known.config, self.commands, [edit]))

    def toward(self, head: str, numbers: tuple[int, ...], part: Sequence[str]) -> tuple[str, ...]:
        """Return the tokens that may follow `part`, the partially written number after the numbers of an edit."""
        if (head, numbers) not in self._next:
            self._next[head, numbers] = _continuations(self.choices(head, numbers))
        return tuple(self._next[head, numbers].get(tuple(part), ()))

    def choices(self, head: str, numbers: tuple[int, ...]) -> list[int]:
        """Return the valid values of the next number of an edit."""
        if (head, numbers) not in self._choices:
            self._choices[head, numbers] = list(self._found(head, numbers))
        return self._choices[head, numbers]

    def _found(self, head: str, numbers: tuple[int, ...]) -> Iterable[int]:
        count = len(self.commands)
        if not numbers:
            positions = self._splits() if head == SPLIT else self._moves()
            return (index_from_nearer_end(at, count) for at in positions)
        at = resolve_index(numbers[0], count)
        if head == MOVE:
            return (step for step in move_range(self.known.config, self.commands, at) if step)
        if len(numbers) == 1:
            return (run for run in range(1, min(MAX_RUN, count - at) + 1) if any(self._dims(at, run)))
        dims = self._dims(at, numbers[1])
        if len(numbers) == 2:
            return (number for number, eighths in enumerate(dims) if eighths)
        return (each for each in _EIGHTHS if dims[numbers[2]] >> each & 1)

    def _splits(self) -> Iterator[int]:
        """Yield the positions at which a run of commands that can be split may start, in ascending order."""
        distance, may = MAX_RUN, False
        found = []
        for at in range(len(self.commands) - 1, -1, -1):
            parts = self.known.parts(self.commands[at])
            distance, may = (0, any(parts)) if parts else (distance + 1, may)
            if may and distance < MAX_RUN:
                found.append(at)
        return reversed(found)

    def _dims(self, at: int, run: int) -> list[int]:
        """Return, for each dimension, a bit mask of the eighths at which all commands of a run can be split."""
        each = [parts for command in self.commands[at : at + run] if (parts := self.known.parts(command))]
        out = []
        for number in range(max(map(len, each), default=0)):
            eighths = _ALL
            for parts in each:
                eighths &= parts[min(number, len(parts) - 1)]
            out.append(eighths)
        return out

    def _moves(self) -> Iterator[int]:
        """Yield the positions of commands that can be exchanged with an adjacent command."""
        free = [
            not self.known.ordered(first, second)
            for first, second in zip(self.commands, self.commands[1:], strict=False)
        ]
        return (at for at in range(len(self.commands)) if any(free[max(at - 1, 0) : at + 1]))


def _continuations(numbers: Iterable[int]) -> dict[tuple[str, ...], dict[str, None]]:
    """Return the tokens that may follow each proper prefix of the numbers' token sequences."""
    out: dict[tuple[str, ...], dict[str, None]] = {}
    for number in numbers:
        tokens = tuple(_encode_number(number))
        for at, token in enumerate(tokens):
            out.setdefault(tokens[:at], {})[token] = None
    return out


def _read(tokens: Sequence[str]) -> tuple[tuple[Edit, ...], str | None, Sequence[str]]:
    """Split tokens into complete edits, the first token of an incomplete edit (or the end token), and the rest."""
    edits: list[Edit] = []
    at = 0
    while at < len(tokens):
        head = tokens[at]
        numbers, part = _numbers(tokens[at + 1 :], 4 if head == SPLIT else 2)
        if head == END or len(numbers) < (4 if head == SPLIT else 2):
            return tuple(edits), head, tokens[at + 1 :]
        edits.append(edit_of(head, numbers))
        at = len(tokens) - len(part)
    return tuple(edits), None, ()


def _numbers(tokens: Sequence[str], maximum: int = 4) -> tuple[tuple[int, ...], Sequence[str]]:
    """Parse up to `maximum` complete numbers, and return them with the remaining tokens."""
    out: list[int] = []
    at = 0
    while len(out) < maximum and at < len(tokens):
        sign = tokens[at] == MINUS
        first = tokens[at + 1] if sign and at + 1 < len(tokens) else tokens[at]
        end = at + sign + 1 + (int(first[1:]) if first in LONG else 0)
        if end > len(tokens):
            break
        out.append(decode_single_number(tokens[at:end]))
        at = end
    return tuple(out), tokens[at:]
