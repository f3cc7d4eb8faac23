"""Products with int4 weights run in wide mode: exact results, half the cycles of MATRIX, half the bytes of weights."""

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

WEIGHTS = Quantization.per_tensor(0.01)


def int4(draft: Draft, shape: tuple[int, ...], low: int = -8, high: int = 7):
    """Add a constant of small integers."""
    weights = draft.constant(shape, quantization=WEIGHTS)
    assert weights.data is not None
    weights.data[...] = draft.rng.integers(low, high + 1, shape)
    return weights


def random_graph(draft: Draft, n: int) -> Graph:
    """Return a chain of convolutions and dense layers with random sizes."""
    rng = draft.rng
    if rng.random() < 0.5:
        rows, size = int(rng.integers(1, 40)), int(rng.integers(1, 6)) * 2 * n
        x = draft.input((rows, size))
        for _ in range(int(rng.integers(1, 4))):
            made = int(rng.choice((int(rng.integers(1, 6)) * 2 * n, int(rng.integers(1, 6 * n)))))
            scale = 0.01 * 300 * x.shape[1] ** 0.5
            x = draft.node("dense", [x, int4(draft, (made, x.shape[1]))], (rows, made), scale=scale)
        return draft.graph.finish([x.name])
    h, w, channels = int(rng.integers(3, 12)), int(rng.integers(3, 12)), int(rng.integers(1, 4)) * 2 * n
    x = draft.input((1, h, w, channels))
    for _ in range(int(rng.integers(1, 4))):
        made, size = int(rng.integers(1, 4)) * 2 * n, int(rng.choice((1, 3)))
        scale = 0.01 * 300 * size * x.shape[3] ** 0.5
        pad = size // 2
        attributes = {
            "strides": (1, 1),
            "pads": (pad, pad, pad, pad),
            "dilations": (1, 1),
            "groups": 1,
        }
        shape = (1, h, w, made)
        weights = int4(draft, (made, size, size, x.shape[3]))
        x = draft.node("conv2d", [x, weights], shape, scale=scale, **attributes)
    return draft.graph.finish([x.name])


def wide_commands(graph: Graph, target: str) -> list[bool]:
    """Return for each MATRIX command whether it uses wide mode."""
    commands = [command for command in commands_of(graph, target) if command.unit == Unit.MATRIX]
    words = (command.fields["word"] for command in commands)
    return [isinstance(word, int) and bool(MATRIX_WORD.unpack(word)["wide"]) for word in words]


@pytest.mark.parametrize("target", ["n4", "n8", "n16", "n32"])
def test_random_networks_are_exact(target: str, rng: np.random.Generator) -> None:
    config, used = load_target(target), 0
    for _ in range(12):
        draft = Draft(rng)
        graph = random_graph(draft, config.n)
        network, inputs = compile(graph, config), draft.random_inputs()
        wanted = evaluate(graph, inputs)
        found = run_on(GoldenDevice(config, dram_bytes(network)), network, inputs)
        assert all(np.array_equal(array, wanted[name]) for name, array in found.items())
        used += any(wide_commands(graph, target))
    assert used


def constants(network: CompiledNetwork) -> int:
    """Return the bytes of the constants in DRAM."""
    return sum(code.image.size for code in network.codes)


def product(draft: Draft, rows: int, depth: int, columns: int, **limits: int) -> Graph:
    """Return a matrix product with small weights."""
    x = draft.input((rows, depth))
    weights = int4(draft, (columns, depth), **limits)
    y = draft.node("dense", [x, weights], (rows, columns), scale=0.01 * 300 * depth**0.5)
    return draft.graph.finish([y.name])


@pytest.mark.parametrize(("low", "high", "wide"), [(-8, 7, True), (-9, 7, False), (-8, 8, False)])
def test_only_int4_weights_are_wide(low: int, high: int, wide: bool) -> None:
    draft = Draft(np.random.default_rng(0))
    graph = product(draft, 20, 128, 64, low=low, high=high)
    assert set(wide_commands(graph, "n16")) == {wide}


def test_machines_without_wide_mode_multiply_bytes() -> None:
    draft = Draft(np.random.default_rng(0))
    graph = product(draft, 20, 128, 64)
    config = replace(load_target("n16"), wide=0)
    network, inputs = compile(graph, config), draft.random_inputs()
    found = run_on(GoldenDevice(config, dram_bytes(network)), network, inputs)
    assert all(np.array_equal(array, evaluate(graph, inputs)[name]) for name, array in found.items())
    assert constants(network) > constants(compile(graph, "n16"))


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "ceiling"), [(128, 512, 256, 40_000), (1, 1024, 512, 18_200)]
)
def test_cycles(rows: int, depth: int, columns: int, ceiling: int) -> None:
    """On n16, the array needs 65,536 cycles for the first product in int8, and the bus 32,768 for the second."""
    draft = Draft(np.random.default_rng(0))
    graph = product(draft, rows, depth, columns)
    network, inputs = compile(graph, "n16"), draft.random_inputs()
    with RtlDevice(network.config, dram_bytes(network)) as device:
        outputs, cycles = Session(device, network).measure(inputs)
    wanted = evaluate(graph, inputs)
    assert all(np.array_equal(array, wanted[name]) for name, array in outputs.items())
    print(f"{rows} x {depth} x {columns}: {cycles:,} cycles")
    assert cycles <= ceiling
