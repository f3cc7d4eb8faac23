"""All programs with one changed command that are wrong for few inputs are refused, however often (`make soak`)."""

import random

import pytest

from compiler.tuning.measure.equivalence import EquivalenceChecker
from tests.support.cheating_programs import (
    LAYERS,
    WIDE_LAYERS,
    CheatingPrograms,
    other_elements,
    without_low_half,
)
from tests.support.seeds import random_seed

#: Number of attempts with texts that equal a refused one.
ATTEMPTS = 20
#: Minimum number of refused programs of a softmax or a normalization that are known to be wrong, but for at most half
#: of random inputs. Changes of other layers are wrong for most inputs, or change the arithmetic, which is also refused.
WRONG = 3


def generator() -> random.Random:
    """Return a generator seeded by MLA_SEED, or by a new seed."""
    return random.Random(random_seed())


@pytest.mark.parametrize("target", ["n4", "n16"])
@pytest.mark.parametrize("layer", LAYERS)
def test_cheating_programs_are_refused(layer: str, target: str) -> None:
    rng, programs = generator(), CheatingPrograms(layer, target, inputs=16)
    checker, wrong = EquivalenceChecker(programs.prepared), 0
    for cheat in programs.cheats():
        reason = programs.refusal(checker, cheat, rng, 0)
        if "writes wrong values" in (reason or ""):
            checker.refused.clear()
            assert programs.refusal(checker, cheat, rng, ATTEMPTS)
            wrong += 1
    print(f"{layer} on {target}: {wrong} programs that are wrong for few inputs are refused")
    assert wrong >= WRONG or not layer.startswith(("softmax", "norm"))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer.startswith("softmax")])
def test_softmax_without_the_low_half_is_refused_with_every_seed(layer: str, seed: int) -> None:
    rng, programs = generator(), CheatingPrograms(layer, inputs=60)
    for name, texts in without_low_half(programs):
        cheat = programs.cheat(name, texts)
        assert cheat is not None and cheat.wrong > 0
        checker = EquivalenceChecker(programs.prepared, seed)
        assert "writes wrong values" in (programs.refusal(checker, cheat, rng, ATTEMPTS) or ""), name


@pytest.mark.parametrize("target", ["n4", "n16"])
@pytest.mark.parametrize("layer", [*LAYERS, *WIDE_LAYERS])
def test_programs_that_read_other_elements_are_refused_with_every_seed(layer: str, target: str) -> None:
    rng, programs, refused = generator(), CheatingPrograms(layer, target, inputs=4), 0
    for name, texts in programs.changes(other_elements):
        cheat = programs.cheat(name, texts)
        if cheat is None:
            continue
        checker = EquivalenceChecker(programs.prepared, rng.randrange(1 << 32))
        if programs.refusal(checker, cheat, rng, 2) is None:
            # Without a tail, blocks that are only added up may be stored in another order.
            verdict = checker.check(cheat.network)
            assert verdict.inputs == 0, f"{name} is accepted without a proof"
        else:
            refused += 1
    print(f"{layer} on {target}: {refused} programs that read other elements are refused")
