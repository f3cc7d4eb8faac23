"""Grammar of programs for constrained decoding: decoding state and mask of valid next tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from compiler.llm.assembly.abstract_machine import SEMAPHORES_PER_CONSUMER, AbstractMachine, ProgramTracker
from compiler.llm.assembly.limits import ProgramLimits
from compiler.llm.assembly.operands import Values
from compiler.llm.assembly.parser import ProgramParser
from compiler.llm.assembly.program_completer import (
    FENCE,
    HALT,
    LEAVE,
    Completion,
    Counts,
    ProgramCompleter,
    semaphore_index,
)
from compiler.llm.tokens.assembly_tokens import (
    ANY_HEAD,
    ANY_SELECTOR,
    END,
    GROUPS,
    HEAD_OF,
    HEADS,
    NAME_OF,
    SELECTORS,
    SEMAPHORE_GROUPS,
    SEMAPHORES,
    STOP,
    TOKENS,
    TokenChoice,
)
from compiler.llm.tokens.integer_tokens import BYTES
from compiler.llm.tokens.integer_tokens import TOKENS as NUMBERS
from compiler.llm.tokens.vocabulary import Vocabulary
from cosim.semantics.instruction import decode_instruction
from hw.errors import InputError
from hw.isa.enums import SEMAPHORE_MAX, SEMAPHORES_PER_PAIR, SEQUENCER, Unit
from hw.isa.micro_instruction import OPERAND_BASE, REGISTERS, STATISTIC_BASE, MicroOp
from hw.isa.program import Program


def _bits(mask: int) -> list[int]:
    return [number for number in range(mask.bit_length()) if mask >> number & 1]


@dataclass(frozen=True)
class PendingIssue:
    """`issue` instruction whose semaphores are being named.

    Parameters
    ----------
    tracker : ProgramTracker
        Abstract machine before the instruction.
    unit : Unit
        Unit of the command.
    values : dict
        Bit masks of waits and signals written so far.
    """

    tracker: ProgramTracker
    unit: Unit
    values: Values

    @property
    def _wait_mask(self) -> int:
        return self.values.get("wait", 0)

    @property
    def legal(self) -> bool:
        """True if the command is legal and free of races with the waits written so far."""
        return self.tracker.may_issue(self.unit, self._wait_mask)

    def counts(self) -> tuple[int, ...]:
        """Return the counts of all semaphores if the instruction ends here."""
        out = list(self.tracker.counts)
        for number in _bits(self._wait_mask):
            out[SEMAPHORES_PER_CONSUMER * self.unit + number] -= 1
        for number in _bits(self.values.get("signal", 0)):
            out[self._semaphore_of_signal(number)] += 1
        return tuple(out)

    def _semaphore_of_signal(self, number: int) -> int:
        """Return the index of a signal's semaphore among all counts."""
        return semaphore_index(self.unit, number // SEMAPHORES_PER_PAIR, number % SEMAPHORES_PER_PAIR)

    def tokens(self, kind: str, start: int, completer: ProgramCompleter, room: int) -> list[str]:
        """Return the tokens of waits or signals that allow a legal command and a valid completion.

        Parameters
        ----------
        kind : str
            Type of the tokens, "wait" or "signal".
        start : int
            Index of the first semaphore.
        completer : ProgramCompleter
            Generator of completions.
        room : int
            Number of tokens, and of instructions, by which the completion may grow.
        """
        if kind == "wait":
            found = self._waits(start, completer, room)
        else:
            found = self._signals(start, completer) if room >= completer.max_tokens_per_signal else []
        return [SEMAPHORES[kind][number] for number in found]

    def _waits(self, start: int, completer: ProgramCompleter, room: int) -> list[int]:
        available = self.tracker.available(self.unit)
        if room < completer.max_tokens_per_signal:
            spare = available & ~completer.needed(self.tracker.counts, self.unit)
            if self.tracker.may_issue(self.unit, self._wait_mask | spare >> start << start):
                available = spare
        numbers = [number for number in _bits(available) if number >= start]
        if self.legal:
            return numbers
        return [number for number in numbers if self._enables(number, available)]

    def _enables(self, number: int, available: int) -> bool:
        """Return whether the command is legal after this wait and all possible later waits."""
        return self.tracker.may_issue(self.unit, self._wait_mask | available >> number << number)

    def _signals(self, start: int, completer: ProgramCompleter) -> list[int]:
        if not self.legal:
            return []
        counts = self.counts()
        return [
            number
            for number in range(start, len(SEMAPHORES["signal"]))
            if counts[self._semaphore_of_signal(number)] < SEMAPHORE_MAX
            and number // SEMAPHORES_PER_PAIR in (*completer.rounds, SEQUENCER)
        ]


_ISSUES = {unit: HEAD_OF[MicroOp.ISSUE, int(unit)].token for unit in Unit}
_LOOP = HEAD_OF[MicroOp.LOOP, 0].token


class NextTokenMask:
    """Mask of valid next tokens after a prefix of a program.

    Parameters
    ----------
    grammar : AssemblyGrammar
        Grammar of the program.
    parser : ProgramParser
        Parser with the tokens written so far.
    tracker : ProgramTracker or None
        Abstract machine after the last complete instruction; None if there is no hardware configuration.
    left : int
        Remaining token budget.
    forced : list of str
        Tokens that must follow, if any: all remaining tokens of a completion once the completion is forced.
    """

    def __init__(
        self,
        grammar: "AssemblyGrammar",
        parser: ProgramParser,
        tracker: ProgramTracker | None,
        left: int,
        forced: list[str],
    ):
        self.forced = forced
        self._grammar, self._parser, self._tracker = grammar, parser, tracker
        self._limits = grammar.limits
        self._left = left
        self._preview: tuple[int, ProgramTracker] | None = None

    @cached_property
    def mask(self) -> np.ndarray:
        """Mask of valid next tokens."""
        grammar, parser = self._grammar, self._parser
        if parser.done:
            return grammar.empty_mask
        if self.forced:
            return grammar.group(self.forced[0])
        out = np.zeros(len(grammar.vocabulary), bool)
        if parser.head:
            for choice, later in parser.choices():
                if 1 + choice.cost + later <= self._token_budget:
                    self._add(out, choice)
        if not parser.head or (parser.ends and (self._issue is None or self._issue.legal)):
            boundary = self._boundary()
            if not boundary.any():
                self.forced = list(self._completion.tokens)
                boundary = grammar.group(self.forced[0])
            out |= boundary
        out.flags.writeable = False
        return out

    def after(self, word: int) -> ProgramTracker | None:
        """Return the abstract machine after an instruction if the mask has computed it; otherwise None."""
        return self._preview[1] if self._preview and self._preview[0] == word else None

    # Completion that is always available.

    @cached_property
    def _completion(self) -> Completion:
        """Completion that may follow the current instruction."""
        return self._end(self._may_stop)

    @cached_property
    def _reserve(self) -> Completion:
        """Completion for which tokens are reserved if other instructions precede it."""
        return self._end(self._may_stop and not self._limits.jumps)

    def _end(self, may_stop: bool) -> Completion:
        """Return a completion that may follow the current instruction.

        Parameters
        ----------
        may_stop : bool
            True if the program may end with the instructions written so far.
        """
        parser, tracker = self._parser, self._tracker
        opens = parser.opens
        empty = opens or (not parser.head and parser.empty)
        loops = len(parser.loops) + opens
        # With a hardware configuration a `break` instruction ends loops, and another instruction must end the program.
        position = empty, loops, may_stop and not (loops and self._limits.config)
        if tracker is None or tracker.unknown or self._only_stop:
            return self._grammar.completion(*position, None)
        preferred = self._grammar.completion(
            *position, self._issue.counts() if self._issue else tracker.counts
        )
        return preferred if self._fits(preferred) else self._grammar.completion(*position, None)

    def _fits(self, completion: Completion) -> bool:
        """Return whether a completion fits the instructions and tokens that remain after the current instruction."""
        enough = self._written + completion.instructions <= self._limits.instructions
        return enough and len(completion.tokens) <= self._left

    @property
    def _written(self) -> int:
        """Number of instructions written so far, including the current one."""
        return len(self._parser.words) + bool(self._parser.head)

    @property
    def _only_stop(self) -> bool:
        """True if only the stop token can follow."""
        return bool(self._limits.config) and not self._limits.jumps and self._halted

    @property
    def _halted(self) -> bool:
        """True if the code after the last instruction is reachable only by a jump."""
        if self._parser.head or not self._parser.words:
            return False
        op, _, a, b, _ = decode_instruction(self._parser.words[-1])
        return op in (MicroOp.HALT, MicroOp.RET) or (op is MicroOp.BEQ and a == b < REGISTERS)

    @property
    def _may_stop(self) -> bool:
        """True if the program may end after the current instruction, provided that no loop is open."""
        return self._halted if self._limits.config else self._written > 0

    @cached_property
    def _token_budget(self) -> int:
        """Number of tokens that may precede the completion."""
        return self._left - len(self._reserve.tokens)

    @cached_property
    def _instruction_budget(self) -> int:
        """Number of instructions that may precede the completion."""
        return self._limits.instructions - self._written - self._reserve.instructions

    # Tokens within an instruction.

    @cached_property
    def _issue(self) -> PendingIssue | None:
        head = self._parser.head
        if self._tracker and not self._tracker.unknown and head and head.op is MicroOp.ISSUE:
            return PendingIssue(self._tracker, Unit(head.d), self._parser.values)
        return None

    def _add(self, out: np.ndarray, choice: TokenChoice) -> None:
        """Add a choice within the instruction to the mask."""
        grammar, option = self._grammar, choice.option
        if isinstance(option, tuple):
            out[grammar.bytes[option[0] : option[1] + 1]] = True
        elif option == ANY_SELECTOR:
            out |= grammar.selectors(self._tracker, self._parser.opens)
        elif self._issue and grammar.completer and option in SEMAPHORE_GROUPS:
            kind, start = SEMAPHORE_GROUPS[option]
            room = min(self._token_budget - 1, self._instruction_budget)
            out |= grammar.mask_of(self._issue.tokens(kind, start, grammar.completer, room))
        else:
            out |= grammar.group(option)

    # Tokens between instructions.

    @cached_property
    def tracker_after(self) -> ProgramTracker | None:
        """Abstract machine after the current instruction, if it ends here; None without a hardware configuration."""
        parser, before = self._parser, self._tracker
        if parser.head is None or before is None:
            return before
        word = parser.word
        if parser.opens:
            return before.opened(word)
        self._preview = word, before.after(word)
        return self._preview[1]

    def _boundary(self) -> np.ndarray:
        """Return the mask of tokens after the current instruction; empty if only the completion may follow."""
        grammar, parser = self._grammar, self._parser
        depth = len(parser.loops) + parser.opens
        if self._only_stop and not depth:
            return grammar.group(STOP)
        if self._token_budget <= 0:
            return grammar.empty_mask
        out = (
            grammar.heads(self._token_budget) if self._instruction_budget > 0 else grammar.empty_mask
        ).copy()
        if self._limits.config:
            out &= grammar.all_except(tuple(self._rejected(depth)))
        if self._instruction_budget < grammar.loop_instructions:
            out &= grammar.all_except((_LOOP,))
        if parser.loops and not parser.opens and (parser.head or not parser.empty) and self._closes:
            out |= grammar.group(END)
        if not depth and self._may_stop:
            out |= grammar.group(STOP)
        return out

    @property
    def _closes(self) -> bool:
        """True if the innermost loop can be closed and a completion still fits after it."""
        tracker = self.tracker_after
        if tracker is None or tracker.unknown:
            return True
        closed = tracker.closed()
        rest = self._grammar.completion(False, len(self._parser.loops) - 1, False, closed.counts)
        return not closed.unsafe and len(rest.tokens) < self._left and self._fits(rest)

    def _rejected(self, depth: int) -> list[str]:
        """Return the first tokens of instructions that are not allowed in the current state."""
        config, tracker = self._limits.config, self.tracker_after
        assert config and tracker and self._grammar.completer
        out = [_LOOP] if depth >= config.loop_depth else []
        preferred = tracker.unknown or tracker.counts == self._grammar.completer.goal
        if not self._limits.jumps and (depth or not preferred):
            out.append(HALT)
        if tracker.unknown:
            return out
        completer = self._grammar.completer
        for unit, token in _ISSUES.items():
            waits = tracker.available(unit)
            needed = waits & completer.needed(tracker.counts, unit)
            # A wait for a token that is to be left makes the completion longer.
            room = min(self._token_budget - 1 - waits.bit_count(), self._instruction_budget - 1)
            if needed and room < completer.max_tokens_per_signal * needed.bit_count():
                waits &= ~needed
            if 1 + waits.bit_count() > self._token_budget or not tracker.may_issue(unit, waits):
                out.append(token)
        unavailable = ~tracker.available(SEQUENCER)
        if min(self._token_budget - 1, self._instruction_budget - 1) < completer.max_tokens_per_signal:
            unavailable |= completer.needed(tracker.counts, SEQUENCER)
        return out + [token for number, token in self._grammar.semaphore_waits if unavailable >> number & 1]


class GrammarState:
    """Decoding state: tokens written so far, and the mask of valid next tokens.

    Parameters
    ----------
    grammar : AssemblyGrammar
        Grammar of the program.

    Attributes
    ----------
    left : int
        Remaining token budget.
    """

    def __init__(self, grammar: "AssemblyGrammar"):
        self.grammar = grammar
        self.left = grammar.limits.tokens
        self._parser = ProgramParser(grammar.rules, self)
        self._tracker = grammar.tracker
        self._next_mask: NextTokenMask | None = None
        self._forced: list[str] = []

    @property
    def done(self) -> bool:
        """True if the program is complete; no token may follow."""
        return self._parser.done

    @property
    def instructions(self) -> int:
        """Number of complete micro-instructions."""
        return len(self._parser.words)

    @property
    def before(self) -> ProgramTracker:
        """Abstract machine after the last complete instruction; requires a hardware configuration."""
        assert self._tracker
        return self._tracker

    @property
    def tracker_after(self) -> ProgramTracker:
        """Abstract machine after the current instruction, if the instruction may end here; requires a configuration."""
        assert self._mask_state.tracker_after
        return self._mask_state.tracker_after

    def program(self, name: str) -> Program:
        """Return the program; raise ValueError if it is incomplete."""
        if not self.done:
            raise ValueError(f"the program does not end with {STOP!r} yet")
        return Program(name, tuple(self._parser.words))

    @property
    def mask(self) -> np.ndarray:
        """Mask of valid next tokens, bool (vocabulary size,); all False if and only if `done`.

        The array is read-only.
        """
        return self._mask_state.mask

    @property
    def _mask_state(self) -> NextTokenMask:
        if self._next_mask is None:
            self._next_mask = NextTokenMask(
                self.grammar, self._parser, self._tracker, self.left, self._forced
            )
        return self._next_mask

    def advance(self, number: int) -> None:
        """Append a token by its id.

        Raises
        ------
        ValueError
            The token is not valid here.
        """
        token, state = self.grammar.vocabulary.tokens[number], self._mask_state
        if not state.mask[number]:
            raise ValueError(f"{token!r} is not a valid next token")
        self._forced = state.forced[1:] if state.forced and state.forced[0] == token else []
        self._parser.accept(token)
        self.left -= 1
        self._next_mask = None

    # Listener of the parser.

    @property
    def iterations(self) -> int:
        """Product of the iteration counts of the open loops, as far as known."""
        return self._tracker.iterations if self._tracker else 1

    def execute(self, word: int) -> None:
        """Handle a complete instruction."""
        if self._tracker:
            self._tracker = self._mask_state.after(word) or self._tracker.after(word)

    def open(self, word: int) -> None:
        """Handle the start of a loop."""
        if self._tracker:
            self._tracker = self._tracker.opened(word)

    def close(self) -> None:
        """Handle the end of a loop."""
        if self._tracker:
            self._tracker = self._tracker.closed()


#: Upper bound on the number of tokens of an instruction.
_MAX_INSTRUCTION_TOKENS = 12
#: Maximum number of entries of the caches of masks and completions.
_CACHE_ENTRIES = 1 << 12
Mask = np.ndarray
Key, Value = TypeVar("Key"), TypeVar("Value")


class AssemblyGrammar:
    """Token grammar of micro-programs.

    Parameters
    ----------
    vocabulary : Vocabulary
        Vocabulary of the model, which must include all assembly and number tokens.
    limits : ProgramLimits
        Limits of the programs.

    Raises
    ------
    InputError
        The vocabulary lacks a token, or the limits are inconsistent.
    ValidationError
        A call that precedes the program is not safe.
    """

    def __init__(self, vocabulary: Vocabulary, limits: ProgramLimits):
        for token in (*TOKENS, *NUMBERS):
            if token not in vocabulary:
                raise InputError(f"the vocabulary must contain the token {token!r}")
        self.vocabulary, self.limits, self.rules = vocabulary, limits, limits.rules
        self.tracker = (
            ProgramTracker(AbstractMachine.at_start(limits), limits.jumps) if limits.config else None
        )
        #: Tokens that leave a loop.
        self.leave = LEAVE if limits.config else (END,)
        #: Minimum number of instructions of a loop, including the loop instruction and one in its body.
        self.loop_instructions = 2 + Completion.from_tokens(self.leave).instructions
        self.completer = ProgramCompleter(limits, self.tracker) if self.tracker else None
        self._selectors: dict[tuple, Mask] = {}
        self._completions: dict[tuple, Completion] = {}
        self._complements: dict[tuple[str, ...], Mask] = {}
        #: First tokens of `wait` instructions with the indices of their semaphores.
        self.semaphore_waits = [(head.d, token) for token, head in HEADS.items() if head.op is MicroOp.WAIT]
        self.empty_mask = self.mask_of(())
        self.bytes = np.array(vocabulary.encode(BYTES))
        groups = self.rules.groups
        self._groups = {name: self.mask_of(tokens) for name, tokens in groups.items()}
        self._token_masks = {token: self.mask_of([token]) for token in (*TOKENS, *NUMBERS)}
        needs = np.full(len(vocabulary), _MAX_INSTRUCTION_TOKENS + 1)
        for token in groups[ANY_HEAD]:
            needs[vocabulary.number(token)] = self._need(token)
        self._heads = [needs <= room for room in range(_MAX_INSTRUCTION_TOKENS + 1)]

    def start(self) -> GrammarState:
        """Return the state at the start of a program."""
        return GrammarState(self)

    def mask_of(self, tokens: Sequence[str]) -> Mask:
        """Return the read-only mask of the given tokens."""
        mask = np.zeros(len(self.vocabulary), bool)
        mask[self.vocabulary.encode(tokens)] = True
        mask.flags.writeable = False
        return mask

    def group(self, name: str) -> Mask:
        """Return the mask of a token group or a single token."""
        return self._groups[name] if name in GROUPS else self._token_masks[name]

    def completion(self, empty: bool, loops: int, may_stop: bool, counts: Counts | None) -> Completion:
        """Return the completion for a position in a program.

        Parameters
        ----------
        empty : bool
            True if the innermost loop has no instruction yet.
        loops : int
            Number of open loops.
        may_stop : bool
            True if the program may end without a further `halt` instruction.
        counts : sequence of int or None
            Counts of all semaphores; None to leave the counts unchanged.
        """

        def make() -> Completion:
            drained = self.completer.tokens(counts) if self.completer and counts is not None else []
            last = [STOP] if may_stop else [HALT, STOP]
            return Completion.from_tokens([*[FENCE] * empty, *self.leave * loops, *drained, *last])

        return _cached(self._completions, (empty, loops, may_stop, counts), make)

    def all_except(self, tokens: tuple[str, ...]) -> Mask:
        """Return the mask of all tokens except the given ones."""
        return _cached(self._complements, tokens, lambda: ~self.mask_of(tokens))

    def heads(self, room: int) -> Mask:
        """Return the mask of first tokens of instructions that need at most `room` tokens."""
        return self._heads[max(0, min(room, _MAX_INSTRUCTION_TOKENS))]

    def selectors(self, tracker: ProgramTracker | None, count: bool) -> Mask:
        """Return the mask of selectors that a program may read, excluding register 0.

        Parameters
        ----------
        tracker : ProgramTracker or None
            Abstract machine; None if there is no hardware configuration.
        count : bool
            True to return only selectors that may be iteration counts.
        """
        if tracker is None:
            return self.group(ANY_SELECTOR)
        registers = tracker.written if self.limits.written else -1

        def make() -> Mask:
            numbers = [
                *(number for number in range(1, REGISTERS) if registers >> number & 1),
                *(OPERAND_BASE + number for number in range(len(self.limits.operands))),
                *(STATISTIC_BASE + each for each in tracker.statistics),
            ]
            return self.mask_of([NAME_OF[number] for number in numbers])

        readable = _cached(self._selectors, (tracker.statistics, registers), make)
        if not count or tracker.unknown:
            return readable
        # The number that is added to the selector may be equally large.
        maximum = self.rules.max_iterations(tracker.iterations) // 2
        counts = [token for token, number in SELECTORS.items() if tracker.is_iteration_count(number, maximum)]
        return readable & self.mask_of(counts)

    def _need(self, token: str) -> int:
        """Return the minimum number of tokens of an instruction; for a loop, including its body and end."""
        head = HEADS[token]
        operands = self.rules.operands(head, {}, 0, 1)
        return 1 + sum(each.need for each in operands) + (1 + len(self.leave)) * (head.op is MicroOp.LOOP)


def _cached(cache: dict[Key, Value], key: Key, make: Callable[[], Value]) -> Value:
    """Return the cached value of a key, computed on first use."""
    if key not in cache:
        if len(cache) >= _CACHE_ENTRIES:
            cache.clear()
        cache[key] = make()
    return cache[key]
