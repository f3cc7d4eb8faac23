"""Compiled cases do not exceed their cycle limits on n16; simulated cycles are exact and reproducible."""

import numpy as np
import pytest

from compiler.bench.case import Case, run_case
from compiler.bench.single_layer import conv_case, gemm_case
from compiler.bench.tiny import tiny_case
from compiler.options import DramTiming
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.device import open_device
from cosim.device import Device
from hw.config import load_target

CEILINGS = (
    (gemm_case("1x1x1"), 355),
    (gemm_case("17x17x17"), 515),
    (gemm_case("64x64x64"), 1_490),
    (gemm_case("100x70x33"), 2_060),
    (gemm_case("128x128x128"), 8_725),
    (gemm_case("256x256x256"), 66_400),
    (gemm_case("100x200x1000"), 83_450),
    (gemm_case("1x1024x1024"), 67_000),
    (conv_case("14x14x64-64-3-1"), 28_950),
    (conv_case("14x14x512-512-1-1"), 201_800),
    (conv_case("56x56x64-256-1-1"), 201_450),
    (conv_case("56x56x3-32-3-2"), 4_250),
    (conv_case("8x1040x16-16-1-1"), 17_100),
    (conv_case("8x1280x3-16-3-1"), 24_700),
    (conv_case("7x7x512-512-3-1-dw"), 4_270),
    (conv_case("28x28x64-64-3-1-dw"), 6_870),
    (conv_case("112x112x16-16-3-2-dw"), 18_200),
    (tiny_case("ad01_int8"), 13_750),
    (tiny_case("kws_ref_model"), 13_900),
    (tiny_case("pretrainedResnet_quant"), 51_300),
    (tiny_case("vww_96_int8"), 27_450),
)
#: The same on n16-bus32, with a DRAM of 32 bytes per cycle.
WIDE_CEILINGS = (
    (tiny_case("ad01_int8"), 9_750),
    (gemm_case("1x1024x1024"), 34_500),
)
#: DRAM latency in cycles, DRAM bytes per cycle, maximum cycles.
MEMORIES = ((20, 16, 8_640), (400, 16, 9_400), (100, 8, 9_740))


def _cycles(case: Case, latency: int = 100, rate: int = 16, target: str = "n16") -> int:
    def machine(network: CompiledNetwork) -> Device:
        return open_device(network, "rtl", 1, latency, rate, lambda _text: None)

    dram = DramTiming(latency, rate)
    rng = np.random.default_rng(0)
    result, _ = run_case(case, load_target(target), rng, machine, lambda _text: None, dram=dram)
    assert result["exact"]
    print(f"{case.name}: {result['cycles']:,} cycles")
    return result["cycles"]


@pytest.mark.parametrize(("case", "ceiling"), CEILINGS, ids=[case.name for case, _ in CEILINGS])
def test_cycles(case: Case, ceiling: int) -> None:
    assert _cycles(case) <= ceiling


@pytest.mark.parametrize(("case", "ceiling"), WIDE_CEILINGS, ids=[case.name for case, _ in WIDE_CEILINGS])
def test_cycles_with_beats_of_two_rows(case: Case, ceiling: int) -> None:
    assert _cycles(case, rate=32, target="n16-bus32") <= ceiling


@pytest.mark.parametrize(("latency", "ceiling"), [(200, 14_150), (400, 14_750)])
def test_depthwise_weights_are_requested_in_time(latency: int, ceiling: int) -> None:
    """With two buffers of weights, the blocks of a depthwise layer wait for them: 14,353 and 14,993 cycles."""
    assert _cycles(tiny_case("kws_ref_model"), latency) <= ceiling


def test_cycles_without_constant_channels_at_a_quarter_of_the_bandwidth() -> None:
    assert _cycles(tiny_case("vww_96_int8"), rate=4) <= 35_450


@pytest.mark.parametrize(("latency", "rate", "ceiling"), MEMORIES)
def test_cycles_with_other_memories(latency: int, rate: int, ceiling: int) -> None:
    assert _cycles(gemm_case("128x128x128"), latency, rate) <= ceiling
