"""The trained networks equal LiteRT for 1,000 random inputs on the golden model and 20 on the RTL (`make soak`)."""

import sys
from collections.abc import Callable

import numpy as np
import pytest

from compiler.api import compile
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import Session, dram_bytes
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from tests.support.seeds import random_seed
from tests.support.trained_networks import NETWORKS, Reference, model, random_inputs

Say = Callable[[str], None]
GOLDEN, RTL = 1000, 20


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str]) -> Say:
    """Return a function that prints to standard error despite pytest's capture."""

    def speak(text: str) -> None:
        with capfd.disabled():
            print(f"\n{text}", file=sys.stderr, flush=True)

    return speak


def compare(name: str, rounding: str, samples: int, *, rtl: bool, say: Say) -> None:
    """Assert that all nodes run on the accelerator and that outputs equal LiteRT's, or differ by 1 after a softmax."""
    network = compile(model(name), "n16", rounding=rounding, strict=True)
    reference, seed = Reference(model(name), rounding), random_seed()
    rng, size = np.random.default_rng(seed), dram_bytes(network)
    away = np.zeros(256, np.int64)
    with RtlDevice(network.config, size) if rtl else GoldenDevice(network.config, size) as device:
        session = Session(device, network)
        for _ in range(samples):
            inputs = random_inputs(network, rng)
            away += differences(network, session.run(inputs), reference(inputs))
    text = ", ".join(f"{count:,} by {step}" for step, count in enumerate(away) if step and count)
    say(
        f"{name}, rounding {rounding}, {samples} inputs of MLA_SEED={seed} on the {'RTL' if rtl else 'golden model'}: "
        f"of {away.sum():,} output values differ {text or 'none'}"
    )
    assert away[1 + ends_in_softmax(network) :].sum() == 0


def differences(
    network: CompiledNetwork, found: dict[str, np.ndarray], wanted: list[np.ndarray]
) -> np.ndarray:
    """Return the number of output values for each absolute difference."""
    pairs = zip((found[tensor.name] for tensor in network.outputs), wanted, strict=True)
    steps = [np.abs(mine.astype(int) - theirs.astype(int)).reshape(-1) for mine, theirs in pairs]
    return np.bincount(np.concatenate(steps), minlength=256)


def ends_in_softmax(network: CompiledNetwork) -> bool:
    """Return True if a softmax computes the network's output."""
    assert network.graph is not None
    (output,) = network.graph.outputs
    producer = network.graph.producer(output)
    return producer is not None and producer.op == "softmax"


@pytest.mark.parametrize("rounding", ["reference", "xnnpack"])
@pytest.mark.parametrize("name", NETWORKS)
def test_golden_model_equals_litert(name: str, rounding: str, say: Say) -> None:
    compare(name, rounding, GOLDEN, rtl=False, say=say)


@pytest.mark.parametrize("rounding", ["reference", "xnnpack"])
@pytest.mark.parametrize("name", NETWORKS)
def test_rtl_equals_litert(name: str, rounding: str, say: Say) -> None:
    compare(name, rounding, RTL, rtl=True, say=say)
