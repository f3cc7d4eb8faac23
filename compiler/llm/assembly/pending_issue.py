"""Partially written `issue` instruction, and the waits and signals that may follow."""

from dataclasses import dataclass

from compiler.llm.assembly.abstract_machine import SEMAPHORES_PER_CONSUMER, ProgramTracker
from compiler.llm.assembly.operands import Values
from compiler.llm.assembly.program_completer import ProgramCompleter, semaphore_index
from compiler.llm.tokens.assembly_tokens import SEMAPHORES
from hw.isa.enums import SEMAPHORE_MAX, SEMAPHORES_PER_PAIR, SEQUENCER, Unit


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

    def tokens(self, kind: str, start: int, completer: ProgramCompleter) -> list[str]:
        """Return the tokens of waits or signals that allow a legal command and a valid completion.

        Parameters
        ----------
        kind : str
            Type of the tokens, "wait" or "signal".
        start : int
            Index of the first semaphore.
        completer : ProgramCompleter
            Generator of completions.
        """
        found = self._waits(start) if kind == "wait" else self._signals(start, completer)
        return [SEMAPHORES[kind][number] for number in found]

    def _waits(self, start: int) -> list[int]:
        available = self.tracker.available(self.unit)
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
