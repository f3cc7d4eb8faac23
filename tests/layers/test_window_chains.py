"""Chains of layers over windows equal the host's operators, for images in strips, on chip or in DRAM."""

import pytest

from tests.support.window_chains import TARGETS, check_chain

#: Random chains that the compiler once computed wrongly (14), refused (85, 352), or compiled to an illegal program.
ONCE_WRONG = (14, 74, 76, 85, 111, 352)


@pytest.mark.parametrize("seed", (*ONCE_WRONG, *range(200, 212)))
def test_random_chains_are_exact(seed: int) -> None:
    check_chain(seed, TARGETS[seed % len(TARGETS)])
