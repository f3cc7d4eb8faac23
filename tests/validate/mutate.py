"""Programs with one word mutated."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from hw.isa.micro_instruction import WORD, MicroOp
from hw.isa.program import Program

_D, _OPCODE = WORD.offset("d"), WORD.offset("opcode")
#: Bits of an issue's word: semaphores it waits for, and those it signals (to units, to the sequencer).
_WAIT, _SIGNAL = range(16), (*range(16, 32), *range(_D + 2, _D + 6))
_FENCE = range(_D, _D + 4)


def _one_of(rng: random.Random, word: int, bits) -> int | None:
    """The word without one of the bits it has, None if it has none of them."""
    ones = [bit for bit in bits if word >> bit & 1]
    return word ^ 1 << rng.choice(ones) if ones else None


def _added(rng: random.Random, word: int, bits) -> int:
    return word ^ 1 << rng.choice(list(bits))


def _no_fence(rng: random.Random, word: int) -> int | None:
    """A fence that leaves out one unit, or all."""
    ones = _one_of(rng, word, _FENCE)
    return ones if ones is None or rng.random() < 0.5 else word & ~(15 << _D)


#: For each way to damage a word: the operations it may hit, and what it makes of the word.
WAYS: dict[str, tuple[tuple[MicroOp, ...], Callable[[random.Random, int], int | None]]] = {
    "wait": ((MicroOp.ISSUE,), lambda rng, word: _one_of(rng, word, _WAIT)),
    "signal": ((MicroOp.ISSUE,), lambda rng, word: _one_of(rng, word, _SIGNAL)),
    "new wait": ((MicroOp.ISSUE,), lambda rng, word: _added(rng, word, _WAIT)),
    "new signal": ((MicroOp.ISSUE,), lambda rng, word: _added(rng, word, _SIGNAL)),
    "fence": ((MicroOp.FENCE,), _no_fence),
    "field": ((MicroOp.SET,), lambda rng, word: word ^ 1 << rng.randrange(12)),
    "other field": ((MicroOp.SET,), lambda rng, word: word ^ 1 << rng.randrange(_D, _D + 6)),
    "any bit": (tuple(MicroOp), lambda rng, word: word ^ 1 << rng.randrange(64)),
}


def damages(
    rng: random.Random, program: Program, count: int, ways: Sequence[str] = tuple(WAYS)
) -> Iterator[tuple[str, Program]]:
    """Up to `count` damaged versions of a program, with the way of each."""
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
