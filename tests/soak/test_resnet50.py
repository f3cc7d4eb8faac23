"""ResNet-50 whole on the RTL: what every layer writes, and all of it back to back in few cycles (`make soak`)."""

import hashlib
import sys
from dataclasses import replace

import numpy as np
import pytest

from compiler.api import compile
from compiler.bench.architectures import model_file
from compiler.frontends.model import read_model
from compiler.quantize.ranges import random_samples
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import PlacedStage, Session, dram_bytes
from cosim.device import Device
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice

#: Multiply-accumulates over cycles times the array's, on n16 at latency 100, everything cold.
UTILIZATION = 0.75

Inputs = dict[str, np.ndarray]


def memory(session: Session) -> dict[str, np.ndarray]:
    """All that a layer can write: scratchpad, accumulator, the model's memory with its inputs and outputs."""
    config, device, (place,) = session.network.config, session.device, session.loaded
    return {
        "scratchpad": device.read_sp(0, config.sp_bytes),
        "accumulator": device.read_acc(0, config.acc_rows),
        "DRAM": device.dram[place.base : session.driver.memory.used],
    }


def digests(
    device: Device, network: CompiledNetwork, inputs: Inputs
) -> tuple[list[tuple[str, str, str]], Inputs]:
    """For each program its name, a memory, and the digest of what that holds after it; and the outputs."""
    out: list[tuple[str, str, str]] = []

    def look(place: PlacedStage, number: int) -> None:
        program = place.code.parts[number].program
        for name, held in memory(session).items():
            out.append((program.name, name, hashlib.sha256(np.ascontiguousarray(held).tobytes()).hexdigest()))

    session = Session(device, network)
    session.on_program = look
    return out, session.run(inputs)


@pytest.fixture(scope="module")
def joined() -> CompiledNetwork:
    """ResNet-50 as the compiler schedules it, small layers as parts of their neighbours' programs."""
    graph = read_model(model_file("resnet50"))
    return compile(graph, "n16", calibration=random_samples(graph, 0, 1))


@pytest.fixture(scope="module")
def network(joined: CompiledNetwork) -> CompiledNetwork:
    """The same with a program, or more, for each layer."""
    assert joined.graph is not None
    layers = {
        name: replace(layer, same_program_as_previous=False) for name, layer in joined.schedule.layers.items()
    }
    return compile(joined.graph, "n16", schedule=replace(joined.schedule, layers=layers))


@pytest.fixture(scope="module")
def inputs(joined: CompiledNetwork) -> Inputs:
    """An image."""
    return {t.name: np.random.default_rng(1).standard_normal(t.shape).astype(t.dtype) for t in joined.inputs}


def test_every_layer_writes_the_same(network: CompiledNetwork, inputs: Inputs) -> None:
    size, (code,) = dram_bytes(network), network.codes
    assert all(len(part.layers) == 1 for part in code.parts)
    assert {layer for part in code.parts for layer in part.layers} == set(range(len(network.layers)))
    with GoldenDevice(network.config, size) as device:
        wanted, outputs = digests(device, network, inputs)
    with RtlDevice(network.config, size) as device:
        found, results = digests(device, network, inputs)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine == theirs, f"program {mine[0]!r}: the {mine[1]} differs"
    assert len({digest for _, _, digest in wanted}) > len(code.parts)  # something was written by each
    for name, array in outputs.items():
        np.testing.assert_array_equal(results[name], array)


def test_back_to_back_it_is_fast(
    joined: CompiledNetwork, inputs: Inputs, capfd: pytest.CaptureFixture[str]
) -> None:
    size = dram_bytes(joined)
    with GoldenDevice(joined.config, size) as device:
        wanted = Session(device, joined).run(inputs)
    with RtlDevice(joined.config, size) as device:
        found, cycles = Session(device, joined).measure(inputs)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)
    share = joined.floor.macs / (cycles * joined.config.n**2)
    with capfd.disabled():
        print(f"\nresnet50: {cycles:,} cycles, utilization {100 * share:.1f}%", file=sys.stderr, flush=True)
    assert share >= UTILIZATION
