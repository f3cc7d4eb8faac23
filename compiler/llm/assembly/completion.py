"""The words that bring a program to a proper end: tokens that are too many are taken, those that lack are given."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from compiler.llm.assembly.abstract_machine import TOKENS, ProgramTracker
from compiler.llm.assembly.lexicon import END, HEAD_OF, HEADS, SIGNALS, WAITS
from compiler.llm.assembly.limits import ProgramLimits
from compiler.llm.assembly.tokenizer import words_of
from compiler.llm.tokens.integer_tokens import number_words
from hw.errors import InputError
from hw.isa.assembler import assemble
from hw.isa.enums import SEMAPHORE_MAX, SEMAPHORES_PER_PAIR, SEQUENCER, Unit
from hw.isa.micro_instruction import MicroOp, encode

Counts = Sequence[int]

_ALL = (1 << len(Unit)) - 1
#: Words that wait for all units, and that end the program.
FENCE = HEAD_OF[MicroOp.FENCE, _ALL].word
HALT = HEAD_OF[MicroOp.HALT, 0].word
#: Words that end a loop after its first turn.
LEAVE = (HEAD_OF[MicroOp.BREAK, 0].word, *number_words(1), END)


def index_of(producer: int, consumer: int, number: int) -> int:
    """Place of a semaphore among the counts of all."""
    return consumer * TOKENS + producer * SEMAPHORES_PER_PAIR + number


class Completion(NamedTuple):
    """The words of an end.

    Parameters
    ----------
    words : tuple of str
        They.
    instructions : int
        How many instructions they are.
    """

    words: tuple[str, ...]
    instructions: int

    @staticmethod
    def of(words: Sequence[str]) -> "Completion":
        """Some words."""
        return Completion(tuple(words), sum(word in HEADS for word in words))


@dataclass(frozen=True)
class CompletionRound:
    """A command that touches next to nothing: what a unit does only to take tokens and to give some.

    Parameters
    ----------
    setting : tuple of str
        Words that set the fields.
    issue : str
        First word of the command.
    """

    setting: tuple[str, ...]
    issue: str


class Endings:
    """Ends of programs.

    Parameters
    ----------
    limits : Limits
        Of the program; with a machine.
    start : Tracker
        The state when it begins.

    Raises
    ------
    InputError
        The program must leave tokens in semaphores that there are not.
    """

    def __init__(self, limits: ProgramLimits, start: ProgramTracker):
        goal = [0] * len(start.counts)
        for semaphore, count in limits.leaves.items():
            producer, consumer, number = semaphore
            if (
                producer not in set(Unit)
                or not 0 <= consumer <= SEQUENCER
                or not 0 <= number < SEMAPHORES_PER_PAIR
            ):
                raise InputError(f"leaves: there is no semaphore {semaphore}")
            if not 0 <= count <= SEMAPHORE_MAX:
                raise InputError(f"leaves: a semaphore holds 0..{SEMAPHORE_MAX} tokens, not {count}")
            goal[index_of(*semaphore)] = count
        self.goal = tuple(goal)
        self.rounds = {unit: found for unit in Unit if (found := _round(unit, limits, start))}
        #: Words, and instructions, that one token more may cost.
        self.growth = max((len(each.setting) + 3 for each in self.rounds.values()), default=1)

    def words(self, counts: Counts) -> list[str]:
        """The words that bring all semaphores to where they must be, as far as that can be done."""
        if counts == self.goal:
            return []
        surplus = [count - goal for count, goal in zip(counts, self.goal, strict=True)]
        out = [word for unit in Unit for word in self._unit(unit, surplus)]
        for number, count in enumerate(surplus[TOKENS * SEQUENCER :]):
            out += [HEAD_OF[MicroOp.WAIT, number].word] * count
        return out

    def _unit(self, unit: Unit, surplus: list[int]) -> Iterator[str]:
        """Words of the commands of a unit."""
        taken = surplus[TOKENS * unit : TOKENS * (unit + 1)]
        given = [
            -surplus[index_of(unit, consumer, number)]
            for consumer in range(SEQUENCER + 1)
            for number in range(SEMAPHORES_PER_PAIR)
        ]
        times = max(0, *taken, *given)
        if not times or unit not in self.rounds:
            return
        yield from self.rounds[unit].setting
        for turn in range(times):
            yield FENCE
            yield self.rounds[unit].issue
            yield from (word for word, count in zip(WAITS, taken, strict=True) if count > turn)
            yield from (word for word, count in zip(SIGNALS, given, strict=True) if count > turn)


def _round(unit: Unit, limits: ProgramLimits, start: ProgramTracker) -> CompletionRound | None:
    """The command of a unit that does least; None: there is none that may be issued."""
    name = unit.name.lower()
    for text in ("", "set load.word, fill=1", *_destinations(limits)):
        if text and not text.startswith(f"set {name}."):
            continue
        program = assemble(f"clear {name}\n{text}")
        state = start.after(encode(MicroOp.FENCE, d=_ALL))
        for word in program.words:
            state = state.after(word)
        if state.may_issue(unit):
            return CompletionRound(tuple(words_of(program)[:-1]), HEAD_OF[MicroOp.ISSUE, int(unit)].word)
    return None


def _destinations(limits: ProgramLimits) -> Iterator[str]:
    """Operands as addresses that STORE may write to."""
    for number, value in enumerate(limits.operands):
        if value is not None:
            yield f"set store.dram, r0, op{number}"
