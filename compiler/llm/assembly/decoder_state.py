"""Grammar-constrained decoding of programs: decoder state and next-token mask."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeVar

import numpy as np

from compiler.llm.assembly.abstract_machine import AbstractMachine, ProgramTracker
from compiler.llm.assembly.completion import FENCE, HALT, LEAVE, Completion, Counts, Endings
from compiler.llm.assembly.issue import PendingIssue
from compiler.llm.assembly.lexicon import END, HEAD_OF, HEADS, NAME_OF, SELECTORS, STOP, WORDS, TokenChoice
from compiler.llm.assembly.limits import ProgramLimits
from compiler.llm.assembly.parser import ProgramParser
from compiler.llm.assembly.token_groups import GROUPS, HEAD, SELECTOR, SEMAPHORE_GROUPS
from compiler.llm.tokens.integer_tokens import BYTES
from compiler.llm.tokens.integer_tokens import WORDS as NUMBERS
from compiler.llm.tokens.vocabulary import Vocabulary
from cosim.semantics.instruction import decode_instruction
from hw.errors import InputError
from hw.isa.enums import SEQUENCER, Unit
from hw.isa.micro_instruction import OPERAND_BASE, REGISTERS, STATISTIC_BASE, MicroOp
from hw.isa.program import Program

_ISSUES = {unit: HEAD_OF[MicroOp.ISSUE, int(unit)].word for unit in Unit}
_LOOP = HEAD_OF[MicroOp.LOOP, 0].word


class NextTokenMask:
    """Computes the mask of valid next tokens.

    Parameters
    ----------
    grammar : AssemblyGrammar
        Grammar of the program.
    reader : ProgramParser
        Parser with the tokens written so far.
    tracker : ProgramTracker or None
        Abstract machine after the last complete instruction, if there is a hardware configuration.
    left : int
        Remaining token budget.
    forced : list of str
        Tokens that must follow, if any; once a completion is forced, all of it.
    """

    def __init__(
        self,
        grammar: "AssemblyGrammar",
        reader: ProgramParser,
        tracker: ProgramTracker | None,
        left: int,
        forced: list[str],
    ):
        self.forced = forced
        self._grammar, self._reader, self._tracker = grammar, reader, tracker
        self._limits = grammar.limits
        self._left = left
        self._preview: tuple[int, ProgramTracker] | None = None

    @cached_property
    def mask(self) -> np.ndarray:
        """Return the mask of valid next tokens."""
        grammar, reader = self._grammar, self._reader
        if reader.done:
            return grammar.nothing
        if self.forced:
            return grammar.group(self.forced[0])
        out = np.zeros(len(grammar.vocabulary), bool)
        if reader.head:
            for choice, later in reader.choices():
                if 1 + choice.cost + later <= self._room:
                    self._add(out, choice)
        if not reader.head or (reader.ends and (self._issue is None or self._issue.legal)):
            boundary = self._boundary()
            if not boundary.any():
                self.forced = list(self._ending.words)
                boundary = grammar.group(self.forced[0])
            out |= boundary
        out.flags.writeable = False
        return out

    def after(self, word: int) -> ProgramTracker | None:
        """Return the machine after the now complete current instruction, if already computed."""
        return self._preview[1] if self._preview and self._preview[0] == word else None

    # Completion that is always available.

    @cached_property
    def _ending(self) -> Completion:
        """Return a completion after the current instruction, or at least one that closes it."""
        return self._end(self._may_stop)

    @cached_property
    def _reserve(self) -> Completion:
        """Return a completion to reserve tokens for if other instructions come first."""
        return self._end(self._may_stop and not self._limits.jumps)

    def _end(self, whole: bool) -> Completion:
        """Return a completion after the current instruction.

        Parameters
        ----------
        whole : bool
            True if the program may end with the instructions written so far.
        """
        reader, tracker = self._reader, self._tracker
        opens = reader.opens
        empty = opens or (not reader.head and reader.empty)
        loops = len(reader.loops) + opens
        # With a hardware configuration loops are left by an instruction, so that another one must end the program.
        place = empty, loops, whole and not (loops and self._limits.config)
        if tracker is None or tracker.lost or self._over:
            return self._grammar.ending(*place, None)
        proper = self._grammar.ending(*place, self._issue.counts() if self._issue else tracker.counts)
        return proper if self._fits(proper) else self._grammar.ending(*place, None)

    def _fits(self, ending: Completion) -> bool:
        """Return whether a completion fits the budget after the current instruction."""
        enough = self._written + ending.instructions <= self._limits.instructions
        return enough and len(ending.words) <= self._left

    @property
    def _written(self) -> int:
        """Return the number of instructions, including the current one."""
        return len(self._reader.words) + bool(self._reader.head)

    @property
    def _over(self) -> bool:
        """Return whether only the stop token can follow."""
        return bool(self._limits.config) and not self._limits.jumps and self._halted

    @property
    def _halted(self) -> bool:
        """Return whether the code after the last instruction is reachable only by a jump."""
        if self._reader.head or not self._reader.words:
            return False
        op, _, a, b, _ = decode_instruction(self._reader.words[-1])
        return op in (MicroOp.HALT, MicroOp.RET) or (op is MicroOp.BEQ and a == b < REGISTERS)

    @property
    def _may_stop(self) -> bool:
        """Return whether the program may end after the current instruction, not counting open loops."""
        return self._halted if self._limits.config else self._written > 0

    @cached_property
    def _room(self) -> int:
        """Return the number of tokens that may precede the completion."""
        return self._left - len(self._reserve.words)

    @cached_property
    def _more(self) -> int:
        """Return the number of instructions that may precede the completion."""
        return self._limits.instructions - self._written - self._reserve.instructions

    # Tokens within an instruction.

    @cached_property
    def _issue(self) -> PendingIssue | None:
        head = self._reader.head
        if self._tracker and not self._tracker.lost and head and head.op is MicroOp.ISSUE:
            return PendingIssue(self._tracker, Unit(head.d), self._reader.values)
        return None

    def _add(self, out: np.ndarray, choice: TokenChoice) -> None:
        """Add a choice within the instruction to the mask."""
        grammar, what = self._grammar, choice.what
        if isinstance(what, tuple):
            out[grammar.bytes[what[0] : what[1] + 1]] = True
        elif what == SELECTOR:
            out |= grammar.selectors(self._tracker, self._reader.opens)
        elif self._issue and grammar.endings and what in SEMAPHORE_GROUPS:
            kind, start = SEMAPHORE_GROUPS[what]
            if kind == "wait" or min(self._room - 1, self._more) >= grammar.endings.growth:
                out |= grammar.mask_of(self._issue.words(kind, start, grammar.endings))
        else:
            out |= grammar.group(what)

    # Tokens between instructions.

    @cached_property
    def behind(self) -> ProgramTracker | None:
        """Return the machine if the current instruction ends here."""
        reader, before = self._reader, self._tracker
        if reader.head is None or before is None:
            return before
        word = reader.word
        if reader.opens:
            return before.opened(word)
        self._preview = word, before.after(word)
        return self._preview[1]

    def _boundary(self) -> np.ndarray:
        """Return the mask of tokens after the instruction; empty if only the completion may follow."""
        grammar, reader = self._grammar, self._reader
        depth = len(reader.loops) + reader.opens
        if self._over and not depth:
            return grammar.group(STOP)
        if self._room <= 0:
            return grammar.nothing
        out = (grammar.heads(self._room) if self._more > 0 else grammar.nothing).copy()
        if self._limits.config:
            out &= grammar.but(tuple(self._refused(depth)))
        if self._more < grammar.loop_instructions:
            out &= grammar.but((_LOOP,))
        if reader.loops and not reader.opens and (reader.head or not reader.empty) and self._closes:
            out |= grammar.group(END)
        if not depth and self._may_stop:
            out |= grammar.group(STOP)
        return out

    @property
    def _closes(self) -> bool:
        """Return whether the innermost loop can be completed and the program then be ended."""
        tracker = self.behind
        if tracker is None or tracker.lost:
            return True
        closed = tracker.closed()
        rest = self._grammar.ending(False, len(self._reader.loops) - 1, False, closed.counts)
        return not closed.harm and len(rest.words) < self._left and self._fits(rest)

    def _refused(self, depth: int) -> list[str]:
        """Return the first tokens of instructions that the machine rejects now."""
        config, tracker = self._limits.config, self.behind
        assert config and tracker and self._grammar.endings
        out = [_LOOP] if depth >= config.loop_depth else []
        proper = tracker.lost or tracker.counts == self._grammar.endings.goal
        if not self._limits.jumps and (depth or not proper):
            out.append(HALT)
        if tracker.lost:
            return out
        for unit, word in _ISSUES.items():
            if 1 + tracker.available(unit).bit_count() > self._room or not tracker.may_issue(unit):
                out.append(word)
        missing = ~tracker.available(SEQUENCER)
        return out + [word for number, word in self._grammar.takes if missing >> number & 1]


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
        self._reader = ProgramParser(grammar.rules, self)
        self._tracker = grammar.tracker
        self._situation: NextTokenMask | None = None
        self._forced: list[str] = []

    @property
    def done(self) -> bool:
        """True if the program is complete; no token may follow."""
        return self._reader.done

    @property
    def instructions(self) -> int:
        """Number of micro-instructions so far."""
        return len(self._reader.words)

    @property
    def before(self) -> ProgramTracker:
        """Abstract machine after the last complete instruction; needs a hardware configuration."""
        assert self._tracker
        return self._tracker

    @property
    def behind(self) -> ProgramTracker:
        """Abstract machine after the current instruction if it may end here; needs a hardware configuration."""
        assert self._now.behind
        return self._now.behind

    def program(self, name: str) -> Program:
        """Return the program; ValueError if it is incomplete."""
        if not self.done:
            raise ValueError(f"the program does not end in {STOP!r} yet")
        return Program(name, tuple(self._reader.words))

    @property
    def mask(self) -> np.ndarray:
        """Return the mask of valid next tokens, bool (vocabulary size,); all False if and only if `done`.

        The array is read-only.
        """
        return self._now.mask

    @property
    def _now(self) -> NextTokenMask:
        if self._situation is None:
            self._situation = NextTokenMask(
                self.grammar, self._reader, self._tracker, self.left, self._forced
            )
        return self._situation

    def advance(self, number: int) -> None:
        """Append a token by its id.

        Raises
        ------
        ValueError
            The token is not valid here.
        """
        word, now = self.grammar.vocabulary.words[number], self._now
        if not now.mask[number]:
            raise ValueError(f"{word!r} may not come next")
        self._forced = now.forced[1:] if now.forced and now.forced[0] == word else []
        self._reader.take(word)
        self.left -= 1
        self._situation = None

    # Listener of the parser.

    @property
    def turns(self) -> int:
        """Product of the iteration counts of the open loops, as far as known."""
        return self._tracker.turns if self._tracker else 1

    def execute(self, word: int) -> None:
        """Handle a complete instruction."""
        if self._tracker:
            self._tracker = self._now.after(word) or self._tracker.after(word)

    def open(self, word: int) -> None:
        """Handle the start of a loop."""
        if self._tracker:
            self._tracker = self._tracker.opened(word)

    def close(self) -> None:
        """Handle the end of a loop."""
        if self._tracker:
            self._tracker = self._tracker.closed()


#: Exceeds the number of tokens of any instruction.
_MANY = 12
#: Cache size for masks and completions.
_KEPT = 1 << 12
Mask = np.ndarray
Key, Value = TypeVar("Key"), TypeVar("Value")


class AssemblyGrammar:
    """Token grammar of micro-programs.

    Parameters
    ----------
    vocabulary : Vocabulary
        Vocabulary of the model, including all assembly and number tokens.
    limits : ProgramLimits
        Limits of the programs.

    Raises
    ------
    InputError
        The vocabulary lacks a token, or the limits are inconsistent.
    ValidationError
        The calls before the program are not safe.
    """

    def __init__(self, vocabulary: Vocabulary, limits: ProgramLimits):
        for word in (*WORDS, *NUMBERS):
            if word not in vocabulary:
                raise InputError(f"the vocabulary must have the word {word!r}")
        self.vocabulary, self.limits, self.rules = vocabulary, limits, limits.rules
        self.tracker = ProgramTracker(AbstractMachine.of(limits), limits.jumps) if limits.config else None
        #: Tokens that leave a loop.
        self.leave = LEAVE if limits.config else (END,)
        #: Minimum instructions of a loop, including itself and one in its body.
        self.loop_instructions = 2 + Completion.of(self.leave).instructions
        self.endings = Endings(limits, self.tracker) if self.tracker else None
        self._selectors: dict[tuple, Mask] = {}
        self._ends: dict[tuple, Completion] = {}
        self._others: dict[tuple[str, ...], Mask] = {}
        #: Instructions that take a semaphore token, with their semaphores.
        self.takes = [(head.d, word) for word, head in HEADS.items() if head.op is MicroOp.WAIT]
        self.nothing = self.mask_of(())
        self.bytes = np.array(vocabulary.encode(BYTES))
        groups = self.rules.groups
        self._groups = {name: self.mask_of(words) for name, words in groups.items()}
        self._singles = {word: self.mask_of([word]) for word in (*WORDS, *NUMBERS)}
        needs = np.full(len(vocabulary), _MANY + 1)
        for word in groups[HEAD]:
            needs[vocabulary.number(word)] = self._need(word)
        self._heads = [needs <= room for room in range(_MANY + 1)]

    def start(self) -> GrammarState:
        """Return the state at the start of a program."""
        return GrammarState(self)

    def mask_of(self, words: Sequence[str]) -> Mask:
        """Return the read-only mask of some tokens."""
        mask = np.zeros(len(self.vocabulary), bool)
        mask[self.vocabulary.encode(words)] = True
        mask.flags.writeable = False
        return mask

    def group(self, name: str) -> Mask:
        """Return the mask of a token group or a single token."""
        return self._groups[name] if name in GROUPS else self._singles[name]

    def ending(self, empty: bool, loops: int, whole: bool, counts: Counts | None) -> Completion:
        """Return a completion.

        Parameters
        ----------
        empty : bool
            True if the innermost loop has no instruction yet.
        loops : int
            Number of open loops.
        whole : bool
            True if some instruction so far may end the program.
        counts : sequence of int or None
            Counts of all semaphores; None to leave them as they are.
        """

        def make() -> Completion:
            drained = self.endings.words(counts) if self.endings and counts is not None else []
            last = [STOP] if whole else [HALT, STOP]
            return Completion.of([*[FENCE] * empty, *self.leave * loops, *drained, *last])

        return _remembered(self._ends, (empty, loops, whole, counts), make)

    def but(self, words: tuple[str, ...]) -> Mask:
        """Return the mask of all tokens except some."""
        return _remembered(self._others, words, lambda: ~self.mask_of(words))

    def heads(self, room: int) -> Mask:
        """Return the mask of first tokens of instructions with at most `room` tokens."""
        return self._heads[max(0, min(room, _MANY))]

    def selectors(self, tracker: ProgramTracker | None, count: bool) -> Mask:
        """Return the mask of selectors that a program may read, excluding register 0.

        Parameters
        ----------
        tracker : ProgramTracker or None
            Abstract machine, if there is a hardware configuration.
        count : bool
            True for only those that may be iteration counts.
        """
        if tracker is None:
            return self.group(SELECTOR)
        registers = tracker.written if self.limits.written else -1

        def make() -> Mask:
            numbers = [
                *(number for number in range(1, REGISTERS) if registers >> number & 1),
                *(OPERAND_BASE + number for number in range(len(self.limits.operands))),
                *(STATISTIC_BASE + each for each in tracker.statistics),
            ]
            return self.mask_of([NAME_OF[number] for number in numbers])

        readable = _remembered(self._selectors, (tracker.statistics, registers), make)
        if not count or tracker.lost:
            return readable
        # The following number may be as large.
        most = self.rules.most_turns(tracker.turns) // 2
        counts = [word for word, number in SELECTORS.items() if tracker.counts_to(number, most)]
        return readable & self.mask_of(counts)

    def _need(self, word: str) -> int:
        """Return the minimum number of tokens of an instruction; for loops including body and end."""
        head = HEADS[word]
        operands = self.rules.operands(head, {}, 0, 1)
        return 1 + sum(each.need for each in operands) + (1 + len(self.leave)) * (head.op is MicroOp.LOOP)


def _remembered(kept: dict[Key, Value], key: Key, make: Callable[[], Value]) -> Value:
    """Return the cached value of a key, computing it on first use."""
    if key not in kept:
        if len(kept) >= _KEPT:
            kept.clear()
        kept[key] = make()
    return kept[key]
