"""A program that is being written under a grammar."""

from typing import TYPE_CHECKING

import numpy as np

from compiler.llm.assembly.lexicon import STOP
from compiler.llm.assembly.reader import Reader
from compiler.llm.assembly.situation import Situation
from compiler.llm.assembly.tracker import Tracker
from hw.isa.program import Program

if TYPE_CHECKING:
    from compiler.llm.assembly.grammar import Grammar


class State:
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

    def __init__(self, grammar: "Grammar"):
        self.grammar = grammar
        self.left = grammar.limits.tokens
        self._reader = Reader(grammar.rules, self)
        self._tracker = grammar.tracker
        self._situation: Situation | None = None
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
    def before(self) -> Tracker:
        """The machine behind the last whole instruction; there is one."""
        assert self._tracker
        return self._tracker

    @property
    def behind(self) -> Tracker:
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
    def _now(self) -> Situation:
        if self._situation is None:
            self._situation = Situation(self.grammar, self._reader, self._tracker, self.left, self._forced)
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
