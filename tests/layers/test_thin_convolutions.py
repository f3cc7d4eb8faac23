"""Convolutions that fill only a part of the array agree with sums in numpy, and take few cycles on the RTL."""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.api import compile
from compiler.bench.single_layer import X_ZERO, Y_ZERO, OneLayer, random_int8, requantize
from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Quantization, Tensor
from compiler.layers.conv.input_layout import Im2colLayout, strips_of
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.conv_transpose import ConvTransposeLayer
from compiler.layers.depthwise import DepthwiseLayer
from compiler.passes.canonicalize import transpose_floats
from compiler.reference import evaluate
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.device import open_device
from compiler.runtime.session import Session, dram_bytes
from cosim.golden import GoldenDevice
from hw.errors import InputError
from tests.support.graphs import Draft, check, run_on

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


def random_multiplier(rng: np.random.Generator) -> Convolution:
    """Return a depthwise convolution with two outputs for each channel."""
    shape = random_groups(rng)
    size = int(rng.integers(2, 6)), int(rng.integers(2, 6))
    return replace(shape, inputs=1, outputs=2, groups=int(rng.integers(2, 70)), kernel=size, dilation=1)


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("target", TARGETS)
def test_two_outputs_per_channel_are_exact(target: str, seed: int) -> None:
    random_multiplier(np.random.default_rng(seed)).check(target, seed)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("after", ["", "tanh"])
def test_two_outputs_per_channel_form_pairs_of_bytes(after: str, dtype: str) -> None:
    draft = Draft(np.random.default_rng(5))
    x = draft.input((1, 20, 18, 24), dtype)
    attributes = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 24}
    y = draft.node("conv2d", [x, draft.constant((48, 3, 3, 1))], (1, 20, 18, 48), dtype=dtype, **attributes)
    if after:
        y = draft.node(after, [y], y.shape, dtype=dtype)
    (layer,) = check(draft, [y], "n16").layers
    assert isinstance(layer, DepthwiseLayer) and layer.multiplier == 2
    # A pointwise convolution with two outputs per channel fills the array as a grouped convolution.
    assert isinstance(Convolution(9, 9, 1, 2, 40, kernel=(1, 1), pad=0).check("n16", 0).layers[0], ConvLayer)


@pytest.mark.parametrize(
    ("shape", "most"),
    [
        (Convolution(28, 28, inputs=1, outputs=2, groups=32), 5_870),
        (Convolution(28, 28, inputs=1, outputs=2, groups=64, strides=(2, 2)), 7_950),
        (Convolution(14, 14, inputs=1, outputs=2, groups=80, kernel=(5, 5), pad=2), 6_130),
        (Convolution(28, 28, inputs=1, outputs=3, groups=16), 6_500),
        (Convolution(28, 28, inputs=1, outputs=4, groups=8), 4_010),
    ],
)
def test_cycles_of_several_outputs_per_channel(shape: Convolution, most: int) -> None:
    assert shape.cycles() <= most


def random_first_layer(rng: np.random.Generator) -> Convolution:
    """Return a convolution of an image with few channels."""
    kernel, strides = (tuple(int(size) for size in rng.integers(1, most, 2)) for most in (6, 4))
    return Convolution(
        h=int(rng.integers(6, 30)),
        w=int(rng.integers(6, 40)),
        inputs=int(rng.integers(1, 6)),
        outputs=int(rng.integers(1, 40)),
        kernel=(kernel[0], kernel[1]),
        strides=(strides[0], strides[1]),
        pad=int(rng.integers(3)),
        batch=int(rng.integers(1, 3)),
    )


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("target", TARGETS)
def test_gathered_strips_are_exact(target: str, seed: int) -> None:
    shape = random_first_layer(np.random.default_rng(seed))
    print(f"{shape} on {target}, seed {seed}")
    graph, x, wanted = shape.case(np.random.default_rng(seed))
    first = compile(graph, target)
    # Strips of all columns, and of strips of columns of which some are loaded or read from image rows.
    for rows, tiles, across, gathered in (
        (1, 1, 999, 999),
        (2, 2, 7, 3),
        (3, 1, 999, 6),
        (5, 1, 4, 1),
        (5, 1, 2, 1),
    ):
        layers = {
            name: replace(
                layer,
                im2col=True,
                fold_kernel_width=True,
                rows=rows,
                rows_per_load=rows * tiles,
                x_buffers=1 + rows % 3,
                strip_width=across,
                width=gathered,
            )
            for name, layer in first.schedule.layers.items()
        }
        network = compile(graph, target, schedule=replace(first.schedule, layers=layers))
        with GoldenDevice(network.config, dram_bytes(network)) as device:
            assert np.array_equal(Session(device, network).run({"x": x})["y"], wanted)


def of_planes(graph: Graph) -> Graph:
    """Return a graph whose input consists of a plane for each channel of the input of `graph`, its first layer."""
    x, made = graph.tensors["x"], Graph(graph.name)
    planes = (x.shape[0], x.shape[3], *x.shape[1:3])
    made.add_input(Tensor("planes", planes, x.dtype, x.quantization))
    for tensor in graph.tensors.values():
        made.add_tensor(tensor)
    made.add_node(Node("to_pixels", "transpose", ("planes",), ("x",), {"perm": (0, 2, 3, 1)}))
    for node in graph:
        made.add_node(node)
    return made.finish(["y"])


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("target", TARGETS)
def test_planes_are_exact(target: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = replace(random_first_layer(rng), inputs=int(rng.integers(2, 5)))
    print(f"{shape} on {target}, seed {seed}")
    graph, x, wanted = shape.case(rng)
    graph, x = of_planes(graph), np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    first = compile(graph, target)
    (name,) = first.schedule.layers  # the image is not transposed by a layer of its own
    schedule = first.schedule.layers[name]
    # The schedule that was chosen, all columns and strips of columns by patches, by rows of the kernel, and by pixels.
    others = [{"rows": 2, "rows_per_load": rows, "strip_width": width} for rows, width in ((2, 999), (4, 7))]
    for change in (
        {},
        *({**other, "im2col": True, "fold_kernel_width": True} for other in others),
        *({**other, "im2col": False, "fold_kernel_width": True} for other in others),
        *({**other, "im2col": False, "fold_kernel_width": False} for other in others),
    ):
        layers = {name: replace(schedule, **({**change, "depth": 999} if change else {}))}
        network = compile(graph, target, schedule=replace(first.schedule, layers=layers))
        with GoldenDevice(network.config, dram_bytes(network)) as device:
            assert np.array_equal(Session(device, network).run({"planes": x})["y"], wanted)


@pytest.mark.parametrize(
    ("change", "layers"),
    [
        ({"inputs": 5}, 2),
        ({"dilation": 2, "h": 40}, 2),
        ({"groups": 2, "inputs": 2}, 2),
        ({"h": 400, "w": 300, "outputs": 8, "strides": (2, 2)}, 2),
        ({"h": 400, "w": 300, "outputs": 48, "strides": (2, 2)}, 1),
    ],
)
def test_images_that_are_transposed_before(change: dict, layers: int) -> None:
    shape = replace(Convolution(20, 20, inputs=3, outputs=16), **change)
    graph, x, wanted = shape.case(np.random.default_rng(0))
    network = compile(of_planes(graph), "n16")
    assert len(network.schedule.layers) == layers
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        found = Session(device, network).run({"planes": np.ascontiguousarray(x.transpose(0, 3, 1, 2))})
    assert np.array_equal(found["y"], wanted)


@pytest.mark.parametrize(
    ("shape", "most"),
    [
        (Convolution(160, 160, inputs=3, outputs=32, strides=(2, 2)), 33_300),
        (Convolution(97, 113, inputs=3, outputs=24, strides=(2, 2)), 14_900),
        (Convolution(130, 131, inputs=4, outputs=48, strides=(2, 2)), 40_500),
        (Convolution(64, 64, inputs=2, outputs=16, kernel=(1, 1), pad=0), 5_650),
        (Convolution(64, 64, inputs=3, outputs=96, kernel=(4, 4), strides=(4, 4), pad=0), 6_900),
        (Convolution(40, 50, inputs=3, outputs=8, kernel=(5, 5)), 7_000),
    ],
)
def test_cycles_of_planes(shape: Convolution, most: int) -> None:
    graph, x, wanted = shape.case(np.random.default_rng(0))
    network = compile(of_planes(graph), "n16")
    with open_device(network, "rtl", 1, 100, network.config.n, print) as device:
        given = {"planes": np.ascontiguousarray(x.transpose(0, 3, 1, 2))}
        found, cycles = Session(device, network).measure(given)
    print(f"{shape}: {cycles:,} cycles")
    assert np.array_equal(found["y"], wanted)
    assert cycles <= most


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize(
    ("shape", "pixels"),
    [
        (Convolution(9, 32, inputs=1, outputs=20), 4),
        (Convolution(9, 32, inputs=1, outputs=20, strides=(2, 2)), 2),
        (Convolution(12, 48, inputs=2, outputs=9, kernel=(3, 2), pad=0), 2),
        (Convolution(7, 33, inputs=1, outputs=20), 4),
        (Convolution(9, 35, inputs=1, outputs=17, strides=(2, 2)), 2),
        (Convolution(12, 48, inputs=1, outputs=9, kernel=(5, 5), pad=2, batch=2), 2),
    ],
)
def test_output_columns_share_strips(shape: Convolution, pixels: int, fold: bool) -> None:
    graph, x, wanted = shape.case(np.random.default_rng(0))
    first = compile(graph, "n16")
    layers = {
        name: replace(layer, im2col=True, fold_kernel_width=fold, pixels_per_pass=1)
        for name, layer in first.schedule.layers.items()
    }
    (layer,) = first.layers
    assert isinstance(layer, ConvLayer)
    assert strips_of(layer, Im2colLayout.STRIPS, layer.shapes[layer.y].w, 16)[1] == pixels
    network = compile(graph, "n16", schedule=replace(first.schedule, layers=layers))
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        assert np.array_equal(Session(device, network).run({"x": x})["y"], wanted)


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("target", ("n4", "n16"))
def test_pixels_beyond_the_end_of_a_row_are_not_stored(target: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = replace(random_first_layer(rng), outputs=int(rng.integers(1, 30)), batch=1)
    print(f"{shape} on {target}, seed {seed}")
    graph, x, wanted = shape.case(rng)
    first = compile(graph, target)
    for pixels in (2, 3, 5):
        for rows, im2col, fold, columns in ((2, True, True, 1), (1, True, False, 9), (3, False, True, 2)):
            layers = {
                name: replace(
                    layer,
                    pixels_per_pass=pixels,
                    im2col=im2col,
                    fold_kernel_width=fold,
                    rows=rows,
                    rows_per_load=2 * rows,
                    columns=columns,
                )
                for name, layer in first.schedule.layers.items()
            }
            network = compile(graph, target, schedule=replace(first.schedule, layers=layers))
            with GoldenDevice(network.config, dram_bytes(network)) as device:
                assert np.array_equal(Session(device, network).run({"x": x})["y"], wanted)


@pytest.mark.parametrize(
    ("shape", "most"),
    [
        (Convolution(61, 61, inputs=1, outputs=8), 3_600),
        (Convolution(81, 81, inputs=3, outputs=8, strides=(2, 2)), 3_250),
        (Convolution(63, 63, inputs=1, outputs=16), 6_100),
        (Convolution(128, 128, inputs=1, outputs=8, strides=(2, 2)), 5_100),
    ],
)
def test_cycles_of_odd_rows_with_few_outputs(shape: Convolution, most: int) -> None:
    assert shape.cycles() <= most


def test_strips_are_gathered_from_images_on_chip() -> None:
    draft = Draft(np.random.default_rng(3))
    x = draft.input((1, 40, 40, 3))
    top = draft.node("tanh", [x], x.shape)
    weights = draft.constant((32, 3, 3, 3))
    y = draft.node(
        "conv2d",
        [top, weights],
        (1, 40, 40, 32),
        strides=(1, 1),
        pads=(1, 1, 1, 1),
        dilations=(1, 1),
        groups=1,
    )
    network = check(draft, [y], "n16")
    name = network.layers[-1].name
    schedule = network.schedule.layers[name]
    assert schedule.im2col and schedule.fold_kernel_width
    # MATRIX reads the image rows of columns whose strips are not gathered.
    layers = network.schedule.layers | {name: replace(schedule, width=20)}
    graph, x = draft.graph.finish([y.name]), draft.random_inputs()
    network = compile(graph, "n16", schedule=replace(network.schedule, layers=layers))
    found = run_on(GoldenDevice(network.config, dram_bytes(network)), network, x)
    assert np.array_equal(found[y.name], evaluate(graph, x, rounding="reference")[y.name])


@pytest.mark.parametrize(
    ("shape", "share"),
    [
        (Convolution(48, 48, inputs=3, outputs=32, strides=(2, 2)), 0.64),
        (Convolution(96, 96, inputs=3, outputs=32, strides=(2, 2)), 0.76),
        (Convolution(128, 128, inputs=3, outputs=16, strides=(2, 2)), 0.65),
        (Convolution(32, 32, inputs=3, outputs=32), 0.69),
        (Convolution(64, 64, inputs=3, outputs=16), 0.74),
        (Convolution(48, 48, inputs=1, outputs=32), 0.42),
        (Convolution(64, 64, inputs=3, outputs=96, kernel=(4, 4), strides=(4, 4), pad=0), 0.75),
    ],
)
def test_cycles_of_first_layers(shape: Convolution, share: float) -> None:
    down, across = (
        (size + 2 * shape.pad - taps) // step + 1
        for size, taps, step in zip((shape.h, shape.w), shape.kernel, shape.strides, strict=True)
    )
    macs = down * across * shape.outputs * shape.inputs * shape.kernel[0] * shape.kernel[1]
    assert macs / 256 / shape.cycles() >= share


@dataclass(frozen=True)
class Depthwise:
    """Shape of a depthwise convolution of int8 weights with a common zero point."""

    h: int
    w: int
    channels: int
    kernel: tuple[int, int] = (3, 3)
    stride: int = 1
    dilation: int = 1
    zero: int = 0

    def case(self, rng: np.random.Generator) -> tuple[Graph, NDArray[np.int8], NDArray[np.int64]]:
        """Return a graph of the convolution with random weights, an input and the outputs."""
        layer = OneLayer(rng, (*self.kernel, self.channels), 2, self.kernel[0] * self.kernel[1])
        pads = tuple((size - 1) * self.dilation // 2 for size in self.kernel)
        x = random_int8(rng, 1, self.h, self.w, self.channels)
        wide = np.pad(x.astype(np.int64) - X_ZERO, ((0, 0), (pads[0],) * 2, (pads[1],) * 2, (0, 0)))
        ends = (
            size - (taps - 1) * self.dilation for size, taps in zip(wide.shape[1:3], self.kernel, strict=True)
        )
        down, across = (range(0, end, self.stride) for end in ends)
        sums = np.zeros((1, len(down), len(across), self.channels), np.int64)
        for ky, kx in product(*map(range, self.kernel)):
            rows = [row + ky * self.dilation for row in down]
            columns = [column + kx * self.dilation for column in across]
            sums += wide[np.ix_([0], rows, columns)] * (layer.weights[ky, kx].astype(np.int64) - self.zero)
        layer.scales[:] = layer.scales[0]
        wanted = requantize(sums + layer.bias, layer.ratios(), Y_ZERO)
        graph = layer.graph(
            "depthwise_conv2d",
            x.shape,
            wanted.shape,
            strides=(self.stride,) * 2,
            pads=(*pads, *pads),
            dilations=(self.dilation,) * 2,
        )
        meaning = Quantization.per_tensor(float(layer.scales[0]), self.zero)
        graph.tensors["weights"] = replace(graph.tensors["weights"], quantization=meaning)
        return graph, x, wanted


def random_depthwise(rng: np.random.Generator) -> Depthwise:
    """Return a depthwise convolution with a large kernel, a dilation or a stride."""
    stride = int(rng.integers(1, 4))
    return Depthwise(
        h=int(rng.integers(8, 24)),
        w=int(rng.integers(8, 40)),
        channels=int(rng.integers(1, 40)),
        kernel=(int(rng.integers(1, 8)), int(rng.integers(1, 8))),
        stride=stride,
        dilation=int(rng.integers(1, 7)) if stride == 1 else 1,
        zero=int(rng.integers(-3, 4)),
    )


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("target", TARGETS)
def test_depthwise_convolutions_are_exact(target: str, seed: int) -> None:
    shape = random_depthwise(np.random.default_rng(seed))
    print(f"{shape} on {target}, seed {seed}")
    graph, x, wanted = shape.case(np.random.default_rng(seed))
    network = compile(graph, target)
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        assert np.array_equal(Session(device, network).run({"x": x})["y"], wanted)


@pytest.mark.parametrize(
    ("shape", "most"),
    [
        (Depthwise(14, 14, 64, dilation=3), 2200),
        (Depthwise(14, 14, 64, zero=3), 2270),
        (Depthwise(14, 14, 64, kernel=(5, 5), stride=2), 1980),
        (Depthwise(7, 7, 128, kernel=(7, 7)), 2880),
    ],
)
def test_cycles_of_depthwise_convolutions(shape: Depthwise, most: int) -> None:
    graph, x, wanted = shape.case(np.random.default_rng(0))
    network = compile(graph, "n16")
    with open_device(network, "rtl", 1, 100, 16, print) as device:
        found, cycles = Session(device, network).measure({"x": x})
    assert np.array_equal(found["y"], wanted)
    assert cycles <= most


def transposed(
    rng: np.random.Generator,
    x: tuple[int, int, int, int],
    outputs: int,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pads: tuple[int, int, int, int],
    dtype: str = "int8",
) -> tuple[Draft, Tensor]:
    """Return a graph with a transposed convolution, and its output."""
    draft = Draft(rng)
    image = draft.input(x, dtype)
    size = tuple(
        (x[axis + 1] - 1) * strides[axis] + kernel[axis] - pads[axis] - pads[axis + 2] for axis in (0, 1)
    )
    y = draft.node(
        "conv_transpose2d",
        [image, draft.constant((outputs, *kernel, x[3]))],
        (x[0], *size, outputs),
        scale=2.0,
        dtype=dtype,
        strides=strides,
        pads=pads,
        dilations=(1, 1),
        groups=1,
        output_pads=(0, 0),
    )
    return draft, y


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("target", ("n4", "n16"))
def test_transposed_convolutions_with_few_outputs_are_exact(target: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    strides, kernel = ((int(rng.integers(1, most)), int(rng.integers(1, most))) for most in (4, 6))
    top, left, bottom, right = (int(rng.integers(0, size)) for size in (*kernel, *kernel))
    shape = (
        int(rng.integers(1, 3)),
        int(rng.integers(5, 14)),
        int(rng.integers(5, 20)),
        int(rng.integers(1, 40)),
    )
    if shape[0] > 1:  # images of a batch are cut into phases only if their rows are a multiple of the stride
        strides = 1, strides[1]
    outputs, pads = int(rng.integers(1, 8)), (top, left, bottom, right)
    draft, y = transposed(rng, shape, outputs, kernel, strides, pads)
    check(draft, [y], target)


def test_blocks_of_a_transposed_convolution_are_stored_inside_the_image() -> None:
    # Blocks of 2 x 2 outputs that depend on the same 2 x 2 inputs begin one pixel outside the image.
    draft, y = transposed(np.random.default_rng(0), (1, 12, 15, 32), 3, (4, 4), (2, 2), (1, 1, 1, 1), "uint8")
    (layer,) = check(draft, [y], "n16").layers
    assert isinstance(layer, ConvTransposeLayer)
    assert [(phase.offset, phase.block) for phase in layer.blocks] == [((-1, -1), (2, 2))]
    # A block per row phase, the channels of which are several blocks of channels.
    draft, y = transposed(np.random.default_rng(0), (1, 7, 9, 20), 5, (16, 16), (8, 8), (4, 4, 4, 4))
    (layer,) = check(draft, [y], "n16").layers
    assert isinstance(layer, ConvTransposeLayer) and {phase.offset[1] for phase in layer.blocks} == {-4}
    # Next to a layer on chip, the pixels of the phases are written in place.
    draft, top = transposed(np.random.default_rng(0), (1, 6, 7, 16), 4, (4, 4), (2, 2), (1, 1, 1, 1))
    y = draft.node("tanh", [top], top.shape)
    check(draft, [y, draft.node("abs", [top], top.shape)], "n16")


@pytest.mark.parametrize(
    ("shape", "most"),
    [
        (((1, 24, 24, 32), 3, (4, 4), (2, 2), (1, 1, 1, 1)), 5_590),
        (((1, 64, 64, 16), 1, (2, 2), (2, 2), (0, 0, 0, 0)), 6_960),
        (((1, 6, 6, 32), 21, (16, 16), (8, 8), (4, 4, 4, 4)), 35_000),
    ],
)
def test_cycles_of_transposed_convolutions(shape: tuple, most: int) -> None:
    draft, y = transposed(np.random.default_rng(0), *shape)
    graph, x = draft.graph.finish([y.name]), draft.random_inputs()
    network = compile(graph, "n16")
    with open_device(network, "rtl", 1, 100, 16, print) as device:
        found, cycles = Session(device, network).measure(x)
    assert np.array_equal(found[y.name], evaluate(graph, x, rounding="reference")[y.name])
    assert cycles <= most


def test_transposes_of_quantized_images_run_with_conversions_of_floats() -> None:
    graph = Graph("boundary")
    q = Quantization.per_tensor(0.1, 3)
    tensors = [
        Tensor("x", (1, 3, 8, 8), "float32"),
        Tensor("q", (1, 3, 8, 8), "int8", q),
        Tensor("t", (1, 8, 8, 3), "int8", q),
        Tensor("r", (1, 8, 8, 3), "int8", q),
        Tensor("n", (1, 3, 8, 8), "int8", q),
        Tensor("y", (1, 3, 8, 8), "float32"),
    ]
    graph.add_input(tensors[0])
    for tensor in tensors[1:]:
        graph.add_tensor(tensor)
    graph.add_node(Node("quantize", "quantize", ("x",), ("q",)))
    graph.add_node(Node("to", "transpose", ("q",), ("t",), {"perm": (0, 2, 3, 1)}))
    graph.add_node(Node("clip", "clip", ("t",), ("r",), {"low": 0.0, "high": 6.0}))
    graph.add_node(Node("from", "transpose", ("r",), ("n",), {"perm": (0, 3, 1, 2)}))
    graph.add_node(Node("dequantize", "dequantize", ("n",), ("y",)))
    moved = transpose_floats(graph.finish(["y"]))
    assert [node.op for node in moved] == ["transpose", "quantize", "clip", "dequantize", "transpose"]
    x = np.random.default_rng(0).normal(0, 3, (1, 3, 8, 8)).astype(np.float32)
    before, after = (evaluate(each, {"x": x}, rounding="reference")["y"] for each in (graph, moved))
    assert np.array_equal(before, after)


def slices_of_input(part: Quantization, turned: Quantization, starts: tuple[int, ...]) -> Graph:
    """Return convolutions of two transposed slices of a quantized float input; `starts` are those of the second."""
    draft = Draft(np.random.default_rng(0))
    x = draft.graph.add_input(Tensor("x", (1, 8, 4, 4), "float32"))
    whole = Tensor("whole", x.shape, "int8", Quantization.per_tensor(0.05, 3))
    draft.into("quantize", [x], whole)
    outputs = []
    for number, start in enumerate(((0, 0, 0, 0), starts)):
        y, t = (
            Tensor(f"{name}{number}", (1, 4, 4, 4), "int8", q)
            for name, q in (("part", part), ("turned", turned))
        )
        draft.into("slice", [whole], y, starts=start, sizes=(1, 4, 4, 4), steps=(1, 1, 1, 1))
        draft.into("transpose", [y], t, perm=(0, 2, 3, 1))
        filters = draft.constant((8, 1, 1, 4), "int8", Quantization.per_tensor(0.01, 0))
        point = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "groups": 1}
        outputs.append(draft.node("conv2d", [t, filters], (1, 4, 4, 8), **point).name)
    return draft.graph.finish(outputs)


@pytest.mark.parametrize(("scale", "moved"), [(0.5, True), (0.03, False)])
def test_transposes_before_slices_keep_all_conversions(scale: float, moved: bool) -> None:
    part, turned = Quantization.per_tensor(0.5, -7), Quantization.per_tensor(scale, -7)
    graph = slices_of_input(part, turned, (0, 4, 0, 0))
    made = transpose_floats(graph)
    assert (made is not graph) == moved
    x = {"x": np.random.default_rng(0).normal(0, 3, (1, 8, 4, 4)).astype(np.float32)}
    before, after = (evaluate(each, x, rounding="reference") for each in (graph, made))
    np.testing.assert_equal(after, before)


@pytest.mark.parametrize("starts", [(0,), (0, 6, 0, 0)])
def test_invalid_slices_of_an_input_have_a_message(starts: tuple[int, ...]) -> None:
    q = Quantization.per_tensor(0.05, 3)
    network = compile(slices_of_input(q, q, starts), "n8")
    with pytest.raises(InputError, match=r"\(slice\)"):
        run_on(
            GoldenDevice(network.config, dram_bytes(network)), network, {"x": np.zeros((1, 8, 4, 4), "f4")}
        )


def test_strips_of_padding_below_the_image() -> None:
    draft = Draft(np.random.default_rng(0))
    x = draft.input((1, 17, 26, 2), "uint8")
    weights = draft.constant((16, 3, 5, 2), "uint8", Quantization.per_tensor(0.01, 9))
    how: dict = {"strides": (4, 1), "pads": (3, 2, 3, 2), "dilations": (1, 1), "groups": 1}
    y = draft.node("conv2d", [x, weights], (1, 6, 26, 16), dtype="uint8", **how)
    check(draft, [y], "n4")
