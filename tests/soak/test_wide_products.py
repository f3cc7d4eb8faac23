"""Large products with int4 or 2:4 weights, also with factors for blocks, are exact and take half of the cycles."""

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.graph import Graph
from compiler.reference import evaluate
from compiler.runtime.session import Session, dram_bytes
from cosim.rtl.rtl_device import RtlDevice
from tests.codegen import test_scaled_products as scaled
from tests.codegen.test_wide_products import product, small
from tests.support.graphs import Draft


def measured(graph: Graph, inputs: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> int:
    """Run a graph on the RTL of n16, compare its outputs, and return the cycles."""
    network = compile(graph, "n16")
    with RtlDevice(network.config, dram_bytes(network)) as device:
        outputs, cycles = Session(device, network).measure(inputs)
    assert all(np.array_equal(array, wanted[name]) for name, array in outputs.items())
    return cycles


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "mode", "ceiling"),
    [
        (512, 512, 512, "wide", 267_000),
        (1, 4096, 4096, "wide", 527_500),
        (512, 512, 512, "sparse", 268_500),
        (1, 4096, 4096, "sparse", 660_000),
    ],
)
def test_cycles(rows: int, depth: int, columns: int, mode: str, ceiling: int) -> None:
    draft = Draft(np.random.default_rng(0))
    graph = product(draft, rows, depth, columns, mode)
    inputs = draft.random_inputs()
    cycles = measured(graph, inputs, evaluate(graph, inputs))
    print(f"{mode} {rows} x {depth} x {columns}: {cycles:,} cycles")
    assert cycles <= ceiling


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "ceiling"), [(512, 512, 512, 268_000), (1, 4096, 4096, 561_000)]
)
def test_cycles_with_factors(rows: int, depth: int, columns: int, ceiling: int) -> None:
    """With a factor for each block of 32 inputs and output; the bus needs 557,056 cycles for the second product."""
    draft = Draft(np.random.default_rng(0))
    graph = scaled.one(draft, rows, depth, columns, 32)
    inputs = draft.random_inputs()
    cycles = measured(graph, inputs, scaled.computed(graph, inputs))
    print(f"{rows} x {depth} x {columns} with factors: {cycles:,} cycles")
    assert cycles <= ceiling


def test_cycles_of_a_convolution() -> None:
    """The array needs 451,584 cycles for a convolution of 56x56x64 to 64 channels without sparse mode."""
    draft = Draft(np.random.default_rng(0))
    x, weights = draft.input((1, 56, 56, 64)), small(draft, (64, 3, 3, 64), "sparse")
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
    y = draft.node("conv2d", [x, weights], (1, 56, 56, 64), scale=30 * 24.0, **window)
    graph, inputs = draft.graph.finish([y.name]), draft.random_inputs()
    cycles = measured(graph, inputs, evaluate(graph, inputs))
    print(f"sparse 3x3 56x56x64 to 64: {cycles:,} cycles")
    assert cycles <= 228_000
