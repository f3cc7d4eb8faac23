"""Weights with a zero point for each output channel: results agree with sums in numpy and take few cycles."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.api import compile
from compiler.bench.single_layer import X_ZERO, Y_ZERO, OneLayer, random_int8, requantize
from compiler.ir.graph import Graph, rebuild
from compiler.ir.tensor import Quantization, Tensor
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.depthwise import DepthwiseLayer
from compiler.layers.epilogue_lowering import stored_weights
from compiler.runtime.device import open_device
from compiler.runtime.session import Session, dram_bytes
from cosim.golden import GoldenDevice
from tests.layers.test_depthwise import PLAIN, Depthwise, random_depthwise, strided
from tests.layers.test_depthwise import limit as depthwise_limit
from tests.layers.test_thin_convolutions import TARGETS, Convolution, random_groups
from tests.support.graphs import Draft, check
from tests.support.random_schedules import check_schedules


def with_zero_points(
    shape: Convolution, rng: np.random.Generator, spread: int = 128, large: float = 1.0
) -> tuple[Graph, NDArray[np.int8], NDArray[np.int64]]:
    """Return a graph of a convolution whose weights have random zero points, an input and the outputs.

    `spread` is the maximum magnitude of the zero points. Of the weights, a share of `large` covers the range of int8,
    and the others a quarter of it.
    """
    pixelwise = isinstance(shape, Depthwise) and shape.outputs == 1
    channels = shape.groups * shape.outputs
    sizes, axis = (channels, *shape.kernel, shape.inputs), 0
    if pixelwise:
        sizes, axis = (*shape.kernel, channels), 2
    layer = OneLayer(rng, sizes, axis, shape.kernel[0] * shape.kernel[1] * shape.inputs)
    zeros = np.clip(rng.integers(-spread, spread + 1, channels), -128, 127)
    weights = random_int8(rng, *sizes)
    weights[rng.random(sizes) >= large] //= 4
    moved = np.moveaxis(weights, axis, 0)
    # Both ends of the range of differences, which has 9 bits.
    moved[0].flat[0], zeros[0] = 127, -spread
    moved[-1].flat[-1], zeros[-1] = -128, min(spread, 127)
    exact = moved.astype(np.int64) - zeros.reshape(-1, *[1] * (moved.ndim - 1))
    x = random_int8(rng, shape.batch, shape.h, shape.w, shape.groups * shape.inputs)
    sums = shape.sums(x.astype(np.int64) - X_ZERO, exact[..., None] if pixelwise else exact)
    wanted = requantize(sums + layer.bias, layer.ratios(), Y_ZERO)
    how = {"strides": shape.strides, "pads": (shape.pad,) * 4, "dilations": (shape.dilation,) * 2}
    op = "depthwise_conv2d" if pixelwise else "conv2d"
    graph = layer.graph(op, x.shape, wanted.shape, **how, **({} if pixelwise else {"groups": shape.groups}))
    meaning = Quantization(tuple(layer.scales.tolist()), tuple(zeros.tolist()), axis)
    changed = {"weights": Tensor("weights", sizes, "int8", meaning, weights)}
    return rebuild(graph, graph, changed=changed), x, wanted


def check_exact(shape: Convolution, target: str, seed: int) -> None:
    """Compare a convolution on the golden model with numpy."""
    print(f"{shape} on {target}, seed {seed}")
    graph, x, wanted = with_zero_points(
        shape, np.random.default_rng(seed), 128 if seed % 2 else 20, (1.0, 1.0, 0.2, 0.0)[seed % 4]
    )
    network = compile(graph, target)
    assert not network.host and len(network.layers) == 1
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        assert np.array_equal(Session(device, network).run({"x": x})["y"], wanted)


def random_convolution(rng: np.random.Generator) -> Convolution:
    """Return a convolution of one group, often of an image with few channels."""
    kernel, stride = int(rng.integers(1, 6)), int(rng.integers(1, 3))
    return Convolution(
        h=int(rng.integers(5, 15)),
        w=int(rng.integers(5, 40)),
        inputs=int(rng.integers(1, 5)) if rng.random() < 0.5 else int(rng.integers(1, 80)),
        outputs=int(rng.integers(1, 70)),
        kernel=(kernel, int(rng.integers(1, 6))),
        strides=(stride, int(rng.integers(1, 3))),
        pad=int(rng.integers(3)),
        batch=int(rng.integers(1, 3)),
    )


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shapes", [random_convolution, random_groups, random_depthwise, strided])
def test_random_convolutions_are_exact(shapes, target: str, seed: int) -> None:
    check_exact(shapes(np.random.default_rng(seed)), target, seed)


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("target", ["n4", "n16"])
@pytest.mark.parametrize("shapes", [random_convolution, random_groups, strided])
def test_random_schedules_are_exact(shapes, target: str, seed: int) -> None:
    """Tiles of some input channels, of a part of the columns, and of blocks one after the other."""
    rng = np.random.default_rng(seed)
    graph, x, wanted = with_zero_points(shapes(rng), rng)
    network = compile(graph, target)
    (name,) = network.schedule.layers
    schedules = []
    for _ in range(5):
        schedule = replace(
            network.schedule.layers[name],
            order=str(rng.choice(["rows", "channels"])),
            rows=int(rng.integers(1, 12)),
            rows_per_load=int(rng.integers(1, 24)),
            columns=int(rng.integers(1, 4)),
            depth=int(rng.integers(1, 4)),
            x_buffers=int(rng.integers(1, 4)),
            w_buffers=int(rng.integers(1, 4)),
            acc_buffers=int(rng.integers(1, 3)),
            strip_width=int(rng.choice([7, 999])),
            pixels_per_pass=1,
            split_first_tile=bool(rng.integers(2)),
            split_last_tile=bool(rng.integers(2)),
        )
        schedules.append(replace(network.schedule, layers={name: schedule}))
    check_schedules(graph, target, schedules, x, wanted)


def constant(draft: Draft, shape: tuple[int, ...], axis: int) -> Tensor:
    """Add random weights with a zero point for each output channel to a graph."""
    zeros = draft.rng.integers(-128, 128, shape[axis])
    meaning = Quantization((0.03,) * shape[axis], tuple(zeros.tolist()), axis)
    return draft.constant(shape, quantization=meaning)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("target", ["n4", "n16"])
def test_transposed_convolutions_are_exact(target: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    draft, (kernel, stride) = Draft(rng), (int(rng.integers(2, 5)), int(rng.integers(1, 4)))
    x = draft.input((1, 7, 9, int(rng.integers(1, 40))))
    outputs = int(rng.integers(2, 8))
    y = draft.node(
        "conv_transpose2d",
        [x, constant(draft, (outputs, kernel, kernel, x.shape[3]), 0)],
        (1, 6 * stride + kernel, 8 * stride + kernel, outputs),
        scale=10.0,
        strides=(stride, stride),
        pads=(0, 0, 0, 0),
        dilations=(1, 1),
        groups=1,
        output_pads=(0, 0),
    )
    assert not check(draft, [y], target).host


@pytest.mark.parametrize("target", TARGETS)
def test_networks_are_exact(target: str) -> None:
    """Layers read results on chip, stream channel blocks to one another, and add a second summand."""
    draft = Draft(np.random.default_rng(1))
    x = draft.input((1, 14, 14, 24))
    window: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1)}
    shape, none, one = (1, 14, 14, 96), (0, 0, 0, 0), (1, 1, 1, 1)
    weights = constant(draft, (96, 1, 1, 24), 0)
    y = draft.node("conv2d", [x, weights], shape, scale=30.0, pads=none, groups=1, **window)
    y = draft.node(
        "depthwise_conv2d", [y, constant(draft, (3, 3, 96), 2)], shape, scale=30.0, pads=one, **window
    )
    weights = constant(draft, (24, 1, 1, 96), 0)
    y = draft.node("conv2d", [y, weights], x.shape, scale=60.0, pads=none, groups=1, **window)
    y = draft.node("add", [y, x], x.shape, scale=40.0)
    y = draft.node("reshape", [y], (1, 14 * 14 * 24), like=y, shape=(1, 14 * 14 * 24))
    y = draft.node("dense", [y, constant(draft, (10, 14 * 14 * 24), 0)], (1, 10), scale=300.0)
    assert not check(draft, [y], target).host


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_summands_of_weights(dtype: str) -> None:
    """Each of the 9-bit differences is the sum of two int8 numbers, and weights that fit 8 bits have no correction."""
    limits = np.iinfo(dtype)
    for low, high in ((limits.min, limits.max), (limits.min, limits.min + 20), (limits.max - 9, limits.max)):
        data = np.array([[limits.min, limits.max, low, high]] * 2, dtype)
        meaning = Quantization((1.0, 1.0), (low, high), 0)
        found = stored_weights(Tensor("w", data.shape, dtype, meaning, data))
        assert found.correction is not None and found.data.dtype == np.int8 and -128 <= found.zero <= 127
        exact = data.astype(int) - np.array([[low], [high]])
        assert np.array_equal(found.data.astype(int) - found.zero + found.correction, exact)
    alone = Tensor("w", data.shape, dtype, Quantization((1.0, 1.0), (high, high), 0), data)
    assert stored_weights(alone).correction is None and stored_weights(alone).data is data


def cycles_of(shape: Convolution, large: float = 1.0) -> int:
    """Compare a convolution on the RTL with numpy; return its cycles."""
    graph, x, wanted = with_zero_points(shape, np.random.default_rng(0), 20, large)
    network = compile(graph, "n16")
    (layer,) = network.layers
    assert isinstance(layer, ConvLayer | DepthwiseLayer) and layer.correction is not None
    with open_device(network, "rtl", 1, 100, network.config.n, print) as device:
        found, cycles = Session(device, network).measure({"x": x})
    assert np.array_equal(found["y"], wanted)
    return cycles


@pytest.mark.parametrize(
    ("shape", "share"),
    [
        (replace(PLAIN, h=41, w=43, groups=48), 0.79),
        (replace(PLAIN, outputs=2, h=48, w=48, groups=32), 0.56),
        (replace(PLAIN, kernel=(5, 5), pad=2), 0.39),
        (replace(PLAIN, groups=100, kernel=(7, 7), pad=3), 0.33),
        (replace(PLAIN, groups=96, dilation=4, pad=4), 0.69),
    ],
)
def test_cycles_of_depthwise_convolutions(shape: Depthwise, share: float) -> None:
    cycles = cycles_of(shape)
    print(f"{shape}: {cycles:,} cycles, {depthwise_limit(shape) / cycles:.1%} of the limit")
    assert depthwise_limit(shape) / cycles >= share


@pytest.mark.parametrize(
    ("shape", "large", "share"),
    [
        (Convolution(30, 30, inputs=16, outputs=16, groups=6), 1.0, 0.49),
        (Convolution(30, 30, inputs=8, outputs=8, groups=12), 1.0, 0.24),
        (Convolution(64, 64, inputs=3, outputs=32), 1.0, 0.40),
        (Convolution(20, 20, inputs=64, outputs=64), 1.0, 0.49),
        # Most tiles of the correction are zero, or have at most two of four weights that are not.
        (Convolution(20, 20, inputs=64, outputs=64), 0.0, 0.97),
        (Convolution(20, 20, inputs=128, outputs=128, kernel=(1, 1), pad=0), 0.2, 0.63),
    ],
)
def test_cycles_of_convolutions(shape: Convolution, large: float, share: float) -> None:
    macs = shape.h * shape.w * shape.groups * shape.outputs * shape.inputs * math.prod(shape.kernel)
    cycles = cycles_of(shape, large)
    print(f"{shape}: {cycles:,} cycles, {macs / 256 / cycles:.1%} of the limit")
    assert macs / 256 / cycles >= share
