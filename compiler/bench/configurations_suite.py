"""Suite of other configurations: array sizes, DRAM timings, batches; each with its own lower bound."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.bench import conv, gemm, tiny
from compiler.bench.case import Case, run_case
from compiler.options import DramTiming
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.device import open_device
from cosim.device import Device
from hw.config import load_target, targets_by_lanes

_TARGET = "n16"
_LANES = load_target(_TARGET).n


@dataclass(frozen=True)
class Condition:
    """Hardware configuration, DRAM timing and batch size.

    Parameters
    ----------
    name : str
        Name in the table.
    target : str
        Name of the target.
    latency : int
        DRAM latency in cycles.
    share : float
        DRAM bandwidth as a fraction of one beat per cycle.
    batch : int
        Batch size in samples.
    """

    name: str
    target: str = _TARGET
    latency: int = 100
    share: float = 1.0
    batch: int = 1


CONDITIONS = (
    Condition("as above"),
    *(
        Condition(f"N = {lanes}", target=name)
        for lanes, name in targets_by_lanes().items()
        if lanes in (_LANES // 2, _LANES * 2)
    ),
    Condition("latency 20", latency=20),
    Condition("latency 400", latency=400),
    Condition("half the bandwidth", share=0.5),
    Condition("batches of 4", batch=4),
)
#: Single layers; networks are also measured with batches.
_GEMM = ("17x17x17", "100x70x33", "128x128x128", "1x1024x1024")
_CONV = ("7x7x256-256-3-1", "56x56x3-32-3-2", "28x28x64-64-3-1-dw")
_TINY = ("ad01_int8", "kws_ref_model", "pretrainedResnet_quant")


def _cases(condition: Condition) -> list[Case]:
    networks = [tiny.tiny_case(name) for name in _TINY]
    if condition.batch > 1:
        return networks
    return [*(gemm.gemm_case(n) for n in _GEMM), *(conv.conv_case(n) for n in _CONV), *networks]


def run_conditions(seed: int, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Yield results of every case and configuration, in the form of `run_case` with the name of the configuration."""
    for condition in CONDITIONS:
        config = load_target(condition.target)
        rate = config.n * condition.share

        def machine(network: CompiledNetwork, latency: int = condition.latency, rate: float = rate) -> Device:
            return open_device(network, "rtl", 1, latency, rate, lambda _text: None)

        for case in _cases(condition):
            say(f"{condition.name}: {case.name}")
            dram = DramTiming(condition.latency, rate)
            result, _ = run_case(
                case,
                config,
                np.random.default_rng(seed),
                machine,
                lambda _text: None,
                dram=dram,
                batch=condition.batch,
            )
            yield {"condition": condition.name} | result
