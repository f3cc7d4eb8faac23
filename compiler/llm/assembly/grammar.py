"""Which word may come next, so that what is written is a program in the end."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from compiler.llm.assembly.ending import FENCE, HALT, LEAVE, Counts, Ending, Endings
from compiler.llm.assembly.groups import GROUPS, HEAD, SELECTOR
from compiler.llm.assembly.lexicon import END, HEADS, NAME_OF, SELECTORS, STOP, WORDS
from compiler.llm.assembly.limits import Limits
from compiler.llm.assembly.machine import Machine
from compiler.llm.assembly.state import State
from compiler.llm.assembly.tracker import Tracker
from compiler.llm.numbers import BYTES
from compiler.llm.numbers import WORDS as NUMBERS
from compiler.llm.vocabulary import Vocabulary
from hw.errors import InputError
from hw.isa.micro_instruction import OPERAND_BASE, REGISTERS, STATISTIC_BASE, MicroOp

#: More words than any instruction needs.
_MANY = 12
#: Masks, or ends, that are remembered.
_KEPT = 1 << 12
Mask = np.ndarray
Key, Value = TypeVar("Key"), TypeVar("Value")


class Grammar:
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

    def __init__(self, vocabulary: Vocabulary, limits: Limits):
        for word in (*WORDS, *NUMBERS):
            if word not in vocabulary:
                raise InputError(f"the vocabulary must have the word {word!r}")
        self.vocabulary, self.limits, self.rules = vocabulary, limits, limits.rules
        self.tracker = Tracker(Machine.of(limits), limits.jumps) if limits.config else None
        #: Words that leave a loop.
        self.leave = LEAVE if limits.config else (END,)
        #: Instructions that a loop needs at least, itself and one in its body among them.
        self.loop_instructions = 2 + Ending.of(self.leave).instructions
        self.endings = Endings(limits, self.tracker) if self.tracker else None
        self._selectors: dict[tuple, Mask] = {}
        self._ends: dict[tuple, Ending] = {}
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

    def start(self) -> State:
        """The beginning of a program."""
        return State(self)

    def mask_of(self, words: Sequence[str]) -> Mask:
        """Some words, as a mask that cannot be changed."""
        mask = np.zeros(len(self.vocabulary), bool)
        mask[self.vocabulary.encode(words)] = True
        mask.flags.writeable = False
        return mask

    def group(self, name: str) -> Mask:
        """The words of a group, or one word."""
        return self._groups[name] if name in GROUPS else self._singles[name]

    def ending(self, empty: bool, loops: int, whole: bool, counts: Counts | None) -> Ending:
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

        def make() -> Ending:
            drained = self.endings.words(counts) if self.endings and counts is not None else []
            last = [STOP] if whole else [HALT, STOP]
            return Ending.of([*[FENCE] * empty, *self.leave * loops, *drained, *last])

        return _remembered(self._ends, (empty, loops, whole, counts), make)

    def but(self, words: tuple[str, ...]) -> Mask:
        """All words but some."""
        return _remembered(self._others, words, lambda: ~self.mask_of(words))

    def heads(self, room: int) -> Mask:
        """First words of instructions that need no more than so many words."""
        return self._heads[max(0, min(room, _MANY))]

    def selectors(self, tracker: Tracker | None, count: bool) -> Mask:
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
