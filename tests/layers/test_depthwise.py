"""Depthwise convolutions agree with sums in numpy and with the reference, and take few cycles on the RTL."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.api import compile
from compiler.bench.single_layer import X_ZERO, Y_ZERO, OneLayer, random_int8, requantize
from compiler.ir.graph import Graph
from compiler.layers.depthwise import DepthwiseLayer, column_order, consecutive_phases
from compiler.reference import evaluate
from compiler.runtime.session import dram_bytes
from cosim.golden import GoldenDevice
from hw.config import load_target
from tests.layers.test_thin_convolutions import Convolution
from tests.support.graphs import Draft, check, run_on
from tests.support.random_schedules import check_schedules

TARGETS = ("n4", "n8", "n16", "n32")


class Depthwise(Convolution):
    """Depthwise convolution: `groups` channels with `outputs` outputs each."""

    def case(self, rng: np.random.Generator) -> tuple[Graph, NDArray[np.int8], NDArray[np.int64]]:
        """Return a graph of the convolution with random weights, an input and the outputs."""
        if self.outputs > 1:
            return super().case(rng)
        layer = OneLayer(rng, (*self.kernel, self.groups), 2, self.kernel[0] * self.kernel[1])
        x = random_int8(rng, self.batch, self.h, self.w, self.groups)
        sums = self.sums(x.astype(np.int64) - X_ZERO, layer.weights.transpose(2, 0, 1)[..., None])
        wanted = requantize(sums + layer.bias, layer.ratios(), Y_ZERO)
        how = {"strides": self.strides, "pads": (self.pad,) * 4, "dilations": (self.dilation,) * 2}
        return layer.graph("depthwise_conv2d", x.shape, wanted.shape, **how), x, wanted


def limit(shape: Depthwise) -> float:
    """Return the cycles that array and bus of n16 need at least, for whole blocks of channels."""
    channels = -(-shape.groups // 16) * 16
    pixels = shape.batch
    for size, taps, step in zip((shape.h, shape.w), shape.kernel, shape.strides, strict=True):
        pixels *= (size + 2 * shape.pad - (taps - 1) * shape.dilation - 1) // step + 1
    products = pixels * channels * shape.outputs * shape.kernel[0] * shape.kernel[1]
    moved = shape.batch * shape.h * shape.w * channels + pixels * channels * shape.outputs
    return max(products / 256, moved / 16)


def long_dilation(rng: np.random.Generator) -> Depthwise:
    """Return a depthwise convolution whose phases have few rows and columns."""
    kernel, dilation = int(rng.integers(2, 6)), int(rng.integers(5, 20))
    zeros = int(rng.integers(0, kernel))
    least = max(dilation, (kernel - 1 - 2 * zeros) * dilation) + 1
    return Depthwise(
        h=int(rng.integers(least, least + 2 * dilation)),
        w=int(rng.integers(least, least + 2 * dilation)),
        inputs=1,
        outputs=int(rng.integers(1, 3)),
        groups=int(rng.integers(2, 30)),
        kernel=(kernel, kernel),
        dilation=dilation,
        pad=zeros * dilation,
        batch=int(rng.integers(1, 3)),
    )


def strided(rng: np.random.Generator) -> Depthwise:
    """Return a depthwise convolution with strides."""
    kernel = int(rng.integers(1, 10)), int(rng.integers(1, 10))
    pad = int(rng.integers(0, max(kernel) + 2))
    return Depthwise(
        h=int(rng.integers(kernel[0], 30)),
        w=int(rng.integers(kernel[1], 40)),
        inputs=1,
        outputs=int(rng.integers(1, 3)),
        groups=int(rng.integers(2, 40)),
        kernel=kernel,
        strides=(int(rng.integers(1, 5)), int(rng.integers(2, 5))),
        pad=pad,
        batch=int(rng.integers(1, 3)),
    )


def random_depthwise(rng: np.random.Generator) -> Depthwise:
    """Return a depthwise convolution, most often dilated, of one or more images, with one or two outputs."""
    kernel = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    dilation = int(rng.choice((1, 2, 3, 5, 8)))
    reach = (max(kernel) - 1) * dilation
    pad = int(rng.integers(0, reach + 1))
    least = max(1, reach + 1 - 2 * pad)
    return Depthwise(
        h=int(rng.integers(least, least + 20)),
        w=int(rng.integers(least, least + 24)),
        inputs=1,
        outputs=int(rng.integers(1, 3)),
        groups=int(rng.integers(2, 70)),
        kernel=kernel,
        dilation=dilation,
        pad=pad,
        batch=int(rng.integers(1, 4)),
    )


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize("target", TARGETS)
def test_random_convolutions_are_exact(target: str, seed: int) -> None:
    random_depthwise(np.random.default_rng(seed)).check(target, seed)


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("target", TARGETS)
def test_long_dilations_are_exact(target: str, seed: int) -> None:
    long_dilation(np.random.default_rng(seed)).check(target, seed)


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("target", TARGETS)
def test_strides_are_exact(target: str, seed: int) -> None:
    strided(np.random.default_rng(seed)).check(target, seed)


@pytest.mark.parametrize("op", ["add", "tanh", "sub"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_long_dilations_before_other_operators(dtype: str, op: str) -> None:
    """Columns are loaded phase by phase; results are tensors in DRAM or operands of a sum or a table."""
    draft = Draft(np.random.default_rng(7))
    x = draft.input((2, 33, 31, 40), dtype)
    window = {"strides": (1, 1), "pads": (12, 12, 12, 12), "dilations": (12, 12)}
    weights = draft.constant((3, 3, 40), dtype)
    y = draft.node("depthwise_conv2d", [x, weights], x.shape, dtype=dtype, scale=30.0, **window)
    if op == "tanh":
        z = draft.node(op, [y], y.shape, dtype=dtype, scale=1 / 128)
    else:
        z = draft.node(op, [y, x], y.shape, dtype=dtype, scale=20.0)
    (layer,) = (each for each in check(draft, [z], "n16").layers if isinstance(each, DepthwiseLayer))
    assert column_order(
        load_target("n16"), consecutive_phases(load_target("n16"), layer)[0].layer, in_dram=True
    )


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("columns", [20, 300])
def test_dilated_images_with_a_summand_are_exact(columns: int, batch: int) -> None:
    """Wide rows of sums do not fit the accumulator twice: the phases of the columns also follow one another."""
    draft = Draft(np.random.default_rng(columns + batch))
    x = draft.input((batch, 11, columns, 20))
    window = {"strides": (1, 1), "pads": (3, 3, 3, 3), "dilations": (3, 3)}
    y = draft.node("depthwise_conv2d", [x, draft.constant((3, 3, 20))], x.shape, scale=30.0, **window)
    network = check(draft, [draft.node("add", [y, x], x.shape, scale=20.0)], "n8")
    assert [type(layer) for layer in network.layers] == [DepthwiseLayer]


PLAIN = Depthwise(28, 28, inputs=1, outputs=1, groups=64)


@pytest.mark.parametrize(
    ("shape", "share"),
    [
        (replace(PLAIN, groups=96, dilation=4, pad=4), 0.92),
        (replace(PLAIN, batch=4, dilation=2, pad=2), 0.97),
        (replace(PLAIN, h=33, w=33, groups=240, dilation=6, pad=6), 0.96),
        (replace(PLAIN, outputs=2, h=56, w=56, dilation=2, pad=2), 0.93),
        (replace(PLAIN, outputs=2, dilation=4, pad=4), 0.85),
        (replace(PLAIN, outputs=2, batch=4, dilation=2, pad=2), 0.95),
        (replace(PLAIN, h=33, w=33, groups=480, dilation=12, pad=12), 0.92),
        (replace(PLAIN, h=33, w=33, groups=240, dilation=18, pad=18), 0.79),
        (replace(PLAIN, h=33, w=33, groups=480, dilation=24, pad=24), 0.76),
        (replace(PLAIN, h=65, w=65, groups=128, dilation=24, pad=24), 0.90),
        (replace(PLAIN, h=65, w=65, groups=128, dilation=36, pad=36), 0.82),
        (replace(PLAIN, h=33, w=33, outputs=2, groups=256, dilation=12, pad=12), 0.76),
        (replace(PLAIN, kernel=(7, 7), strides=(2, 2), pad=3), 0.53),
        (replace(PLAIN, h=56, w=56, kernel=(7, 7), strides=(2, 2), pad=3), 0.63),
        (replace(PLAIN, h=56, w=56, groups=24, kernel=(7, 7), strides=(2, 2), pad=3), 0.55),
        (replace(PLAIN, h=56, w=56, groups=24, kernel=(5, 5), pad=2), 0.73),
        (replace(PLAIN, h=56, w=56, groups=72, kernel=(5, 5), pad=2), 0.76),
        (replace(PLAIN, h=56, w=56, groups=88, kernel=(5, 5), pad=2), 0.77),
        (replace(PLAIN, kernel=(5, 5), pad=2), 0.74),
        (replace(PLAIN, groups=120, kernel=(5, 5), pad=2), 0.75),
        (replace(PLAIN, h=14, w=14, groups=200, kernel=(5, 5), pad=2), 0.665),
        (replace(PLAIN, h=56, w=56, groups=88), 0.93),
        (replace(PLAIN, h=56, w=56, groups=120, kernel=(7, 7), strides=(2, 2), pad=3), 0.64),
        (replace(PLAIN, h=56, w=56, outputs=2, strides=(2, 2)), 0.66),
        (replace(PLAIN, h=56, w=56, outputs=2, kernel=(5, 5), pad=2), 0.59),
    ],
)
def test_cycles(shape: Depthwise, share: float) -> None:
    assert limit(shape) / shape.cycles() >= share


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("target", TARGETS)
def test_blocks_one_after_the_other_are_exact(target: str, seed: int) -> None:
    """Random schedules whose tiles of several channel blocks are computed in parts of one block."""
    rng = np.random.default_rng(seed)
    shape = replace(strided(rng), strides=(int(rng.integers(1, 4)), int(rng.integers(1, 4))))
    graph, x, wanted = shape.case(rng)
    network = compile(graph, target)
    (name,) = network.schedule.layers
    schedules = []
    for _ in range(6):
        schedule = replace(
            network.schedule.layers[name],
            order="channels",
            rows=int(rng.integers(1, 12)),
            rows_per_load=int(rng.integers(1, 24)),
            columns=int(rng.integers(1, 6)),
            x_buffers=int(rng.integers(1, 4)),
            y_buffers=int(rng.integers(1, 4)),
            acc_buffers=int(rng.integers(1, 4)),
            strip_width=int(rng.choice([7, 999])),
            split_first_tile=bool(rng.integers(2)),
            split_last_tile=bool(rng.integers(2)),
        )
        schedules.append(replace(network.schedule, layers={name: schedule}))
    check_schedules(graph, target, schedules, x, wanted)


@pytest.mark.parametrize("op", ["add", "tanh", "tail"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_blocks_one_after_the_other_before_other_operators(dtype: str, op: str) -> None:
    draft = Draft(np.random.default_rng(3))
    x = draft.input((2, 21, 23, 72), dtype)
    window = {"strides": (1, 1), "pads": (2, 2, 2, 2), "dilations": (1, 1)}
    weights = draft.constant((5, 5, 72), dtype)
    y = draft.node("depthwise_conv2d", [x, weights], x.shape, dtype=dtype, scale=30.0, **window)
    if op == "add":
        y = draft.node("add", [y, draft.input(x.shape, dtype)], x.shape, dtype=dtype, scale=20.0)
    elif op == "tanh":
        y = draft.node("tanh", [y], y.shape, dtype=dtype, scale=1 / 128)
    outputs = [y]
    if op == "tail":  # the result is in the scratchpad, and in the next layer the input
        outputs = [draft.node("depthwise_conv2d", [y, weights], x.shape, dtype=dtype, scale=900.0, **window)]
    graph = draft.graph.finish([each.name for each in outputs])
    first, inputs = compile(graph, "n16", rounding="reference"), draft.random_inputs()
    layers = {
        name: replace(each, order="channels", columns=4, rows=9, rows_per_load=12, split_last_tile=True)
        for name, each in first.schedule.layers.items()
    }
    network = compile(graph, "n16", rounding="reference", schedule=replace(first.schedule, layers=layers))
    wanted = evaluate(graph, inputs, rounding="reference")
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        found = run_on(device, network, inputs)
    assert all(np.array_equal(found[each.name], wanted[each.name]) for each in outputs)
