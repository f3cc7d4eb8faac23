"""RTL and golden model give the same outcome for random race-free programs.

`tests/soak/test_random_programs.py` includes n32, whose simulator takes minutes to build.
"""

from collections.abc import Callable

import pytest

from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from tests.support.program_gen.generator import DRAM_BYTES, generate
from tests.support.program_gen.run import check

FIRST_SEED, CASES = 1, 60


@pytest.mark.parametrize("target", ["n4", "n8", "n16", "n16-bus32", "ulx3s-85f"])
def test_rtl_equals_golden_model(target: str, drawn: Callable) -> None:
    config = load_target(target)
    model = GoldenDevice(config, DRAM_BYTES)
    seeds = drawn(range(FIRST_SEED, FIRST_SEED + CASES))
    print(f"{config}: seeds {seeds}")
    with RtlDevice(config, DRAM_BYTES, latency=20) as device:
        for seed in seeds:
            device.set_dram_timing(latency=(1, 20, 100)[seed % 3])
            check(device, model, generate(config, seed))
