"""Random race-free programs: the RTL does exactly what the golden model does."""

from dataclasses import replace

import pytest

from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.config import MlaConfig, load_target
from tests.support.programs import DRAM_BYTES, generate
from tests.support.programs_run import check

FIRST_SEED, CASES = 1, 75


@pytest.mark.parametrize("n", [4, 8, 16, 32])
def test_rtl_equals_golden(n: int) -> None:
    compare(load_target(f"n{n}"), CASES)


def test_rtl_equals_golden_with_few_banks_and_half_rate_fuse() -> None:
    compare(replace(load_target("n4"), sp_banks=4, acc_banks=2, fuse_rate=2), 15)


def compare(config: MlaConfig, cases: int) -> None:
    model = GoldenDevice(config, DRAM_BYTES)
    print(f"{config}: seeds {FIRST_SEED}..{FIRST_SEED + cases - 1}")
    with RtlDevice(config, DRAM_BYTES, latency=20) as device:
        for seed in range(FIRST_SEED, FIRST_SEED + cases):
            device.set_dram_timing(latency=(1, 20, 100)[seed % 3])
            check(device, model, generate(config, seed))
