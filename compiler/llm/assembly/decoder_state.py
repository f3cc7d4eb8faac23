"""Constrained decoding of a program: the grammar, the decoder's state, and which tokens may come next."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeVar

import numpy as np

from compiler.llm.assembly.abstract_machine import AbstractMachine, ProgramTracker
from compiler.llm.assembly.choice import TokenChoice
from compiler.llm.assembly.completion import FENCE, HALT, LEAVE, Completion, Counts, Endings
from compiler.llm.assembly.issue import PendingIssue
from compiler.llm.assembly.lexicon import END, HEAD_OF, HEADS, NAME_OF, SELECTORS, STOP, WORDS
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
    """What may come next.

    Parameters
    ----------
    grammar : Grammar
        The grammar.
    reader : Reader
        What has been written.
    tracker : Tracker or None
        The machine after the last whole instruction, if there is one.
    left : int
        Words that may still come.
    forced : list of str
        Those that must come, if any; the whole end once one must.
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
        """Which words may come next."""
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
        """The machine after the instruction on its way, now whole, if it is known already."""
        return self._preview[1] if self._preview and self._preview[0] == word else None

    # The end that is always possible.

    @cached_property
    def _ending(self) -> Completion:
        """What ends the program properly from the end of this instruction on, or at least ends it."""
        return self._end(self._may_stop)

    @cached_property
    def _reserve(self) -> Completion:
        """What ends it if something else comes before."""
        return self._end(self._may_stop and not self._limits.jumps)

    def _end(self, whole: bool) -> Completion:
        """An end behind this instruction.

        Parameters
        ----------
        whole : bool
            Whether the program may end in what there is.
        """
        reader, tracker = self._reader, self._tracker
        opens = reader.opens
        empty = opens or (not reader.head and reader.empty)
        loops = len(reader.loops) + opens
        # On a machine a loop is left by an instruction, so that another one must end the program.
        place = empty, loops, whole and not (loops and self._limits.config)
        if tracker is None or tracker.lost or self._over:
            return self._grammar.ending(*place, None)
        proper = self._grammar.ending(*place, self._issue.counts() if self._issue else tracker.counts)
        return proper if self._fits(proper) else self._grammar.ending(*place, None)

    def _fits(self, ending: Completion) -> bool:
        """Whether there is room for it behind this instruction."""
        enough = self._written + ending.instructions <= self._limits.instructions
        return enough and len(ending.words) <= self._left

    @property
    def _written(self) -> int:
        """Instructions, that on its way included."""
        return len(self._reader.words) + bool(self._reader.head)

    @property
    def _over(self) -> bool:
        """Whether only the last word can come."""
        return bool(self._limits.config) and not self._limits.jumps and self._halted

    @property
    def _halted(self) -> bool:
        """Whether nothing can come behind the last instruction but by a jump."""
        if self._reader.head or not self._reader.words:
            return False
        op, _, a, b, _ = decode_instruction(self._reader.words[-1])
        return op in (MicroOp.HALT, MicroOp.RET) or (op is MicroOp.BEQ and a == b < REGISTERS)

    @property
    def _may_stop(self) -> bool:
        """Whether the program may end behind this instruction, loops apart."""
        return self._halted if self._limits.config else self._written > 0

    @cached_property
    def _room(self) -> int:
        """Words that may come before the end."""
        return self._left - len(self._reserve.words)

    @cached_property
    def _more(self) -> int:
        """Instructions that may come before the end."""
        return self._limits.instructions - self._written - self._reserve.instructions

    # Within an instruction.

    @cached_property
    def _issue(self) -> PendingIssue | None:
        head = self._reader.head
        if self._tracker and not self._tracker.lost and head and head.op is MicroOp.ISSUE:
            return PendingIssue(self._tracker, Unit(head.d), self._reader.values)
        return None

    def _add(self, out: np.ndarray, choice: TokenChoice) -> None:
        """Allow what may come next within the instruction."""
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

    # Between instructions.

    @cached_property
    def behind(self) -> ProgramTracker | None:
        """The machine if the instruction on its way ends here."""
        reader, before = self._reader, self._tracker
        if reader.head is None or before is None:
            return before
        word = reader.word
        if reader.opens:
            return before.opened(word)
        self._preview = word, before.after(word)
        return self._preview[1]

    def _boundary(self) -> np.ndarray:
        """What may come behind the instruction; nothing if only the end may."""
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
        """Whether the innermost loop can be run to its end, and the program then be ended."""
        tracker = self.behind
        if tracker is None or tracker.lost:
            return True
        closed = tracker.closed()
        rest = self._grammar.ending(False, len(self._reader.loops) - 1, False, closed.counts)
        return not closed.harm and len(rest.words) < self._left and self._fits(rest)

    def _refused(self, depth: int) -> list[str]:
        """First words that the machine refuses now."""
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
    """What has been written so far, and what may come next.

    Parameters
    ----------
    grammar : Grammar
        Whose.

    Attributes
    ----------
    left : int
        Words that may still come.
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
        """Whether the program is whole; nothing may follow."""
        return self._reader.done

    @property
    def instructions(self) -> int:
        """Micro-instructions so far."""
        return len(self._reader.words)

    @property
    def before(self) -> ProgramTracker:
        """The machine behind the last whole instruction; there is one."""
        assert self._tracker
        return self._tracker

    @property
    def behind(self) -> ProgramTracker:
        """The machine behind the instruction on its way, if that may end here; there is one."""
        assert self._now.behind
        return self._now.behind

    def program(self, name: str) -> Program:
        """The program; ValueError: it is not whole."""
        if not self.done:
            raise ValueError(f"the program does not end in {STOP!r} yet")
        return Program(name, tuple(self._reader.words))

    @property
    def mask(self) -> np.ndarray:
        """Which words may come next: bool, (words of the vocabulary,). All are False if `done`, and only then.

        It cannot be changed.
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
        """Take a word by its number.

        Raises
        ------
        ValueError
            It may not come next.
        """
        word, now = self.grammar.vocabulary.words[number], self._now
        if not now.mask[number]:
            raise ValueError(f"{word!r} may not come next")
        self._forced = now.forced[1:] if now.forced and now.forced[0] == word else []
        self._reader.take(word)
        self.left -= 1
        self._situation = None

    # What the reader asks and says.

    @property
    def turns(self) -> int:
        """Turns that the loops which are open make together, as far as is known."""
        return self._tracker.turns if self._tracker else 1

    def execute(self, word: int) -> None:
        """An instruction is whole."""
        if self._tracker:
            self._tracker = self._now.after(word) or self._tracker.after(word)

    def open(self, word: int) -> None:
        """A loop begins."""
        if self._tracker:
            self._tracker = self._tracker.opened(word)

    def close(self) -> None:
        """A loop ends."""
        if self._tracker:
            self._tracker = self._tracker.closed()


#: More words than any instruction needs.
_MANY = 12
#: Masks, or ends, that are remembered.
_KEPT = 1 << 12
Mask = np.ndarray
Key, Value = TypeVar("Key"), TypeVar("Value")


class AssemblyGrammar:
    """The grammar of programs.

    Parameters
    ----------
    vocabulary : Vocabulary
        Of the model: with all words of assembly and of numbers, and perhaps others.
    limits : Limits
        What programs may be.

    Raises
    ------
    InputError
        The vocabulary lacks a word, or the limits make no sense.
    ValidationError
        What comes before the program in the stream is not safe.
    """

    def __init__(self, vocabulary: Vocabulary, limits: ProgramLimits):
        for word in (*WORDS, *NUMBERS):
            if word not in vocabulary:
                raise InputError(f"the vocabulary must have the word {word!r}")
        self.vocabulary, self.limits, self.rules = vocabulary, limits, limits.rules
        self.tracker = ProgramTracker(AbstractMachine.of(limits), limits.jumps) if limits.config else None
        #: Words that leave a loop.
        self.leave = LEAVE if limits.config else (END,)
        #: Instructions that a loop needs at least, itself and one in its body among them.
        self.loop_instructions = 2 + Completion.of(self.leave).instructions
        self.endings = Endings(limits, self.tracker) if self.tracker else None
        self._selectors: dict[tuple, Mask] = {}
        self._ends: dict[tuple, Completion] = {}
        self._others: dict[tuple[str, ...], Mask] = {}
        #: Instructions that take a token, and their semaphores.
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
        """The beginning of a program."""
        return GrammarState(self)

    def mask_of(self, words: Sequence[str]) -> Mask:
        """Some words, as a mask that cannot be changed."""
        mask = np.zeros(len(self.vocabulary), bool)
        mask[self.vocabulary.encode(words)] = True
        mask.flags.writeable = False
        return mask

    def group(self, name: str) -> Mask:
        """The words of a group, or one word."""
        return self._groups[name] if name in GROUPS else self._singles[name]

    def ending(self, empty: bool, loops: int, whole: bool, counts: Counts | None) -> Completion:
        """An end.

        Parameters
        ----------
        empty : bool
            Whether the innermost loop has no instruction yet.
        loops : int
            How many are open.
        whole : bool
            Whether there is an instruction already that a program may end in.
        counts : sequence of int or None
            Tokens of all semaphores; None: whatever they are, they remain.
        """

        def make() -> Completion:
            drained = self.endings.words(counts) if self.endings and counts is not None else []
            last = [STOP] if whole else [HALT, STOP]
            return Completion.of([*[FENCE] * empty, *self.leave * loops, *drained, *last])

        return _remembered(self._ends, (empty, loops, whole, counts), make)

    def but(self, words: tuple[str, ...]) -> Mask:
        """All words but some."""
        return _remembered(self._others, words, lambda: ~self.mask_of(words))

    def heads(self, room: int) -> Mask:
        """First words of instructions that need no more than so many words."""
        return self._heads[max(0, min(room, _MANY))]

    def selectors(self, tracker: ProgramTracker | None, count: bool) -> Mask:
        """Selectors that a program may read, register 0 apart.

        Parameters
        ----------
        tracker : Tracker or None
            The machine, if there is one.
        count : bool
            Only those that may say how often a loop runs.
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
        # A number as large may follow.
        most = self.rules.most_turns(tracker.turns) // 2
        counts = [word for word, number in SELECTORS.items() if tracker.counts_to(number, most)]
        return readable & self.mask_of(counts)

    def _need(self, word: str) -> int:
        """Words that an instruction needs at least; for a loop also those of its body and its end."""
        head = HEADS[word]
        operands = self.rules.operands(head, {}, 0, 1)
        return 1 + sum(each.need for each in operands) + (1 + len(self.leave)) * (head.op is MicroOp.LOOP)


def _remembered(kept: dict[Key, Value], key: Key, make: Callable[[], Value]) -> Value:
    """What belongs to a key, made when it is first asked for."""
    if key not in kept:
        if len(kept) >= _KEPT:
            kept.clear()
        kept[key] = make()
    return kept[key]
