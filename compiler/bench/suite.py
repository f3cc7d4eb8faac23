"""Runs a suite: one machine, one case after the other."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from compiler.bench import conv, gemm
from compiler.bench.case import Case, run_case
from compiler.kernels.library import Library
from cosim.device import Device
from cosim.driver import Driver
from hw.config import MlaConfig
from hw.errors import InputError

#: DRAM for the ring and the programs' images.
_OWN_BYTES = 1 << 20
#: The case by which the simulator's speed is taken.
_SPEED_CASE = "512x512x512"
_BARE_SECONDS = 1.5

#: Opens a machine: configuration, bytes of DRAM, latency, bytes a cycle.
OpenDevice = Callable[[MlaConfig, int, int, float], Device]


def open_rtl(config: MlaConfig, dram_bytes: int, latency: int, bytes_per_cycle: float) -> Device:
    """The RTL in its simulator."""
    from cosim.rtl.rtl_device import RtlDevice

    return RtlDevice(config, dram_bytes, latency=latency, bytes_per_cycle=bytes_per_cycle)


def run_suite(
    suite: str,
    config: MlaConfig,
    *,
    case: str | None = None,
    dram_latency: int = 100,
    dram_bytes_per_cycle: float | None = None,
    seed: int = 0,
    open_device: OpenDevice = open_rtl,
) -> dict[str, Any]:
    """Measure the cases of `gemm`, `conv` or `sim`; returns the document of `mla bench`.

    Raises
    ------
    InputError
        No such suite, or a case that is malformed or does not fit the machine.
    """
    bytes_per_cycle = dram_bytes_per_cycle or config.n
    cases = _cases(suite, case)
    document: dict[str, Any] = {
        "suite": suite,
        "target": f"n{config.n}",
        "dram": {"latency": dram_latency, "bytes_per_cycle": bytes_per_cycle},
        "results": [],
        "sim_khz": None,
        "bare_array_khz": None,
    }
    _say(f"opening the machine of n = {config.n} (the first time its simulator is built: minutes)")
    dram_bytes = -(-(max(each.dram_bytes for each in cases) + _OWN_BYTES) // 4096) * 4096
    with open_device(config, dram_bytes, dram_latency, bytes_per_cycle) as device:
        library = Library(Driver(device))
        bare = [_bare_khz()] if suite == "sim" else []
        cycles = seconds = 0.0
        for index, each in enumerate(cases):
            _say(f"[{index + 1}/{len(cases)}] {suite} {each.name}")
            result, taken = run_case(library, each, np.random.default_rng([seed, index]), bytes_per_cycle)
            document["results"].append(result)
            cycles, seconds = cycles + (taken.cycles or 0), seconds + taken.seconds
    if cycles:
        document["sim_khz"] = cycles / seconds / 1000
    if bare:  # taken before and after, because the host's own speed changes
        document["bare_array_khz"] = (bare[0] + _bare_khz()) / 2
    return document


def _bare_khz() -> float:
    from cosim.rtl.yardstick import bare_array_khz

    _say("the bare array")
    return bare_array_khz(_BARE_SECONDS)


def _cases(suite: str, case: str | None) -> list[Case]:
    if suite == "gemm":
        return [gemm.gemm_case(name) for name in ([case] if case else gemm.CASES)]
    if suite == "conv":
        return [conv.conv_case(name) for name in ([case] if case else conv.CASES)]
    if suite == "sim":
        return [gemm.gemm_case(case or _SPEED_CASE)]
    raise InputError(f"suite must be gemm, conv or sim, not {suite!r}")


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)
