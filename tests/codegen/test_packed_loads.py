"""Loads of packed weights: exact results, fewer bytes, and no change where packing does not pay."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from compiler.api import compile
from compiler.codegen import weight_formats
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization
from compiler.reference import evaluate
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import Session, dram_bytes
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from hw.isa.enums import Unit
from tests.layers.test_moves import commands_of
from tests.support.graphs import Draft, run_on


def chain(draft: Draft, rows: int, sizes: list[int], bits: int) -> Graph:
    """Return a chain of dense layers whose weights have at most the given number of bits."""
    x = draft.input((rows, sizes[0]))
    for before, size in pairwise(sizes):
        weights = draft.constant((size, before), quantization=Quantization.per_tensor(0.005))
        assert weights.data is not None
        np.right_shift(weights.data, 8 - bits, out=weights.data)
        x = draft.node("dense", [x, weights], (rows, size), scale=0.005 * 2**bits * before**0.5)
    return draft.graph.finish([x.name])


def constants(network: CompiledNetwork) -> int:
    """Return the bytes of the constants in DRAM."""
    return sum(code.image.size for code in network.codes)


@pytest.mark.parametrize("target", ["n4", "n8", "n16", "n32"])
def test_results_are_exact_and_bytes_fewer(
    target: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_formats, "MIN_SAVED_BEATS", 0)
    config = load_target(target)
    for _ in range(6):
        draft = Draft(rng)
        bits = int(rng.integers(1, 6))
        sizes = [int(rng.integers(3, 10)) * 2 * config.n for _ in range(3)]
        graph = chain(draft, int(rng.integers(1, 40)), sizes, bits)
        network = compile(graph, config)
        raw = compile(graph, replace(config, packed_loads=0, wide=0, sparse=0))
        inputs = draft.random_inputs()
        wanted = evaluate(graph, inputs)
        for each in (network, raw):
            found = run_on(GoldenDevice(each.config, dram_bytes(each)), each, inputs)
            assert all(np.array_equal(array, wanted[name]) for name, array in found.items())
        assert constants(network) < constants(raw)


def test_lines_of_many_loads_are_equally_long(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = Draft(rng)
    graph = chain(draft, 3, [320, 256], 5)
    inputs = draft.random_inputs()
    wanted = evaluate(graph, inputs)
    lengths = []
    for most in (64, 1):
        monkeypatch.setattr(weight_formats, "_MAX_LENGTHS", most)
        network = compile(graph, "n8")
        found = run_on(GoldenDevice(network.config, dram_bytes(network)), network, inputs)
        assert all(np.array_equal(array, wanted[name]) for name, array in found.items())
        fields = [
            command.fields
            for command in commands_of(graph, "n8")
            if command.unit == Unit.LOAD and "word" in command.fields
        ]
        lengths.append({(each.get("z_count", 1), each["len"]) for each in fields})
    assert len({size for size, _ in lengths[1]}) == len(lengths[1]) <= len(lengths[0])


def test_weights_of_eight_bits_are_not_packed(rng: np.random.Generator) -> None:
    draft = Draft(rng)
    graph = chain(draft, 4, [64, 96], 8)
    config = load_target("n16")
    assert constants(compile(graph, config)) == constants(compile(graph, replace(config, packed_loads=0)))


@pytest.mark.parametrize("bits", [5, 6])
def test_a_dense_layer_of_one_row_takes_fewer_cycles(bits: int, rng: np.random.Generator) -> None:
    """On n16, 1 x 1024 x 256 needs 16,384 beats for weights of 8 bits."""
    draft = Draft(rng)
    graph = chain(draft, 1, [1024, 256], bits)
    network = compile(graph, "n16")
    inputs = draft.random_inputs()
    with RtlDevice(network.config, dram_bytes(network)) as device:
        outputs, cycles = Session(device, network).measure(inputs)
    wanted = evaluate(graph, inputs)
    assert all(np.array_equal(array, wanted[name]) for name, array in outputs.items())
    limit = 1024 * 256 // 32 * (4 * bits + 1) / 16  # beats of the bus
    print(f"{bits} bits: {cycles:,} cycles, {cycles / limit:.2f} times the limit")
    assert cycles <= 1.1 * limit


def test_loads_that_leave_gaps_are_packed_in_pieces(rng: np.random.Generator) -> None:
    """The last of several parts of the reduction dimension is smaller than its place in the scratchpad."""
    draft = Draft(rng)
    graph = chain(draft, 49, [256, 128], 4)
    inputs = draft.random_inputs()
    wanted = evaluate(graph, inputs)
    config = replace(load_target("n16"), wide=0, sparse=0)
    first = compile(graph, config).schedule
    layers = {name: replace(each, columns=2, depth=6) for name, each in first.layers.items()}
    network = compile(graph, config, schedule=replace(first, layers=layers))
    assert constants(network) < 0.8 * constants(compile(graph, replace(config, packed_loads=0)))
    found = run_on(GoldenDevice(config, dram_bytes(network)), network, inputs)
    assert all(np.array_equal(array, wanted[name]) for name, array in found.items())


def wide_range(draft: Draft, rows: np.ndarray) -> Graph:
    """Return a dense layer with 4-bit weights, except for the given outputs, which have 8-bit weights."""
    graph = chain(draft, 2, [256, 512], 4)
    (weights,) = [tensor for tensor in graph.tensors.values() if tensor.shape == (512, 256)]
    data = weights.data
    assert data is not None
    data[rows] = draft.rng.integers(-128, 128, data[rows].shape, np.int8)
    return graph


def test_packing_does_not_depend_on_the_order_of_outputs(rng: np.random.Generator) -> None:
    """The estimate of the gain is made from all parts of the weights."""
    config = replace(load_target("n16"), wide=0, sparse=0)
    sizes = []
    for first in (0, 512 - 128):
        sizes.append(constants(compile(wide_range(Draft(rng), np.arange(first, first + 128)), config)))
    plain = constants(compile(wide_range(Draft(rng), np.arange(0)), replace(config, packed_loads=0)))
    assert max(sizes) < 0.75 * plain


@pytest.mark.parametrize("inputs, outputs", [(1000, 512), (300, 300), (1036, 384)])
def test_weights_beyond_whole_tiles_are_packed(inputs: int, outputs: int, rng: np.random.Generator) -> None:
    """The last tile of each block of outputs leaves a gap in the scratchpad."""
    draft = Draft(rng)
    graph = chain(draft, 1, [inputs, outputs], 4)
    network = compile(graph, "n16")
    assert constants(network) < 0.65 * constants(compile(graph, replace(network.config, packed_loads=0)))
    samples = draft.random_inputs()
    wanted = evaluate(graph, samples)
    found = run_on(GoldenDevice(network.config, dram_bytes(network)), network, samples)
    assert all(np.array_equal(array, wanted[name]) for name, array in found.items())
