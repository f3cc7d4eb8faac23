"""Memory contents after every layer of ResNet-50 on the RTL are correct, and utilization is high (`make soak`)."""

import hashlib
import sys
from copy import copy
from dataclasses import replace

import numpy as np
import pytest

from compiler.api import compile
from compiler.bench.architectures import model_file
from compiler.frontends.model import read_model
from compiler.ir.graph import Graph
from compiler.quantize.ranges import random_samples
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import PlacedStage, Session, dram_bytes
from cosim.device import Device
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice

#: Minimum utilization of the array on n16 at latency 100 for a single inference.
UTILIZATION = 0.75
#: Maximum cycles with weights that need half of the products, by their kind.
CEILINGS = {"int4": 8_900_000, "2:4": 8_900_000}

Inputs = dict[str, np.ndarray]


def memory(session: Session) -> dict[str, np.ndarray]:
    """Return all memories that a layer can write: scratchpad, accumulator, and the DRAM of the model."""
    config, device, (place,) = session.network.config, session.device, session.loaded
    return {
        "scratchpad": device.read_sp(0, config.sp_bytes),
        "accumulator": device.read_acc(0, config.acc_rows),
        "DRAM": device.dram[place.base : session.driver.memory.used],
    }


def digests(
    device: Device, network: CompiledNetwork, inputs: Inputs
) -> tuple[list[tuple[str, str, str]], Inputs]:
    """Return (program name, memory name, digest) for each memory after each program, and the network's outputs."""
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
    """Return ResNet-50 with the compiler's schedule, in which small layers share programs with their neighbours."""
    graph = read_model(model_file("resnet50"))
    return compile(graph, "n16", calibration=random_samples(graph, 0, 1))


@pytest.fixture(scope="module")
def network(joined: CompiledNetwork) -> CompiledNetwork:
    """Return ResNet-50 with at least one program for each layer."""
    assert joined.graph is not None
    layers = {
        name: replace(layer, same_program_as_previous=False) for name, layer in joined.schedule.layers.items()
    }
    return compile(joined.graph, "n16", schedule=replace(joined.schedule, layers=layers))


@pytest.fixture(scope="module")
def inputs(joined: CompiledNetwork) -> Inputs:
    """Return a random image."""
    return {t.name: np.random.default_rng(1).standard_normal(t.shape).astype(t.dtype) for t in joined.inputs}


def test_memories_after_every_layer_are_equal(network: CompiledNetwork, inputs: Inputs) -> None:
    size, (code,) = dram_bytes(network), network.codes
    assert all(len(part.layers) == 1 for part in code.parts)
    assert {layer for part in code.parts for layer in part.layers} == set(range(len(network.layers)))
    with GoldenDevice(network.config, size) as device:
        wanted, outputs = digests(device, network, inputs)
    with RtlDevice(network.config, size) as device:
        found, results = digests(device, network, inputs)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine == theirs, f"program {mine[0]!r}: the {mine[1]} differs"
    assert len({digest for _, _, digest in wanted}) > len(code.parts)  # every program changed a memory
    for name, array in outputs.items():
        np.testing.assert_array_equal(results[name], array)


def test_utilization_of_single_inference(
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


def with_weights(graph: Graph, kind: str) -> Graph:
    """Return an integer graph whose layers have random weights of a kind; in "2:4", the first layer is dense."""
    rng, changed = np.random.default_rng(0), copy(graph)
    changed.tensors = tensors = dict(graph.tensors)
    for node in graph.nodes.values():
        weights = tensors[node.inputs[1]] if node.op in ("conv2d", "dense") else None
        if weights is not None and weights.data is not None:
            most = 8 if kind == "int4" else 128
            data = rng.integers(-most, most, weights.shape).astype(np.int8)
            if kind == "2:4" and data.shape[-1] % 4 == 0:
                groups = data.reshape(-1, 4)
                np.put_along_axis(groups, rng.random(groups.shape).argsort(1)[:, :2], 0, 1)
            tensors[weights.name] = replace(weights, data=data)
    return changed


@pytest.mark.parametrize("kind", CEILINGS)
def test_cycles_of_small_weights(
    joined: CompiledNetwork, inputs: Inputs, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert joined.graph is not None
    network = compile(with_weights(joined.graph, kind), "n16")
    size = dram_bytes(network)
    with GoldenDevice(network.config, size) as device:
        wanted = Session(device, network).run(inputs)
    with RtlDevice(network.config, size) as device:
        found, cycles = Session(device, network).measure(inputs)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)
    with capfd.disabled():
        print(f"\nresnet50, {kind} weights: {cycles:,} cycles", file=sys.stderr, flush=True)
    assert cycles <= CEILINGS[kind]
