"""Incremental parser from tokens to micro-instructions."""

from collections.abc import Iterator
from typing import Protocol

from compiler.llm.assembly.operands import Operand, Rules, Values
from compiler.llm.tokens.assembly_tokens import END, HEADS, STOP, Head, TokenChoice
from hw.isa.enums import SEMAPHORES_PER_PAIR, Unit
from hw.isa.micro_instruction import ISSUE_D, ISSUE_IMM, LOOP_IMM, MicroOp, encode

#: Number of signals to units; signals to the sequencer have higher indices.
_TO_UNITS = SEMAPHORES_PER_PAIR * len(Unit)


class ParserListener(Protocol):
    """Listener that is called for each parsed instruction."""

    @property
    def iterations(self) -> int:
        """Product of the iteration counts of the open loops, as far as known."""
        ...

    def execute(self, word: int) -> None:
        """Handle an instruction that is not a loop with a body."""

    def open(self, word: int) -> None:
        """Handle the start of a loop body; its end is not yet known."""

    def close(self) -> None:
        """Handle the end of a loop body."""


class NullListener:
    """Listener that ignores all instructions."""

    iterations = 1

    def execute(self, word: int) -> None:
        """Ignore an instruction."""

    def open(self, word: int) -> None:
        """Ignore the start of a loop."""

    def close(self) -> None:
        """Ignore the end of a loop."""


def word_of(head: Head, values: Values, end: int) -> int:
    """Encode a micro-instruction, given its first token and the values of its operands.

    Parameters
    ----------
    head : Head
        First token of the instruction.
    values : dict
        Values of the operands.
    end : int
        Index of the end of a loop, used if the values do not contain it.
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
    """Incremental parser of a program.

    Parameters
    ----------
    rules : Rules
        Legal operand values.
    listener : ParserListener
        Listener that is called for each complete instruction.
    """

    def __init__(self, rules: Rules, listener: ParserListener):
        self.rules, self.listener = rules, listener
        #: Micro-instructions so far; those of open loops lack the index of the loop's end.
        self.words: list[int] = []
        #: First token, values and index of the open loops.
        self.loops: list[tuple[int, Head, Values]] = []
        self.head: Head | None = None
        self.values: Values = {}
        self.operands: list[Operand] = []
        self.done = False

    @property
    def ends(self) -> bool:
        """True if the current instruction may end here or if there is no current instruction."""
        return all(operand.ends for operand in self.operands)

    @property
    def empty(self) -> bool:
        """True if the innermost loop has no instruction yet."""
        return bool(self.loops) and self.loops[-1][0] + 1 == len(self.words)

    @property
    def opens(self) -> bool:
        """True if the current instruction, ended here, is a loop with a body."""
        return self.head is not None and self.head.op is MicroOp.LOOP and "end" not in self.values

    @property
    def word(self) -> int:
        """Encoding of the current instruction, ended here."""
        assert self.head
        return word_of(self.head, self.values, 0)

    def choices(self) -> Iterator[tuple[TokenChoice, int]]:
        """Yield the choices for the next token, each with the minimum number of tokens of later operands."""
        for index, operand in enumerate(self.operands):
            later = sum(each.need for each in self.operands[index + 1 :])
            for choice in operand.choices():
                yield choice, later
            if not operand.ends:
                return

    def accept(self, token: str) -> None:
        """Append a token.

        Raises
        ------
        ValueError
            The token is not valid here.
        """
        if self.done:
            raise ValueError(f"{token!r} follows the end of the program")
        if self.head and self._extend(token):
            pass
        elif self.head and not self.ends:
            raise ValueError(f"{token!r} cannot be part of {self.head.token!r} here")
        else:
            self._finish()
            self._begin(token)
        if self.head and not any(True for _ in self.choices()):
            self._finish()

    def _extend(self, token: str) -> bool:
        """Append a token to the current instruction; return whether it belongs to it."""
        while self.operands:
            operand = self.operands[0]
            if operand.accept(token):
                return True
            if not operand.ends:
                return False
            self.operands.pop(0)
        return False

    def _begin(self, token: str) -> None:
        """Start an instruction, or end a loop or the program."""
        if token in HEADS:
            self.head, self.values = HEADS[token], {}
            self.operands = self.rules.operands(
                self.head, self.values, len(self.words), self.listener.iterations
            )
        elif token == END:
            self._close()
        elif token == STOP:
            self._stop()
        else:
            raise ValueError(f"{token!r} is not the start of an instruction")

    def _finish(self) -> None:
        """Complete the current instruction."""
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
            raise ValueError(f"{END!r} must not directly follow the start of its loop")
        start, head, values = self.loops.pop()
        self.words[start] = word_of(head, values, len(self.words))
        self.listener.close()

    def _stop(self) -> None:
        if self.loops:
            raise ValueError(f"{STOP!r} must not come before the end of a loop")
        if not self.words:
            raise ValueError("a program must have at least one instruction")
        self.done = True
