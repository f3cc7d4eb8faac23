"""Benchmark suites, and the measurement of the cases of a suite one after another."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from compiler.bench import networks_suite, tiny
from compiler.bench.case import Case, OpenDevice, run_case
from compiler.bench.networks_suite import condition_cases, run_conditions
from compiler.bench.single_layer import CONV_CASES, GEMM_CASES, conv_case, gemm_case
from compiler.options import DramTiming
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.device import open_device
from compiler.util.progress import progress
from cosim.device import Device
from hw.config import MlaConfig
from hw.errors import InputError, shown

#: Case used to measure the simulation speed.
_SPEED_CASE = "512x512x512"
_BARE_SECONDS = 1.5


def _no_case(case: str | None) -> list[Case]:
    if case is not None:
        raise InputError(f"conditions are measured all or not at all: no case {shown(case)}")
    return []


#: Cases of each suite, given the name of a single case or None.
SUITES: dict[str, Callable[[str | None], list[Case]]] = {
    "gemm": lambda case: [gemm_case(name) for name in ([case] if case else GEMM_CASES)],
    "conv": lambda case: [conv_case(name) for name in ([case] if case else CONV_CASES)],
    "nets": lambda case: [
        networks_suite.nets_case(name) for name in ([case] if case else networks_suite.CASES)
    ],
    "blocks": lambda case: [
        networks_suite.blocks_case(name) for name in ([case] if case else networks_suite.BLOCK_CASES)
    ],
    "tiny": lambda case: [tiny.tiny_case(name) for name in ([case] if case else tiny.CASES)],
    "conditions": _no_case,
    "sim": lambda case: [gemm_case(case or _SPEED_CASE)],
}


def run_suite(
    suite: str,
    config: MlaConfig,
    *,
    target: str,
    case: str | None = None,
    dram_latency: int = 100,
    dram_bytes_per_cycle: float | None = None,
    seed: int = 0,
    open_machine: OpenDevice | None = None,
    throttle: float = 0.0,
) -> dict[str, Any]:
    """Measure the cases of a suite and return the JSON report of `mla bench`.

    Parameters
    ----------
    target : str
        Name of `config` in the report.
    open_machine : callable or None
        Function that opens a device for a network; by default, the RTL simulation.
    throttle : float
        Share of the cycles in which the clock of the chip is stalled.

    Raises
    ------
    InputError
        The suite is unknown, or a case is malformed or does not fit the target.
    """
    bytes_per_cycle = dram_bytes_per_cycle or config.beat_bytes

    def open_rtl(network: CompiledNetwork) -> Device:
        return open_device(
            network, "rtl", 1, dram_latency, bytes_per_cycle, lambda _text: None, throttle=throttle
        )

    if suite not in SUITES:
        *others, last = SUITES
        raise InputError(f"suite must be {', '.join(others)} or {last}, not {shown(suite)}")
    document: dict[str, Any] = {
        "suite": suite,
        "target": target,
        "dram": {
            "latency": dram_latency,
            "bytes_per_cycle": bytes_per_cycle,
            "throttle": throttle,
        },
        "results": [],
        "sim_khz": None,
        "bare_array_khz": None,
        "bars": None,
    }
    cases, dram = SUITES[suite](case), DramTiming(dram_latency, bytes_per_cycle, throttle)
    _log(f"on {target}")
    bare = [_bare_khz()] if suite == "sim" else []
    cycles = seconds = 0.0
    with progress(f"measuring {suite}", len(cases), "cases") as task:
        for index, each in enumerate(cases):
            _log(f"[{index + 1}/{len(cases)}] {suite} {each.name}")
            rng = np.random.default_rng([seed, index])
            result, taken = run_case(each, config, rng, open_machine or open_rtl, _log, dram=dram)
            document["results"].append(result)
            cycles, seconds = cycles + (result["cycles"] or 0), seconds + taken.seconds
            task.advance()
    if suite == "conditions":
        document["target"] = "n16 and others"
        with progress("measuring conditions", condition_cases(), "cases") as task:
            for result in run_conditions(seed, _log):
                document["results"].append(result)
                task.advance()
    if cycles:
        document["sim_khz"] = cycles / seconds / 1000
    if bare:  # measured before and after, because the host's own speed changes
        document["bare_array_khz"] = (bare[0] + _bare_khz()) / 2
        if (
            config.n == BARE_ARRAY_N and case is None
        ):  # the targets apply only to this size and the default case
            document["bars"] = bars(document["sim_khz"], document["bare_array_khz"])
    return document


def _bare_khz() -> float:
    from cosim.rtl.sim_speed_baseline import bare_array_khz

    _log("the bare array")
    return bare_array_khz(_BARE_SECONDS)


def _log(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


#: Target speed in kHz of simulated clock, on the development host.
SIM_KHZ = 150.0
#: Minimum speed relative to the bare array, simulated on the same host at the same time.
BARE_ARRAY_SHARE = 0.25
#: Size of the bare array; chips of another size cannot be compared with it.
BARE_ARRAY_N = 16


def bare_array_share(sim_khz: float | None, bare_array_khz: float) -> float:
    """Return the ratio of the chip's simulation speed to the bare array's."""
    return (sim_khz or 0) / bare_array_khz


def bars(sim_khz: float | None, bare_array_khz: float) -> dict[str, Any]:
    """Return both target speeds and whether they are met, as JSON fields of `mla bench`.

    Parameters
    ----------
    sim_khz, bare_array_khz : float
        Simulated cycles per millisecond of the chip and of the bare array; `sim_khz` is None for a device without a
        clock.
    """
    return {
        "sim_khz": SIM_KHZ,
        "sim_khz_met": (sim_khz or 0) >= SIM_KHZ,
        "bare_array_share": BARE_ARRAY_SHARE,
        "bare_array_share_met": bare_array_share(sim_khz, bare_array_khz) >= BARE_ARRAY_SHARE,
    }
