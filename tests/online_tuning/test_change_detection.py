"""The sequential test detects changes soon, and ignores outliers and noise."""

import random
from typing import Any

import numpy as np
import pytest

from compiler.online_tuning.change_detection import ChangeTest, DetectedChange
from compiler.serving.request import MacroTime, RequestResult

USUAL = {"wide": 8000, "small": 400}
#: Cycles of the programs of a larger network, and distributions of the noise in the cycles.
MANY = {f"program {number}": 1000 * (number + 1) for number in range(10)}
NOISES = ("normal", "heavy tails", "rare spikes")
REQUESTS, BEFORE, WITHIN = 10_000, 100, 20


def result(index: int, cycles: dict[str, int], *, disturbed: bool = False) -> RequestResult:
    """Return the result of a request with the given cycles of each program."""
    macros = tuple(MacroTime(name, 0, count, count) for name, count in cycles.items())
    nothing: Any = None
    return RequestResult(index, {}, {}, nothing, macros, sum(cycles.values()), 0, (1,), disturbed, 3)


def detect(
    test: ChangeTest, cycles: dict[str, int], rng: random.Random, noise: int = 3
) -> tuple[int, DetectedChange] | None:
    """Return the number of requests until a change is detected, and the change, or None."""
    for number in range(1, 200):
        taken = {name: count + rng.randint(-noise, noise) for name, count in cycles.items()}
        found = test.add(result(number, taken))
        if found is not None:
            return number, found
    return None


@pytest.mark.parametrize("seed", range(5))
def test_no_change_is_detected_in_constant_cycles(seed: int) -> None:
    assert detect(ChangeTest(), USUAL, random.Random(seed), noise=20) is None


@pytest.mark.parametrize("program", USUAL)
@pytest.mark.parametrize("sign", [1, -1])
def test_small_change_is_detected_within_twenty_requests(program: str, sign: int) -> None:
    rng, test = random.Random(1), ChangeTest()
    assert all(test.add(result(number, USUAL)) is None for number in range(10))
    changed = USUAL | {program: USUAL[program] + sign * 120}
    found = detect(test, changed, rng)
    assert found is not None and found[0] <= 20
    assert found[1].program == program and found[1].usual == USUAL[program]


def test_large_change_is_detected_after_four_requests() -> None:
    rng, test = random.Random(1), ChangeTest()
    assert detect(test, USUAL, rng) is None
    found = detect(test, {name: 3 * count for name, count in USUAL.items()}, rng)
    assert found is not None and found[0] == 4


@pytest.mark.parametrize("disturbed", [False, True])
def test_single_outlier_is_not_a_change(disturbed: bool) -> None:
    rng, test = random.Random(1), ChangeTest()
    assert detect(test, USUAL, rng) is None
    odd = {name: 9 * count for name, count in USUAL.items()}
    assert test.add(result(0, odd, disturbed=disturbed)) is None
    assert detect(test, USUAL, rng) is None


def noisy(rng: np.random.Generator, noise: str, change: np.ndarray) -> dict[str, int]:
    """Return noisy cycles of each program, with the given changes of their logarithms."""
    if noise == "normal":
        errors = rng.normal(0, 0.02, len(MANY))
    elif noise == "heavy tails":
        errors = 0.01 * rng.standard_t(3, len(MANY))
    else:
        spikes = np.where(rng.random(len(MANY)) < 0.01, rng.uniform(0, 1, len(MANY)), 0)
        errors = spikes + rng.normal(0, 0.002, len(MANY))
    each = zip(MANY.items(), change + errors, strict=True)
    return {name: round(count * float(np.exp(error))) for (name, count), error in each}


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_noise_is_not_a_change(seed: int, noise: str) -> None:
    print(f"seed {seed}")
    rng, test, same = np.random.default_rng(seed), ChangeTest(), np.zeros(len(MANY))
    assert all(test.add(result(number, noisy(rng, noise, same))) is None for number in range(REQUESTS))


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("sign", [1, -1])
def test_slower_memory_is_detected_despite_noise(seed: int, noise: str, sign: int) -> None:
    """A changed memory bandwidth, which changes the cycles of some programs by a factor of up to 4, is detected
    despite noise.
    """
    print(f"seed {seed}")
    rng, test = np.random.default_rng(seed), ChangeTest()
    same = np.zeros(len(MANY))
    assert all(test.add(result(number, noisy(rng, noise, same))) is None for number in range(BEFORE))
    slower = np.where(np.arange(len(MANY)) > 6, sign * np.log(rng.uniform(1.15, 4, len(MANY))), 0.0)
    after = (test.add(result(number, noisy(rng, noise, slower))) for number in range(WITHIN))
    found = next((each for each in after if each is not None), None)
    assert found is not None and found.program in list(MANY)[7:]


def test_change_during_the_learning_phase() -> None:
    rng, test = random.Random(1), ChangeTest()
    assert all(test.add(result(number, USUAL)) is None for number in range(3))
    found = detect(test, {name: 2 * count for name, count in USUAL.items()}, rng)
    assert found is not None and found[0] <= 20


def test_permanently_varying_cycles_are_not_a_change() -> None:
    rng, test = random.Random(1), ChangeTest()
    assert detect(test, USUAL, rng, noise=300) is None
