"""Programs with one mutated word."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from hw.isa.micro_instruction import WORD, MicroOp
from hw.isa.program import Program

_D, _OPCODE = WORD.offset("d"), WORD.offset("opcode")
#: Bits of an issue word: semaphores to wait for, and semaphores to signal (to units, to the sequencer).
_WAIT, _SIGNAL = range(16), (*range(16, 32), *range(_D + 2, _D + 6))
_FENCE = range(_D, _D + 4)


def _without_one(rng: random.Random, word: int, bits) -> int | None:
    """Clear one randomly chosen set bit at the positions `bits`; return None if none of them is set."""
    ones = [bit for bit in bits if word >> bit & 1]
    return word ^ 1 << rng.choice(ones) if ones else None


def _added(rng: random.Random, word: int, bits) -> int:
    return word ^ 1 << rng.choice(list(bits))


def _weaker_fence(rng: random.Random, word: int) -> int | None:
    """Return a fence that waits for one unit fewer or for none; return None if it waits for no unit."""
    ones = _without_one(rng, word, _FENCE)
    return ones if ones is None or rng.random() < 0.5 else word & ~(15 << _D)


#: For each mutation: the operations it applies to, and the function that mutates a word.
WAYS: dict[str, tuple[tuple[MicroOp, ...], Callable[[random.Random, int], int | None]]] = {
    "wait": ((MicroOp.ISSUE,), lambda rng, word: _without_one(rng, word, _WAIT)),
    "signal": ((MicroOp.ISSUE,), lambda rng, word: _without_one(rng, word, _SIGNAL)),
    "new wait": ((MicroOp.ISSUE,), lambda rng, word: _added(rng, word, _WAIT)),
    "new signal": ((MicroOp.ISSUE,), lambda rng, word: _added(rng, word, _SIGNAL)),
    "fence": ((MicroOp.FENCE,), _weaker_fence),
    "field": ((MicroOp.SET,), lambda rng, word: word ^ 1 << rng.randrange(12)),
    "other field": ((MicroOp.SET,), lambda rng, word: word ^ 1 << rng.randrange(_D, _D + 6)),
    "any bit": (tuple(MicroOp), lambda rng, word: word ^ 1 << rng.randrange(64)),
}


def mutants(
    rng: random.Random, program: Program, count: int, ways: Sequence[str] = tuple(WAYS)
) -> Iterator[tuple[str, Program]]:
    """Yield up to `count` mutants of a program, each with the name of its mutation."""
    for _ in range(count):
        way = rng.choice(ways)
        operations, change = WAYS[way]
        choices = [
            (index, word)
            for index, old in enumerate(program.words)
            if old >> _OPCODE in operations and (word := change(rng, old)) is not None
        ]
        if choices:
            index, word = rng.choice(choices)
            yield way, replace(program, words=(*program.words[:index], word, *program.words[index + 1 :]))
