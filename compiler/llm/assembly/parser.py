"""A program on its way: words of the language in, micro-instructions out."""

from collections.abc import Iterator
from typing import Protocol

from compiler.llm.assembly.choice import TokenChoice
from compiler.llm.assembly.lexicon import END, HEADS, STOP, Head
from compiler.llm.assembly.operands import Operand, Rules, Values
from hw.isa.enums import SEMAPHORES_PER_PAIR, Unit
from hw.isa.micro_instruction import ISSUE_D, ISSUE_IMM, LOOP_IMM, MicroOp, encode

#: Signals to units; those to the sequencer stand behind them.
_TO_UNITS = SEMAPHORES_PER_PAIR * len(Unit)


class ParserListener(Protocol):
    """Who wants to hear of each instruction."""

    @property
    def turns(self) -> int:
        """Turns that the loops which are open make together, as far as is known."""
        ...

    def execute(self, word: int) -> None:
        """An instruction that is no loop with a body."""

    def open(self, word: int) -> None:
        """A loop whose body comes now; its end is not yet known."""

    def close(self) -> None:
        """The end of the body."""


class NullListener:
    """Does not want to hear."""

    turns = 1

    def execute(self, word: int) -> None:
        """Nothing."""

    def open(self, word: int) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def word_of(head: Head, values: Values, end: int) -> int:
    """The micro-instruction that a first word and its operands make.

    Parameters
    ----------
    end : int
        Where a loop ends that does not say it.
    """
    if head.op is MicroOp.LOOP:
        imm = LOOP_IMM.pack(end=values.get("end", end), count=values.get("count", 0))
        return encode(head.op, a=values.get("a", 0), imm=imm)
    if head.op is MicroOp.ISSUE:
        signal = values.get("signal", 0)
        d = ISSUE_D.pack(unit=head.d, signal_seq=signal >> _TO_UNITS)
        imm = ISSUE_IMM.pack(wait=values.get("wait", 0), signal=signal & (1 << _TO_UNITS) - 1)
        return encode(head.op, d=d, imm=imm)
    parts = {key: values.get(key, 0) for key in ("a", "b", "imm")}
    return encode(head.op, d=values.get("d", head.d), **parts)


class ProgramParser:
    """Reads a program word by word.

    Parameters
    ----------
    rules : Rules
        What operands may be.
    listener : Listener
        Hears of each instruction as soon as it is whole.
    """

    def __init__(self, rules: Rules, listener: ParserListener):
        self.rules, self.listener = rules, listener
        #: Micro-instructions so far; the ends of open loops are missing.
        self.words: list[int] = []
        #: First word and values of the loops that are open, and where they stand.
        self.loops: list[tuple[int, Head, Values]] = []
        self.head: Head | None = None
        self.values: Values = {}
        self.operands: list[Operand] = []
        self.done = False

    @property
    def ends(self) -> bool:
        """Whether the instruction may end here; also between instructions."""
        return all(operand.ends for operand in self.operands)

    @property
    def empty(self) -> bool:
        """Whether the innermost loop has no instruction yet."""
        return bool(self.loops) and self.loops[-1][0] + 1 == len(self.words)

    @property
    def opens(self) -> bool:
        """Whether the instruction, if it ends here, is a loop whose body follows."""
        return self.head is not None and self.head.op is MicroOp.LOOP and "end" not in self.values

    @property
    def word(self) -> int:
        """The instruction, if it ends here."""
        assert self.head
        return word_of(self.head, self.values, 0)

    def choices(self) -> Iterator[tuple[TokenChoice, int]]:
        """What may come next within the instruction, and how many words its later operands need."""
        for index, operand in enumerate(self.operands):
            later = sum(each.need for each in self.operands[index + 1 :])
            for choice in operand.choices():
                yield choice, later
            if not operand.ends:
                return

    def take(self, word: str) -> None:
        """Take a word.

        Raises
        ------
        ValueError
            It cannot come next.
        """
        if self.done:
            raise ValueError(f"{word!r} follows the end of the program")
        if self.head and self._extend(word):
            pass
        elif self.head and not self.ends:
            raise ValueError(f"{word!r} cannot be part of {self.head.word!r} here")
        else:
            self._finish()
            self._begin(word)
        if self.head and not any(True for _ in self.choices()):
            self._finish()

    def _extend(self, word: str) -> bool:
        """Take a word that goes on with the instruction; whether it does."""
        while self.operands:
            operand = self.operands[0]
            if operand.take(word):
                return True
            if not operand.ends:
                return False
            self.operands.pop(0)
        return False

    def _begin(self, word: str) -> None:
        """Take a word that is not part of an instruction before it."""
        if word in HEADS:
            self.head, self.values = HEADS[word], {}
            self.operands = self.rules.operands(self.head, self.values, len(self.words), self.listener.turns)
        elif word == END:
            self._close()
        elif word == STOP:
            self._stop()
        else:
            raise ValueError(f"{word!r} begins no instruction")

    def _finish(self) -> None:
        """The instruction is whole."""
        if not self.head:
            return
        if self.opens:
            self.loops.append((len(self.words), self.head, self.values))
            self.listener.open(self.word)
        else:
            self.listener.execute(self.word)
        self.words.append(self.word)
        self.head, self.operands = None, []

    def _close(self) -> None:
        if not self.loops:
            raise ValueError(f"{END!r} has no loop to end")
        if self.empty:
            raise ValueError(f"{END!r} must not stand at once behind its loop")
        start, head, values = self.loops.pop()
        self.words[start] = word_of(head, values, len(self.words))
        self.listener.close()

    def _stop(self) -> None:
        if self.loops:
            raise ValueError(f"{STOP!r} must not come before the end of a loop")
        if not self.words:
            raise ValueError("a program has at least one instruction")
        self.done = True
