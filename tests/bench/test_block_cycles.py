"""Blocks of published networks reach 88% of their limits, layer by layer, on n16, but for four narrow ones."""

import numpy as np
import pytest

from compiler.bench.case import run_case
from compiler.bench.networks_suite import blocks_case
from compiler.options import DEFAULT_DRAM
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.device import open_device
from cosim.device import Device
from hw.config import load_target

SHARE = 0.88
#: Blocks that take few seconds; `tests/soak/test_blocks.py` measures the others, and has lower shares for four blocks.
CEILINGS = {
    "shuffle_28x116-116-s1": 33_700,
    "shuffle_14x232-232-s1": 30_950,
    "shuffle_7x464-464-s1": 26_300,
    "shuffle_28x116-232-s2": 83_700,
    "shuffle_14x232-464-s2": 72_500,
    "lite_112x32-16-k3-s1": 95_400,
    "lite_56x24-24-k3-s1": 156_100,
    "lite_28x40-80-k3-s2": 65_900,
    "lite_14x112-192-k5-s2": 95_800,
}


def check(name: str, ceiling: int, share: float = SHARE) -> None:
    """Measure a block, and compare its results with the golden model and its cycles with the ceiling."""

    def machine(network: CompiledNetwork) -> Device:
        return open_device(network, "rtl", 1, DEFAULT_DRAM.latency, 16, lambda _text: None)

    case, rng = blocks_case(name), np.random.default_rng(0)
    result, _ = run_case(case, load_target("n16"), rng, machine, lambda _text: None)
    cycles, limit = result["cycles"], result["floor_layerwise_cycles"]
    print(f"{name}: {cycles:,} cycles, {limit / cycles:.1%}")
    assert result["exact"] and cycles <= ceiling and limit >= share * cycles


@pytest.mark.parametrize("name", CEILINGS)
def test_cycles(name: str) -> None:
    check(name, CEILINGS[name])
