"""Short valid completion of a program: commands that consume surplus semaphore tokens and produce missing ones.

In this module, *tokens* denotes tokens of the language model unless they are called semaphore tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from compiler.llm.assembly.abstract_machine import SEMAPHORES_PER_CONSUMER, ProgramTracker
from compiler.llm.assembly.limits import ProgramLimits
from compiler.llm.assembly.tokenizer import encode_program
from compiler.llm.tokens.assembly_tokens import END, HEAD_OF, HEADS, SIGNALS, WAITS
from compiler.llm.tokens.integer_tokens import encode_number
from hw.errors import InputError
from hw.isa.assembler import assemble
from hw.isa.enums import SEMAPHORE_MAX, SEMAPHORES_PER_PAIR, SEQUENCER, Unit
from hw.isa.micro_instruction import MicroOp, encode

Counts = Sequence[int]

_ALL = (1 << len(Unit)) - 1
#: Tokens that wait for all units and end the program.
FENCE = HEAD_OF[MicroOp.FENCE, _ALL].token
HALT = HEAD_OF[MicroOp.HALT, 0].token
#: Tokens that leave a loop after its first iteration.
LEAVE = (HEAD_OF[MicroOp.BREAK, 0].token, *encode_number(1), END)


def semaphore_index(producer: int, consumer: int, number: int) -> int:
    """Return the index of a semaphore's count among the counts of all semaphores."""
    return consumer * SEMAPHORES_PER_CONSUMER + producer * SEMAPHORES_PER_PAIR + number


class Completion(NamedTuple):
    """Sequence of model tokens that completes a program.

    Parameters
    ----------
    tokens : tuple of str
        Tokens of the completion.
    instructions : int
        Number of instructions that the tokens encode.
    """

    tokens: tuple[str, ...]
    instructions: int

    @staticmethod
    def from_tokens(tokens: Sequence[str]) -> "Completion":
        """Create a completion from tokens."""
        return Completion(tuple(tokens), sum(token in HEADS for token in tokens))


@dataclass(frozen=True)
class CompletionRound:
    """Command of a unit that is issued only for its waits and signals.

    Parameters
    ----------
    setting : tuple of str
        Tokens that set the fields of the command.
    issue : str
        First token of the issue instruction.
    """

    setting: tuple[str, ...]
    issue: str


class ProgramCompleter:
    """Generator of program completions.

    Parameters
    ----------
    limits : ProgramLimits
        Limits of the program, with a hardware configuration.
    start : ProgramTracker
        State at the start of the program.

    Raises
    ------
    InputError
        `leaves` contains semaphores that do not exist, or counts out of range.
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
                raise InputError(f"leaves: semaphore {semaphore} does not exist")
            if not 0 <= count <= SEMAPHORE_MAX:
                raise InputError(f"leaves: a semaphore holds 0..{SEMAPHORE_MAX} tokens, not {count}")
            goal[semaphore_index(*semaphore)] = count
        self.goal = tuple(goal)
        self.rounds = {unit: found for unit in Unit if (found := _minimal_round(unit, limits, start))}
        #: Maximum number of tokens, and of instructions, needed to consume one more signal.
        self.max_tokens_per_signal = max((len(each.setting) + 3 for each in self.rounds.values()), default=1)

    def needed(self, counts: Counts, consumer: int) -> int:
        """Return a bit mask of the semaphores of a consumer that do not hold more tokens than must be left."""
        first = SEMAPHORES_PER_CONSUMER * consumer
        pairs = zip(counts[first:], self.goal[first : first + SEMAPHORES_PER_CONSUMER], strict=False)
        return sum(1 << number for number, (count, goal) in enumerate(pairs) if count <= goal)

    def tokens(self, counts: Counts) -> list[str]:
        """Return tokens that bring all semaphores to their required counts, as far as possible.

        Parameters
        ----------
        counts : sequence of int
            Current counts of all semaphores.
        """
        if counts == self.goal:
            return []
        surplus = [count - goal for count, goal in zip(counts, self.goal, strict=True)]
        out = [token for unit in Unit for token in self._unit(unit, surplus)]
        for number, count in enumerate(surplus[SEMAPHORES_PER_CONSUMER * SEQUENCER :]):
            out += [HEAD_OF[MicroOp.WAIT, number].token] * count
        return out

    def _unit(self, unit: Unit, surplus: list[int]) -> Iterator[str]:
        """Yield the text of the commands through which a unit consumes its surplus semaphore tokens and produces
        missing ones.
        """
        surplus_waits = surplus[SEMAPHORES_PER_CONSUMER * unit : SEMAPHORES_PER_CONSUMER * (unit + 1)]
        missing = [
            -surplus[semaphore_index(unit, consumer, number)]
            for consumer in range(SEQUENCER + 1)
            for number in range(SEMAPHORES_PER_PAIR)
        ]
        rounds = max(0, *surplus_waits, *missing)
        if not rounds or unit not in self.rounds:
            return
        yield from self.rounds[unit].setting
        for round_ in range(rounds):
            yield FENCE
            yield self.rounds[unit].issue
            yield from (token for token, count in zip(WAITS, surplus_waits, strict=True) if count > round_)
            yield from (token for token, count in zip(SIGNALS, missing, strict=True) if count > round_)


def _minimal_round(unit: Unit, limits: ProgramLimits, start: ProgramTracker) -> CompletionRound | None:
    """Return the shortest command of a unit that may be issued; None if the unit has no such command."""
    name = unit.name.lower()
    for text in ("", "set load.word, fill=1", *_destinations(limits)):
        if text and not text.startswith(f"set {name}."):
            continue
        program = assemble(f"clear {name}\n{text}")
        state = start.after(encode(MicroOp.FENCE, d=_ALL))
        for word in program.words:
            state = state.after(word)
        if state.may_issue(unit):
            return CompletionRound(
                tuple(encode_program(program)[:-1]), HEAD_OF[MicroOp.ISSUE, int(unit)].token
            )
    return None


def _destinations(limits: ProgramLimits) -> Iterator[str]:
    """Yield assembly text that sets the STORE address to an operand, for each known operand."""
    for number, value in enumerate(limits.operands):
        if value is not None:
            yield f"set store.dram, r0, op{number}"
