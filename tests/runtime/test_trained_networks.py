"""Trained networks on the machine equal LiteRT."""

import numpy as np
import pytest

from compiler.api import compile
from compiler.runtime.session import Session, dram_bytes
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from tests.support.trained_networks import NETWORKS, Reference, model, random_inputs

SAMPLES = 3
#: Cycle by which the counters of all tags are cleared; until then, changes of the tag wait.
AFTER_RESET = 20_000
#: Maximum cycles of a sample on n16 at latency 100 with cold caches: the measured cycles plus a small margin.
CEILINGS = {
    "ad01_int8": 19_500,
    "kws_ref_model": 15_800,
    "pretrainedResnet_quant": 52_200,
    "vww_96_int8": 28_950,
}


def check(session: Session, reference: Reference, inputs: dict[str, np.ndarray]) -> None:
    """Compare outputs with LiteRT's; the result of a final softmax may differ by 1."""
    graph = session.network.graph
    assert graph is not None
    for (name, found), wanted in zip(session.run(inputs).items(), reference(inputs), strict=True):
        producer = graph.producer(name)
        bound = 1 if producer is not None and producer.op == "softmax" else 0
        worst = np.abs(found.astype(int) - wanted).max()
        assert worst <= bound, f"{graph.name}: output {name} is {worst} off"


@pytest.mark.parametrize("rounding", ["reference", "xnnpack"])
@pytest.mark.parametrize("name", NETWORKS)
def test_golden_model_equals_litert(name: str, rounding: str) -> None:
    network = compile(model(name), "n16", rounding=rounding)
    reference, rng = Reference(model(name), rounding), np.random.default_rng(5)
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        session = Session(device, network)
        for _ in range(SAMPLES):
            check(session, reference, random_inputs(network, rng))


@pytest.mark.parametrize("target", ["n4", "n8", "n32", "ulx3s-85f"])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_on_every_target(name: str, target: str) -> None:
    network = compile(model(name), target)
    inputs = random_inputs(network, np.random.default_rng(6))
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        check(Session(device, network), Reference(model(name)), inputs)


@pytest.mark.parametrize("name", NETWORKS)
def test_rtl_equals_litert_within_the_cycle_limit(name: str) -> None:
    network = compile(model(name), "n16")
    inputs = random_inputs(network, np.random.default_rng(7))
    with RtlDevice(network.config, dram_bytes(network)) as device:
        session = Session(device, network)
        device.run_cycles(AFTER_RESET)
        _, cycles = session.measure(inputs)
        check(session, Reference(model(name)), inputs)
    assert cycles <= CEILINGS[name], f"{name}: {cycles} cycles"
