"""Checks of more commands than `tests/block/checker` simulates, on the machine that checks one field per cycle."""

import pytest

from hw.config import MlaConfig
from hw.isa.enums import Unit
from tests.block.checker.test_checks import CONFIGS, WITHOUT_SPARSE, WITHOUT_WIDE, check


@pytest.mark.parametrize("seed", [81, 508, 608])
@pytest.mark.parametrize(
    "config",
    [CONFIGS[8], WITHOUT_WIDE[8], WITHOUT_SPARSE[8]],
    ids=["all_modes", "without_wide", "without_sparse"],
)
def test_random_matrix_commands(config: MlaConfig, seed: int) -> None:
    check(config, Unit.MATRIX, seed, commands=330)
