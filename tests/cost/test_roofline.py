"""No network on the RTL takes fewer cycles or transfers fewer bytes than its lower bound."""

from pathlib import Path

import numpy as np
import pytest

from compiler.api import compile
from compiler.cost.roofline import Floor
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.device import open_rtl
from compiler.runtime.run_report import document, run_samples
from tests.support.float_graphs import BLOCK, IMAGE, WITHIN, numbers, samples
from tests.support.onnx_models import model, node, read
from tests.support.strategies.examples import RTL, TENTH, check_examples
from tests.support.strategies.graphs import RandomGraph, graphs

TARGET = "n8"


def check_floor(network: CompiledNetwork, inputs: dict[str, np.ndarray], rate: float | None = None) -> int:
    """Check a network on the RTL with a DRAM latency of 1 and the given bytes per cycle; return the bound."""
    rate = rate or network.config.n
    with open_rtl(network, 1, 1, rate, lambda _: None) as device:
        run = run_samples(device, network, [inputs], lambda _: None)
    report = document(network, run, rate)
    (floor,) = run.floors
    assert floor.bytes <= report["dram_bytes_read"] + report["dram_bytes_written"]
    assert report["floor_cycles"] <= report["cycles"]
    assert report["floor_cycles"] <= report["floor_layerwise_cycles"]
    return report["floor_cycles"]


WIDE = (1, 64, 64)
FLOATS = {
    "relu": ([node("Relu", "x", "y")], {}, WIDE),
    "nothing for the accelerator": ([node("LogSoftmax", "x", "y")], {}, WIDE),
    "host node in between": (
        [node("Relu", "x", "a"), node("LogSoftmax", "a", "b"), node("Relu", "b", "y")],
        {},
        WIDE,
    ),
    "block": (BLOCK, WITHIN, IMAGE),
    "one channel of many": ([node("Gather", "x i", "y", axis=1)], {"i": np.array([3])}, WIDE),
    "slice": (
        [node("Slice", "x s e", "p"), node("Sigmoid", "p", "y")],
        {"s": np.array([0, 0, 0]), "e": np.array([1, 9, 64])},
        WIDE,
    ),
    "every fourth pixel": (
        [node("Conv", "x w", "y", kernel_shape=[1, 1], strides=[4, 4])],
        {"w": numbers(8, 3, 1, 1)},
        (1, 3, 33, 33),
    ),
    "more padding than image": (
        [node("Conv", "x w", "y", kernel_shape=[5, 5], pads=[2] * 4)],
        {"w": numbers(32, 32, 5, 5)},
        (1, 32, 1, 1),
    ),
    "cropped output": (
        [node("ConvTranspose", "x w", "y", kernel_shape=[5, 5], pads=[4] * 4)],
        {"w": numbers(32, 32, 5, 5)},
        (1, 32, 12, 12),
    ),
    "uniform constants": (
        [node("Add", "x c", "a"), node("Mul", "a d", "y")],
        {"c": np.full(WIDE, 0.5, np.float32), "d": np.array(2, np.float32)},
        WIDE,
    ),
    "concatenated constants": ([node("Concat", "x c", "y", axis=1)], {"c": numbers(1, 64, 64)}, WIDE),
}


def floats(folder: Path, case: str) -> CompiledNetwork:
    nodes, constants, shape = FLOATS[case]
    graph = read(folder, model(nodes, {"x": numbers(*shape)}, ["y"], constants))
    return compile(graph, TARGET, calibration=samples(shape), rounding="onnxruntime")


@pytest.mark.parametrize("case", FLOATS)
def test_lower_bound_of_float_models(tmp_path: Path, case: str) -> None:
    assert check_floor(floats(tmp_path, case), {"x": numbers(*FLOATS[case][2])}) >= 0


def test_bound_counts_integer_inputs_and_outputs(tmp_path: Path) -> None:
    """The bound counts one byte per element of integer inputs and outputs, and nothing for values that only the host
    uses.
    """
    rows = 64 * 64
    assert floats(tmp_path, "relu").floor == Floor(0, 2 * rows)
    # Values exchanged with a host operator in the middle are float32, which the accelerator converts.
    assert floats(tmp_path, "host node in between").floor == Floor(0, 10 * rows)
    assert floats(tmp_path, "nothing for the accelerator").floor == Floor(0, 0)
    # The product with 2 leaves the integers unchanged.
    assert floats(tmp_path, "uniform constants").floor == Floor(0, 3 * rows)
    assert floats(tmp_path, "concatenated constants").floor == Floor(0, 4 * rows)
    assert floats(tmp_path, "one channel of many").floor == Floor(0, 2 * 64)
    # Each of the 8 * 8 outputs is a sum over all taps.
    assert floats(tmp_path, "cropped output").floor.macs == 8 * 8 * 5 * 5 * 32 * 32


@pytest.mark.parametrize("times", [1.5, 2, 8])
def test_memory_faster_than_a_row_a_cycle(tmp_path: Path, times: float) -> None:
    """The bound also holds for memory that reads one row and writes another in each cycle."""
    network = floats(tmp_path, "concatenated constants")
    check_floor(network, {"x": numbers(*WIDE)}, times * network.config.n)


def test_random_graphs_respect_their_lower_bound() -> None:
    def check(grown: RandomGraph) -> None:
        check_floor(compile(grown.graph, TARGET, rounding=grown.rounding), grown.inputs)

    check_examples(graphs(most=4), check, RTL // TENTH)
