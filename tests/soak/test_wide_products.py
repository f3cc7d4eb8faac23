"""Large products with int4 or 2:4 weights are exact and close to half of the cycles that other int8 weights need."""

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.graph import Graph
from compiler.reference import evaluate
from compiler.runtime.session import Session, dram_bytes
from cosim.rtl.rtl_device import RtlDevice
from tests.codegen.test_wide_products import product, small
from tests.support.graphs import Draft


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
    cycles = exact_cycles(graph, draft)
    print(f"{mode} {rows} x {depth} x {columns}: {cycles:,} cycles")
    assert cycles <= ceiling


def test_cycles_of_a_convolution() -> None:
    """The array needs 451,584 cycles for a convolution of 56x56x64 to 64 channels without sparse mode."""
    draft = Draft(np.random.default_rng(0))
    x, weights = draft.input((1, 56, 56, 64)), small(draft, (64, 3, 3, 64), "sparse")
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
    y = draft.node("conv2d", [x, weights], (1, 56, 56, 64), scale=30 * 24.0, **window)
    cycles = exact_cycles(draft.graph.finish([y.name]), draft)
    print(f"sparse 3x3 56x56x64 to 64: {cycles:,} cycles")
    assert cycles <= 228_000


def exact_cycles(graph: Graph, draft: Draft) -> int:
    """Return the cycles of a network on n16, whose results must be exact."""
    network, inputs = compile(graph, "n16"), draft.random_inputs()
    with RtlDevice(network.config, dram_bytes(network)) as device:
        outputs, cycles = Session(device, network).measure(inputs)
    wanted = evaluate(graph, inputs)
    assert all(np.array_equal(array, wanted[name]) for name, array in outputs.items())
    return cycles
