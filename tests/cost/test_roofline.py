"""No network takes fewer cycles on the RTL than its floor says, nor moves fewer bytes."""

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


def beats_no_floor(network: CompiledNetwork, inputs: dict[str, np.ndarray], rate: float | None = None) -> int:
    """Run a network on the RTL, with DRAM that answers at once, so many bytes a cycle; the floor."""
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
    "one function": ([node("Relu", "x", "y")], {}, WIDE),
    "nothing for the accelerator": ([node("LogSoftmax", "x", "y")], {}, WIDE),
    "a host node between": (
        [node("Relu", "x", "a"), node("LogSoftmax", "a", "b"), node("Relu", "b", "y")],
        {},
        WIDE,
    ),
    "a block": (BLOCK, WITHIN, IMAGE),
    "one channel of many": ([node("Gather", "x i", "y", axis=1)], {"i": np.array([3])}, WIDE),
    "a part": (
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
    "an output cut off": (
        [node("ConvTranspose", "x w", "y", kernel_shape=[5, 5], pads=[4] * 4)],
        {"w": numbers(32, 32, 5, 5)},
        (1, 32, 12, 12),
    ),
    "constants alike": (
        [node("Add", "x c", "a"), node("Mul", "a d", "y")],
        {"c": np.full(WIDE, 0.5, np.float32), "d": np.array(2, np.float32)},
        WIDE,
    ),
    "constants put in": ([node("Concat", "x c", "y", axis=1)], {"c": numbers(1, 64, 64)}, WIDE),
}


def floats(folder: Path, case: str) -> CompiledNetwork:
    nodes, constants, shape = FLOATS[case]
    graph = read(folder, model(nodes, {"x": numbers(*shape)}, ["y"], constants))
    return compile(graph, TARGET, calibration=samples(shape), rounding="onnxruntime")


@pytest.mark.parametrize("case", FLOATS)
def test_floats(tmp_path: Path, case: str) -> None:
    assert beats_no_floor(floats(tmp_path, case), {"x": numbers(*FLOATS[case][2])}) >= 0


def test_integers_are_what_crosses(tmp_path: Path) -> None:
    """A byte for each number that goes in or comes out; none for what the host computes alone."""
    rows = 64 * 64
    assert floats(tmp_path, "one function").floor == Floor(0, 2 * rows)
    # Between, what the host takes and gives is float32, which the accelerator converts.
    assert floats(tmp_path, "a host node between").floor == Floor(0, 10 * rows)
    assert floats(tmp_path, "nothing for the accelerator").floor == Floor(0, 0)
    assert floats(tmp_path, "constants alike").floor == Floor(0, 3 * rows + 1)
    assert floats(tmp_path, "constants put in").floor == Floor(0, 4 * rows)
    assert floats(tmp_path, "one channel of many").floor == Floor(0, 2 * 64)
    # Each of the 8 * 8 outputs is a sum over all taps.
    assert floats(tmp_path, "an output cut off").floor.macs == 8 * 8 * 5 * 5 * 32 * 32


@pytest.mark.parametrize("times", [1.5, 2, 8])
def test_memory_faster_than_a_row_a_cycle(tmp_path: Path, times: float) -> None:
    """It may read a row and write another at once."""
    network = floats(tmp_path, "constants put in")
    beats_no_floor(network, {"x": numbers(*WIDE)}, times * network.config.n)


def test_no_random_graph_beats_its_roofline() -> None:
    def check(grown: RandomGraph) -> None:
        beats_no_floor(compile(grown.graph, TARGET, rounding=grown.rounding), grown.inputs)

    check_examples(graphs(most=4), check, RTL // TENTH)
