"""The validator explores only one order of unit steps, so every interleaving must end in the same state.

An explicit-state model of sequencer, queues, units and semaphores, written from docs/machine.md, explores every
interleaving of short command lists. Each semaphore holds at most one or two tokens, so that units often wait for room.
"""

import itertools
import random
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from compiler.validate import InstructionLocation, ValidationError
from compiler.validate import happens_before as timeline_module
from compiler.validate.happens_before import HappensBefore
from hw.isa.enums import SEQUENCER, Unit

UNITS = (Unit.LOAD, Unit.STORE)
#: (producer, consumer) pairs; the tests use the semaphore with index 0 of each pair.
PAIRS = (
    (Unit.LOAD, Unit.STORE),
    (Unit.STORE, Unit.LOAD),
    (Unit.LOAD, SEQUENCER),
    (Unit.STORE, SEQUENCER),
)


class Issue(NamedTuple):
    """Command of a unit, with the semaphores (indices in `PAIRS`) that it waits for and signals."""

    unit: Unit
    waits: tuple[int, ...]
    signals: tuple[int, ...]


class Wait(NamedTuple):
    """Sequencer step that takes a token of a semaphore (index in `PAIRS`)."""

    pair: int


class Fence(NamedTuple):
    """Sequencer step that waits until the given units are idle."""

    units: tuple[Unit, ...]


Action = Issue | Wait | Fence


def alphabet() -> list[Action]:
    """Return every possible sequencer instruction for two units and one semaphore per pair in `PAIRS`."""
    actions: list[Action] = []
    for unit in UNITS:
        into = [i for i, (_, consumer) in enumerate(PAIRS) if consumer == unit]
        out = [i for i, (producer, _) in enumerate(PAIRS) if producer == unit]
        for waits in ((), tuple(into)):
            for signals in ((), (out[0],), (out[1],), tuple(out)):
                actions.append(Issue(unit, waits, signals))
    actions += [Wait(i) for i, (_, consumer) in enumerate(PAIRS) if consumer == SEQUENCER]
    return [*actions, Fence((UNITS[0],)), Fence((UNITS[1],)), Fence(UNITS)]


class State(NamedTuple):
    """State of the model: index of the next action, queued and running actions of each unit, tokens of each pair."""

    pc: int
    queues: tuple[tuple[int, ...], ...]
    running: tuple[int | None, ...]
    tokens: tuple[int, ...]


def successors(actions: Sequence[Action], state: State, depth: int, most: int) -> list[State]:
    """Return the states reachable by one step of the sequencer or of a unit."""
    found = []
    pc, queues, running, tokens = state
    if pc < len(actions):
        action = actions[pc]
        if isinstance(action, Issue):
            index = UNITS.index(action.unit)
            if len(queues[index]) < depth:
                queued = tuple((*q, pc) if i == index else q for i, q in enumerate(queues))
                found.append(State(pc + 1, queued, running, tokens))
        elif isinstance(action, Wait):
            if tokens[action.pair]:
                taken = tuple(count - (i == action.pair) for i, count in enumerate(tokens))
                found.append(State(pc + 1, queues, running, taken))
        elif all(not queues[i] and running[i] is None for i, u in enumerate(UNITS) if u in action.units):
            found.append(State(pc + 1, queues, running, tokens))
    for index in range(len(UNITS)):
        current = running[index]
        if current is not None:  # a command retires and signals its tokens
            command = actions[current]
            assert isinstance(command, Issue)
            given = tuple(count + (i in command.signals) for i, count in enumerate(tokens))
            idle = tuple(None if i == index else r for i, r in enumerate(running))
            found.append(State(pc, queues, idle, given))
        elif queues[index]:  # a command starts: it takes tokens, and needs room for those it signals
            command = actions[queues[index][0]]
            assert isinstance(command, Issue)
            if all(tokens[i] for i in command.waits) and all(tokens[i] < most for i in command.signals):
                taken = tuple(count - (i in command.waits) for i, count in enumerate(tokens))
                left = tuple(q[1:] if i == index else q for i, q in enumerate(queues))
                busy = tuple(queues[index][0] if i == index else r for i, r in enumerate(running))
                found.append(State(pc, left, busy, taken))
    return found


def terminals(actions: Sequence[Action], depth: int, most: int) -> set[State]:
    """Explore every interleaving and return all states in which no step is possible."""
    first = State(0, ((), ()), (None, None), (0,) * len(PAIRS))
    seen, open_, ends = {first}, [first], set()
    while open_:
        state = open_.pop()
        after = successors(actions, state, depth, most)
        if not after:
            ends.add(state)
        open_ += [each for each in after if each not in seen]
        seen.update(after)
    return ends


def verdict(actions: Sequence[Action], depth: int) -> tuple[int, ...] | None:
    """Return the semaphore counts that the validator computes after all actions, or None for a deadlock."""
    timeline, place = HappensBefore(depth), InstructionLocation(0, "program", 0)
    try:
        for action in actions:
            if isinstance(action, Issue):
                wait = sum(1 << (PAIRS[i][0] << 2) for i in action.waits)
                signal = sum(1 << (PAIRS[i][1] << 2) for i in action.signals)
                timeline.issue(action.unit, wait, signal, (), place)
            elif isinstance(action, Wait):
                timeline.wait(PAIRS[action.pair][0] << 2, place)
            else:
                timeline.fence(sum(1 << unit for unit in action.units), place)
        timeline.end_call()
    except ValidationError as error:
        assert error.kind == "deadlock", error
        return None
    counts = timeline.counts
    return tuple(counts[consumer * 16 + (producer << 2)] for producer, consumer in PAIRS)


def check(actions: Sequence[Action], depth: int, most: int) -> bool:
    """Compare the validator with all interleavings; return True if all actions complete."""
    ends = terminals(actions, depth, most)
    assert len(ends) == 1, f"not confluent: {actions} depth={depth} most={most}: {ends}"
    (end,) = ends
    done = end.pc == len(actions) and not any(end.queues)
    assert verdict(actions, depth) == (end.tokens if done else None), (
        f"{actions} depth={depth} most={most}: {end}"
    )
    return done


@pytest.mark.parametrize("most", [1, 2])
def test_every_list_of_up_to_three_actions(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_module, "SEMAPHORE_MAX", most)
    results = [
        check(actions, 2, most)
        for length in (1, 2, 3)
        for actions in itertools.product(alphabet(), repeat=length)
    ]
    assert len(results) > 9000
    assert sum(results) > 1000 and results.count(False) > 1000


@pytest.mark.parametrize(("depth", "most"), [(1, 1), (2, 1), (2, 2), (3, 2)])
def test_random_longer_lists(depth: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_module, "SEMAPHORE_MAX", most)
    seed = 10 * depth + most
    print("seed", seed)
    rng, actions = random.Random(seed), alphabet()
    # Lists with balanced counts run to their end more often than random lists.
    ended = 0
    for _ in range(700):
        chosen = [rng.choice(actions) for _ in range(rng.randrange(4, 8))]
        for pair, (producer, consumer) in enumerate(PAIRS):
            given = sum(isinstance(a, Issue) and pair in a.signals for a in chosen)
            taken = sum(
                pair == a.pair if isinstance(a, Wait) else isinstance(a, Issue) and pair in a.waits
                for a in chosen
            )
            for _ in range(max(0, given - taken)):
                take = Wait(pair) if consumer == SEQUENCER else Issue(Unit(consumer), (pair,), ())
                chosen.insert(rng.randrange(len(chosen) + 1), take)
            for _ in range(max(0, taken - given)):
                chosen.insert(rng.randrange(len(chosen) + 1), Issue(producer, (), (pair,)))
        ended += check(chosen, depth, most)
    assert 50 < ended < 650
