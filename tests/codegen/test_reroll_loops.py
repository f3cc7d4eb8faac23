"""Loops found in a sequence of commands expand to the original sequence."""

import random
from collections.abc import Iterator, Sequence

import pytest

from compiler.codegen.emit import CommandLoop, Delta, Item, leaves, reroll
from compiler.codegen.semaphores import Issued
from hw.isa.commands import UNIT_FIELDS
from hw.isa.enums import Unit


def unrolled(items: Sequence[Item]) -> Iterator[tuple[Issued, tuple[int, ...]]]:
    """Yield the expanded commands in order, each with its field values in the respective iteration."""
    for item in items:
        if isinstance(item, Issued):
            yield item, item.values
            continue
        for time in range(item.count):
            for position, (leaf, values) in _numbered(item.body):
                yield leaf, _moved(values, item.deltas[position], time)


def _numbered(body: Sequence[Item]) -> Iterator[tuple[int, tuple[Issued, tuple[int, ...]]]]:
    """Yield the expanded commands of a body, each with the index of the command in the unexpanded body."""
    start = 0
    for item in body:
        count = len(leaves(item))
        where = {id(leaf): start + i for i, leaf in enumerate(leaves(item))}
        for leaf, values in unrolled([item]):
            yield where[id(leaf)], (leaf, values)
        start += count


def _moved(values: tuple[int, ...], delta: Delta, time: int) -> tuple[int, ...]:
    if not delta or not time:
        return values
    out = list(values)
    for index, step in delta.items():
        out[index] += step * time
    return tuple(out)


def sequence(rng: random.Random) -> list[Issued]:
    """Return several sequences of nested repetitions of commands whose fields grow by constant steps."""
    out = []
    for _ in range(rng.randint(1, 4)):
        body = [
            (rng.choice(list(Unit)), rng.randrange(4), rng.randrange(9)) for _ in range(rng.randint(1, 4))
        ]
        outer, inner = rng.randint(1, 4), rng.randint(1, 5)
        for i in range(outer):
            for j in range(inner):
                for k, (unit, wait, step) in enumerate(body):
                    values = [0] * len(UNIT_FIELDS[unit])
                    values[1] = 7 * k + step * j + 100 * i
                    out.append(Issued(unit, 0, tuple(values), wait=wait))
    return out


@pytest.mark.parametrize("seed", range(60))
def test_loops_expand_to_the_original_sequence(seed: int) -> None:
    commands = sequence(random.Random(seed))
    depth = 1 + seed % 4
    items = reroll(commands, depth)
    found = [(leaf.unit, leaf.wait, values) for leaf, values in unrolled(items)]
    assert found == [(c.unit, c.wait, c.values) for c in commands], f"seed {seed}"
    assert all(item.depth <= depth for item in items if isinstance(item, CommandLoop))


def test_evenly_growing_fields_give_one_loop() -> None:
    fields = len(UNIT_FIELDS[Unit.LOAD])
    commands = [Issued(Unit.LOAD, 0, (0, 16 * i, *([0] * (fields - 2)))) for i in range(50)]
    (loop,) = reroll(commands, 4)
    assert isinstance(loop, CommandLoop) and (loop.count, loop.deltas) == (50, ({1: 16},))
