"""Semaphores order all conflicting commands, and their tokens stay within the range when commands run in order."""

from collections import Counter

import numpy as np
import pytest

from compiler.codegen.semaphores import Issued, synchronize
from cosim.semantics.bounding_box import BoundingBox
from hw.config import load_target
from hw.isa.enums import SEMAPHORE_MAX, Unit


def _command(unit: Unit, reads: int, writes: int) -> Issued:
    """Return a command that reads one byte and writes one byte of the scratchpad."""
    boxes = [BoundingBox("sp", at, at, write=write) for at, write in ((reads, False), (writes, True))]
    return Issued(unit, 0, (), reach=boxes)


def _bits(mask: int) -> list[int]:
    return [number for number in range(len(Unit)) if mask >> 4 * number & 1]


def _check_order(commands: list[Issued]) -> None:
    """Check that the tokens suffice and fit in issue order, and that every conflict is ordered by tokens."""
    tokens: Counter[tuple[int, int]] = Counter()
    sent: dict[tuple[int, int], list[int]] = {}
    taken: Counter[tuple[int, int]] = Counter()
    before: list[set[int]] = []  # commands that have retired when each command starts
    last: dict[int, int] = {}
    for at, command in enumerate(commands):
        known = set(before[last[command.unit]]) if command.unit in last else set()
        for consumer in _bits(command.signal):
            assert tokens[command.unit, consumer] < SEMAPHORE_MAX
        for producer in _bits(command.wait):
            pair = producer, command.unit
            assert tokens[pair]
            tokens[pair] -= 1
            source = sent[pair][taken[pair]]
            taken[pair] += 1
            known |= before[source] | {i for i in range(source + 1) if commands[i].unit == producer}
        for consumer in _bits(command.signal):
            tokens[command.unit, consumer] += 1
            sent.setdefault((command.unit, consumer), []).append(at)
        before.append(known)
        last[command.unit] = at
        for i, other in enumerate(commands[:at]):
            clash = any(
                (a.write or b.write) and a.low == b.low and (a.write > b.write or command.unit != other.unit)
                for a in other.reach
                for b in command.reach
            )
            in_order = command.unit == other.unit and command.unit != Unit.FUSE
            assert not clash or in_order or i in known, (i, at)
    assert not tokens.total()


@pytest.mark.parametrize("reader", [Unit.FUSE, Unit.STORE])
def test_many_results_before_the_first_of_their_readers(reader: Unit) -> None:
    writers = [_command(Unit.FUSE, 1000, at) for at in range(200)]
    commands = [*writers, *(_command(reader, at, 2000 + at) for at in range(200))]
    synchronize(load_target("n8"), commands)
    _check_order(commands)


@pytest.mark.parametrize("seed", range(3))
def test_random_commands(seed: int) -> None:
    print(f"seed {seed}")
    rng, commands = np.random.default_rng(seed), []
    while len(commands) < 400:  # runs of one unit, longer than the range of a semaphore in some cases
        unit, run = Unit(int(rng.integers(len(Unit)))), int(rng.choice((1, 5, 80)))
        commands += [_command(unit, *(int(at) for at in rng.integers(0, 300, 2))) for _ in range(run)]
    synchronize(load_target("n8"), commands)
    _check_order(commands)
