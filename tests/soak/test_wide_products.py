"""Large products with int4 weights, also with factors for blocks, are exact and take half of the cycles of int8."""

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.graph import Graph
from compiler.reference import evaluate
from compiler.runtime.session import Session, dram_bytes
from cosim.rtl.rtl_device import RtlDevice
from tests.codegen import test_scaled_products as scaled
from tests.codegen.test_wide_products import product
from tests.support.graphs import Draft


def measured(graph: Graph, inputs: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> int:
    """Run a graph on the RTL of n16, compare its outputs, and return the cycles."""
    network = compile(graph, "n16")
    with RtlDevice(network.config, dram_bytes(network)) as device:
        outputs, cycles = Session(device, network).measure(inputs)
    assert all(np.array_equal(array, wanted[name]) for name, array in outputs.items())
    return cycles


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "ceiling"), [(512, 512, 512, 267_000), (1, 4096, 4096, 527_500)]
)
def test_cycles(rows: int, depth: int, columns: int, ceiling: int) -> None:
    draft = Draft(np.random.default_rng(0))
    graph = product(draft, rows, depth, columns)
    inputs = draft.random_inputs()
    cycles = measured(graph, inputs, evaluate(graph, inputs))
    print(f"{rows} x {depth} x {columns}: {cycles:,} cycles")
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
