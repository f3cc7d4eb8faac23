"""The sequential test by itself: what it notices, how soon, and what leaves it quiet."""

import random
from typing import Any

import pytest

from compiler.serve.drift import Drift, DriftTest
from compiler.serve.flight import MacroTime, Result

USUAL = {"wide": 8000, "small": 400}


def result(index: int, cycles: dict[str, int], *, disturbed: bool = False) -> Result:
    """A request whose programs took so many cycles."""
    macros = tuple(MacroTime(name, 0, count, count) for name, count in cycles.items())
    nothing: Any = None
    return Result(index, {}, {}, nothing, macros, sum(cycles.values()), 0, (1,), disturbed, 3)


def noticed(
    test: DriftTest, cycles: dict[str, int], rng: random.Random, noise: int = 3
) -> tuple[int, Drift] | None:
    """After how many requests that take about so long something is noticed."""
    for number in range(1, 200):
        taken = {name: count + rng.randint(-noise, noise) for name, count in cycles.items()}
        found = test.take(result(number, taken))
        if found is not None:
            return number, found
    return None


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_noticed_where_nothing_changes(seed: int) -> None:
    assert noticed(DriftTest(), USUAL, random.Random(seed), noise=20) is None


@pytest.mark.parametrize("program", USUAL)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_change_of_a_few_per_cent_is_noticed_within_twenty_requests(program: str, sign: int) -> None:
    rng, test = random.Random(1), DriftTest()
    assert all(test.take(result(number, USUAL)) is None for number in range(10))
    changed = USUAL | {program: USUAL[program] + sign * 120}
    found = noticed(test, changed, rng)
    assert found is not None and found[0] <= 20
    assert found[1].program == program and found[1].usual == USUAL[program]


def test_great_changes_take_two_requests() -> None:
    rng, test = random.Random(1), DriftTest()
    assert noticed(test, USUAL, rng) is None
    found = noticed(test, {name: 3 * count for name, count in USUAL.items()}, rng)
    assert found is not None and found[0] == 2


def test_one_odd_request_is_no_change() -> None:
    rng, test = random.Random(1), DriftTest()
    assert noticed(test, USUAL, rng) is None
    assert test.take(result(0, {name: 2 * count for name, count in USUAL.items()}, disturbed=True)) is None
    assert noticed(test, USUAL, rng) is None


def test_a_change_while_it_learns_what_is_usual() -> None:
    rng, test = random.Random(1), DriftTest()
    assert all(test.take(result(number, USUAL)) is None for number in range(3))
    found = noticed(test, {name: 2 * count for name, count in USUAL.items()}, rng)
    assert found is not None and found[0] <= 20


def test_cycles_that_always_differ_are_usual() -> None:
    rng, test = random.Random(1), DriftTest()
    assert noticed(test, USUAL, rng, noise=300) is None
