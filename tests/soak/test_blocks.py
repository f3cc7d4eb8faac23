"""All blocks of the suite `blocks` on the RTL: cycles do not exceed their ceilings."""

import pytest

from compiler.bench.float_networks import BLOCKS
from tests.bench import test_block_cycles
from tests.bench.test_block_cycles import SHARE, check

#: Maximum cycles of blocks that take longer to simulate.
CEILINGS = {
    "vit_197x192": 415_500,
    "mixer_196x512": 1_918_800,
    "convnext_56x96": 1_048_900,
    "convnext_28x192": 974_000,
    "convnext_14x384": 959_000,
    "shuffle_28x116-232-s2_x8": 321_800,
    "lite_112x16-24-k3-s2": 206_700,
    "lite_14x80-80-k3-s1": 69_700,
    "lite_14x80-112-k5-s1": 87_200,
    "lite_14x112-112-k5-s1": 138_100,
    "lite_7x192-192-k5-s1": 96_700,
    "lite_7x192-320-k3-s1": 121_200,
}
#: Blocks with products that fill the array to 25% (groups of 4 channels) or to 68% to 83%, so that its products alone
#: take about as long as 88% of the limit allows, with their maximum cycles and minimum shares.
NARROW = {
    "shuffle_56x24-116-s2": (65_300, 0.79),
    "lite_56x24-40-k5-s2": (117_200, 0.82),
    "lite_28x40-40-k5-s1": (101_300, 0.82),
    "resnext_28x256_x2": (520_000, 0.82),
}


@pytest.mark.parametrize("name", CEILINGS | NARROW)
def test_cycles(name: str) -> None:
    ceiling, share = NARROW[name] if name in NARROW else (CEILINGS[name], SHARE)
    check(name, ceiling, share)


def test_every_block_has_a_ceiling() -> None:
    assert {*CEILINGS, *NARROW, *test_block_cycles.CEILINGS} == {*BLOCKS}
