"""The outcome of random race-free programs on the golden model does not depend on the execution order of the units."""

import pytest

from cosim.golden import GoldenDevice
from hw.config import load_target
from tests.support.program_gen.generator import DRAM_BYTES, generate
from tests.support.program_gen.run import difference, execute

FIRST_SEED, CASES = 1000, 25


@pytest.mark.parametrize("n", [4, 8, 16, 32])
def test_outcome_is_independent_of_unit_order(n: int) -> None:
    config = load_target(f"n{n}")
    model = GoldenDevice(config, DRAM_BYTES)
    for seed in range(FIRST_SEED, FIRST_SEED + CASES):
        case = generate(config, seed)
        expected = execute(model, case)
        for order in range(2):
            found = difference(expected, execute(GoldenDevice(config, DRAM_BYTES, order_seed=order), case))
            assert not found, f"n={n} seed={seed} order={order}: {found}"
