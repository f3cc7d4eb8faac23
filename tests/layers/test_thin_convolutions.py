"""Convolutions that fill only a part of the array agree with sums in numpy, and take few cycles on the RTL."""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.api import compile
from compiler.bench.single_layer import X_ZERO, Y_ZERO, OneLayer, random_int8, requantize
from compiler.ir.graph import Graph
from compiler.layers.conv.layer import ConvLayer
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.device import open_device
from compiler.runtime.session import Session, dram_bytes
from cosim.golden import GoldenDevice

TARGETS = ("n4", "n8", "n16", "n32")


@dataclass(frozen=True)
class Convolution:
    """Shape of a convolution; `inputs` and `outputs` are the channels of each group."""

    h: int
    w: int
    inputs: int
    outputs: int
    groups: int = 1
    kernel: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    dilation: int = 1
    pad: int = 1
    batch: int = 1

    def sums(self, x: NDArray, weights: NDArray) -> NDArray[np.int64]:
        """Return the sums of all output pixels of `x`, given as (image, row, column, channel) without zero point."""
        wide = np.pad(x, ((0, 0), (self.pad, self.pad), (self.pad, self.pad), (0, 0)))
        down, across = (
            range(0, size - (taps - 1) * self.dilation, step)
            for size, taps, step in zip(wide.shape[1:3], self.kernel, self.strides, strict=True)
        )
        out = np.zeros((len(x), len(down), len(across), self.groups * self.outputs), np.int64)
        for ky, kx, group in product(*map(range, self.kernel), range(self.groups)):
            places = np.ix_(
                range(len(x)),
                [row + ky * self.dilation for row in down],
                [column + kx * self.dilation for column in across],
                range(group * self.inputs, (group + 1) * self.inputs),
            )
            part = slice(group * self.outputs, (group + 1) * self.outputs)
            out[..., part] += wide[places] @ weights[part, ky, kx].T.astype(np.int64)
        return out

    def case(self, rng: np.random.Generator) -> tuple[Graph, NDArray[np.int8], NDArray[np.int64]]:
        """Return a graph of the convolution with random weights, an input and the outputs."""
        weights = (self.groups * self.outputs, *self.kernel, self.inputs)
        layer = OneLayer(rng, weights, 0, self.kernel[0] * self.kernel[1] * self.inputs)
        x = random_int8(rng, self.batch, self.h, self.w, self.groups * self.inputs)
        sums = self.sums(x.astype(np.int64) - X_ZERO, layer.weights)
        wanted = requantize(sums + layer.bias, layer.ratios(), Y_ZERO)
        graph = layer.graph(
            "conv2d",
            x.shape,
            wanted.shape,
            strides=self.strides,
            pads=(self.pad,) * 4,
            dilations=(self.dilation,) * 2,
            groups=self.groups,
        )
        return graph, x, wanted

    def check(self, target: str, seed: int) -> CompiledNetwork:
        """Compare the convolution on the golden model with numpy; return the compiled network."""
        print(f"{self} on {target}, seed {seed}")
        graph, x, wanted = self.case(np.random.default_rng(seed))
        network = compile(graph, target)
        assert not network.host
        with GoldenDevice(network.config, dram_bytes(network)) as device:
            assert np.array_equal(Session(device, network).run({"x": x})["y"], wanted)
        return network

    def cycles(self, target: str = "n16") -> int:
        """Compare the convolution on the RTL with numpy; return its cycles."""
        graph, x, wanted = self.case(np.random.default_rng(0))
        network = compile(graph, target)
        with open_device(network, "rtl", 1, 100, network.config.n, print) as device:
            found, cycles = Session(device, network).measure({"x": x})
        assert np.array_equal(found["y"], wanted)
        return cycles


def random_groups(rng: np.random.Generator) -> Convolution:
    """Return a convolution with several groups of few channels."""
    kernel = tuple(int(size) for size in rng.integers(1, 4, 2))
    stride = int(rng.integers(1, 3))
    return Convolution(
        h=int(rng.integers(5, 15)),
        w=int(rng.integers(5, 20)),
        inputs=int(rng.integers(1, 10)),
        outputs=int(rng.integers(1, 10)),
        groups=int(rng.integers(2, 12)),
        kernel=(kernel[0], kernel[1]),
        strides=(stride, stride),
        dilation=int(rng.integers(1, 3)) if stride == 1 else 1,
        pad=int(rng.integers(2)),
        batch=int(rng.integers(1, 3)),
    )


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("target", TARGETS)
def test_groups_of_few_channels_are_exact(target: str, seed: int) -> None:
    random_groups(np.random.default_rng(seed)).check(target, seed)


def test_groups_that_do_not_divide_the_array_are_exact() -> None:
    # 4 groups of 4 fill a block of 16 channels; the last block has one group.
    network = Convolution(9, 9, inputs=4, outputs=4, groups=5).check("n16", 1)
    (layer,) = network.layers
    assert isinstance(layer, ConvLayer)
    assert (layer.groups, layer.group_outputs) == (2, 16)
    # 3 groups with 5 outputs fill 15 of 16 columns.
    Convolution(9, 9, inputs=3, outputs=5, groups=7).check("n16", 2)
    # The inputs of a block with 2 groups of 7 outputs fill 3 blocks.
    Convolution(9, 9, inputs=20, outputs=7, groups=4).check("n16", 3)


@pytest.mark.parametrize(
    ("shape", "share"),
    [
        (Convolution(14, 14, inputs=4, outputs=4, groups=32), 0.22),
        (Convolution(14, 14, inputs=8, outputs=8, groups=16), 0.42),
        (Convolution(14, 14, inputs=16, outputs=16, groups=4), 0.80),
    ],
)
def test_cycles_of_groups(shape: Convolution, share: float) -> None:
    macs = shape.h * shape.w * shape.groups * shape.outputs * shape.inputs * 9
    assert macs / 256 / shape.cycles() >= share
