"""One moment of writing a program: which words may come next."""

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from compiler.llm.assembly.choice import Choice
from compiler.llm.assembly.ending import HALT, Ending
from compiler.llm.assembly.groups import SELECTOR, SEMAPHORE_GROUPS
from compiler.llm.assembly.issue import PendingIssue
from compiler.llm.assembly.lexicon import END, HEAD_OF, STOP
from compiler.llm.assembly.reader import Reader
from compiler.llm.assembly.tracker import Tracker
from cosim.golden.interpreter import decoded
from hw.isa.enums import SEQUENCER, Unit
from hw.isa.micro_instruction import REGISTERS, MicroOp

if TYPE_CHECKING:
    from compiler.llm.assembly.grammar import Grammar

_ISSUES = {unit: HEAD_OF[MicroOp.ISSUE, int(unit)].word for unit in Unit}
_LOOP = HEAD_OF[MicroOp.LOOP, 0].word


class Situation:
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
        self, grammar: "Grammar", reader: Reader, tracker: Tracker | None, left: int, forced: list[str]
    ):
        self.forced = forced
        self._grammar, self._reader, self._tracker = grammar, reader, tracker
        self._limits = grammar.limits
        self._left = left
        self._preview: tuple[int, Tracker] | None = None

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

    def after(self, word: int) -> Tracker | None:
        """The machine after the instruction on its way, now whole, if it is known already."""
        return self._preview[1] if self._preview and self._preview[0] == word else None

    # The end that is always possible.

    @cached_property
    def _ending(self) -> Ending:
        """What ends the program properly from the end of this instruction on, or at least ends it."""
        return self._end(self._may_stop)

    @cached_property
    def _reserve(self) -> Ending:
        """What ends it if something else comes before."""
        return self._end(self._may_stop and not self._limits.jumps)

    def _end(self, whole: bool) -> Ending:
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

    def _fits(self, ending: Ending) -> bool:
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
        op, _, a, b, _ = decoded(self._reader.words[-1])
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

    def _add(self, out: np.ndarray, choice: Choice) -> None:
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
    def behind(self) -> Tracker | None:
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
