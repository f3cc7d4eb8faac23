"""Fixed-point scaling equals exact Python integers, including corner values."""

import random

import numpy as np
import pytest

from cosim.semantics import fixed_point as model
from hw.isa.enums import Rounding
from tests.golden import reference

CORNERS = (0, 1, -1, 2, 3, -3, (1 << 31) - 1, -(1 << 31), -(1 << 31) + 1, 1 << 30, -(1 << 30), (1 << 30) + 1)


@pytest.mark.parametrize("mode", list(Rounding))
@pytest.mark.parametrize("ls", [0, 7, 20, 30])
def test_scale(mode: Rounding, ls: int) -> None:
    rng = random.Random(f"{mode}{ls}")

    def word() -> int:
        return rng.choice(
            (rng.choice(CORNERS), rng.randint(-(1 << 31), (1 << 31) - 1), rng.randint(-300, 300))
        )

    exponents = [*range(-70, 40), -128, 127]
    x, m, e = np.array(
        [(word(), word(), rng.choice(exponents)) for _ in range(5000)]
        + [(a, b, k) for a in CORNERS for b in CORNERS for k in exponents[::7]]
    ).T
    expected = [reference.scale(int(a), int(b), int(k), ls, mode) for a, b, k in zip(x, m, e, strict=True)]
    assert model.scale(x, m, e, ls, mode).tolist() == expected
    for k in (-128, -31, -9, -1, 0, 1, 31, 127):
        expected = [
            reference.scale(int(a), int(b), k, ls, mode) for a, b in zip(x[:500], m[:500], strict=True)
        ]
        assert model.scale(x[:500], m[:500], k, ls, mode).tolist() == expected


def test_reciprocals_are_close() -> None:
    for x in (1, 2, 3, 4, 5, 7, 255, 256, 1000, 65535, 1 << 30, (1 << 31) - 1):
        multiplier, k = model.reciprocal(x)
        assert abs(multiplier / 2.0**31 / 2.0**k * x - 1) < 1e-9
        multiplier, k = model.reciprocal_root(x)
        assert abs(multiplier / 2.0**31 / 2.0**k * x**0.5 - 1) < 1e-9
    assert model.reciprocal(-5) == model.reciprocal(1)
