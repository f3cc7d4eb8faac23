"""Products with int4 weights run in wide mode, and those with 2:4 weights in sparse mode: exact results, half the
cycles of MATRIX, and fewer bytes of weights.
"""

from dataclasses import replace

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization
from compiler.reference import evaluate
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import Session, dram_bytes
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from hw.isa.commands import MATRIX_WORD
from hw.isa.enums import Unit
from tests.layers.test_moves import commands_of
from tests.support.graphs import Draft, run_on
from tests.support.sparse_weights import random_sparse

WEIGHTS = Quantization.per_tensor(0.01)
#: Factors of the scales of results, by mode.
SCALE = {"wide": 0.01 * 300, "sparse": 0.01 * 3000}


def small(draft: Draft, shape: tuple[int, ...], mode: str = "wide", low: int = -8, high: int = 7):
    """Add a constant of small integers, or of 2:4 weights for the mode "sparse"."""
    weights = draft.constant(shape, quantization=WEIGHTS)
    assert weights.data is not None
    if mode == "sparse":
        sparse = random_sparse(draft.rng, weights.data[0].size, shape[0])
        sparse[0, 0], sparse[1:4, 0] = 127, 0  # not an int4
        weights.data[...] = sparse.T.reshape(shape)
    else:
        weights.data[...] = draft.rng.integers(low, high + 1, shape)
    return weights


def random_graph(draft: Draft, n: int, mode: str) -> Graph:
    """Return a chain of convolutions and dense layers with random sizes and weights for a mode."""
    rng = draft.rng
    if rng.random() < 0.5:
        rows, size = int(rng.integers(1, 40)), int(rng.integers(1, 6)) * 2 * n
        x = draft.input((rows, size))
        for _ in range(int(rng.integers(1, 4))):
            made = int(rng.choice((int(rng.integers(1, 6)) * 2 * n, int(rng.integers(1, 6 * n)))))
            scale = SCALE[mode] * x.shape[1] ** 0.5
            x = draft.node("dense", [x, small(draft, (made, x.shape[1]), mode)], (rows, made), scale=scale)
        return draft.graph.finish([x.name])
    h, w, channels = int(rng.integers(3, 12)), int(rng.integers(3, 12)), int(rng.integers(1, 4)) * 2 * n
    x = draft.input((1, h, w, channels))
    for _ in range(int(rng.integers(1, 4))):
        made, size = int(rng.integers(1, 4)) * 2 * n, int(rng.choice((1, 3)))
        scale = SCALE[mode] * size * x.shape[3] ** 0.5
        pad = size // 2
        attributes = {
            "strides": (1, 1),
            "pads": (pad, pad, pad, pad),
            "dilations": (1, 1),
            "groups": 1,
        }
        shape = (1, h, w, made)
        weights = small(draft, (made, size, size, x.shape[3]), mode)
        x = draft.node("conv2d", [x, weights], shape, scale=scale, **attributes)
    return draft.graph.finish([x.name])


def modes(graph: Graph, target: str, mode: str) -> list[bool]:
    """Return for each MATRIX command whether it uses a mode."""
    commands = [command for command in commands_of(graph, target) if command.unit == Unit.MATRIX]
    words = (command.fields["word"] for command in commands)
    return [isinstance(word, int) and bool(MATRIX_WORD.unpack(word)[mode]) for word in words]


@pytest.mark.parametrize("mode", ["wide", "sparse"])
@pytest.mark.parametrize("target", ["n4", "n8", "n16", "n32"])
def test_random_networks_are_exact(target: str, mode: str, rng: np.random.Generator) -> None:
    config, used = load_target(target), 0
    for _ in range(12):
        draft = Draft(rng)
        graph = random_graph(draft, config.n, mode)
        network, inputs = compile(graph, config), draft.random_inputs()
        wanted = evaluate(graph, inputs)
        found = run_on(GoldenDevice(config, dram_bytes(network)), network, inputs)
        assert all(np.array_equal(array, wanted[name]) for name, array in found.items())
        used += any(modes(graph, target, mode))
    assert used


def constants(network: CompiledNetwork) -> int:
    """Return the bytes of the constants in DRAM."""
    return sum(code.image.size for code in network.codes)


def product(draft: Draft, rows: int, depth: int, columns: int, mode: str = "wide", **limits: int) -> Graph:
    """Return a matrix product with small or 2:4 weights."""
    x = draft.input((rows, depth))
    weights = small(draft, (columns, depth), mode, **limits)
    y = draft.node("dense", [x, weights], (rows, columns), scale=SCALE[mode] * depth**0.5)
    return draft.graph.finish([y.name])


@pytest.mark.parametrize(("low", "high", "wide"), [(-8, 7, True), (-9, 7, False), (-8, 8, False)])
def test_only_int4_weights_are_wide(low: int, high: int, wide: bool) -> None:
    draft = Draft(np.random.default_rng(0))
    graph = product(draft, 20, 128, 64, low=low, high=high)
    assert set(modes(graph, "n16", "wide")) == {wide}
    assert not any(modes(graph, "n16", "sparse"))


@pytest.mark.parametrize(("position", "sparse"), [((0, 1), False), ((5, 64), True), ((63, 127), False)])
def test_only_two_of_four_weights_are_sparse(position: tuple[int, int], sparse: bool) -> None:
    """One weight more in four that have two already prevents sparse mode; another value of a weight does not."""
    draft = Draft(np.random.default_rng(0))
    x, weights = draft.input((20, 128)), draft.constant((64, 128), quantization=WEIGHTS)
    assert weights.data is not None
    weights.data[...] = 0
    weights.data[:, 0::4], weights.data[:, 2::4] = 100, -128
    weights.data[position] = 3
    y = draft.node("dense", [x, weights], (20, 64), scale=SCALE["sparse"] * 128**0.5)
    graph = draft.graph.finish([y.name])
    assert set(modes(graph, "n16", "sparse")) == {sparse}


def test_int4_weights_are_wide_even_if_they_are_sparse() -> None:
    draft = Draft(np.random.default_rng(0))
    x, weights = draft.input((20, 128)), draft.constant((64, 128), quantization=WEIGHTS)
    assert weights.data is not None
    weights.data[...] = 0
    weights.data[:, 1::4] = 7
    y = draft.node("dense", [x, weights], (20, 64), scale=SCALE["wide"] * 128**0.5)
    graph = draft.graph.finish([y.name])
    assert set(modes(graph, "n16", "wide")) == {True}


@pytest.mark.parametrize("off", [{"wide": 0, "sparse": 0}, {"sparse": 0}])
@pytest.mark.parametrize("mode", ["wide", "sparse"])
def test_machines_without_modes_multiply_bytes(mode: str, off: dict[str, int]) -> None:
    draft = Draft(np.random.default_rng(0))
    graph = product(draft, 20, 128, 64, mode)
    config = replace(load_target("n16"), **off)
    network, inputs = compile(graph, config), draft.random_inputs()
    found = run_on(GoldenDevice(config, dram_bytes(network)), network, inputs)
    assert all(np.array_equal(array, evaluate(graph, inputs)[name]) for name, array in found.items())
    assert (constants(network) > constants(compile(graph, "n16"))) == (mode in off)


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "mode", "ceiling"),
    [
        (128, 512, 256, "wide", 40_000),
        (1, 1024, 512, "wide", 18_200),
        (128, 512, 256, "sparse", 35_000),
        (1, 1024, 512, "sparse", 21_500),
    ],
)
def test_cycles(rows: int, depth: int, columns: int, mode: str, ceiling: int) -> None:
    """On n16, the array needs 65,536 cycles for the first product in int8, and the bus 32,768 for the second."""
    draft = Draft(np.random.default_rng(0))
    graph = product(draft, rows, depth, columns, mode)
    network, inputs = compile(graph, "n16"), draft.random_inputs()
    with RtlDevice(network.config, dram_bytes(network)) as device:
        outputs, cycles = Session(device, network).measure(inputs)
    wanted = evaluate(graph, inputs)
    assert all(np.array_equal(array, wanted[name]) for name, array in outputs.items())
    print(f"{mode} {rows} x {depth} x {columns}: {cycles:,} cycles")
    assert cycles <= ceiling
