"""Large products with int4 or 2:4 weights are exact and close to half of the cycles that other int8 weights need."""

import numpy as np
import pytest

from compiler.api import compile
from compiler.reference import evaluate
from compiler.runtime.session import Session, dram_bytes
from cosim.rtl.rtl_device import RtlDevice
from tests.codegen.test_wide_products import product
from tests.support.graphs import Draft


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "mode", "ceiling"),
    [
        (512, 512, 512, "wide", 267_000),
        (1, 4096, 4096, "wide", 527_500),
        (512, 512, 512, "sparse", 270_000),
    ],
)
def test_cycles(rows: int, depth: int, columns: int, mode: str, ceiling: int) -> None:
    draft = Draft(np.random.default_rng(0))
    graph = product(draft, rows, depth, columns, mode)
    network, inputs = compile(graph, "n16"), draft.random_inputs()
    with RtlDevice(network.config, dram_bytes(network)) as device:
        outputs, cycles = Session(device, network).measure(inputs)
    wanted = evaluate(graph, inputs)
    assert all(np.array_equal(array, wanted[name]) for name, array in outputs.items())
    print(f"{mode} {rows} x {depth} x {columns}: {cycles:,} cycles")
    assert cycles <= ceiling
