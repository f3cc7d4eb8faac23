"""Pools equal the host's operators, for all ways in which they are computed."""

from dataclasses import replace

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.tensor import Quantization, Tensor
from compiler.layers.depthwise import DepthwiseLayer
from compiler.layers.pool import PoolLayer, WindowMethod
from compiler.layers.reduce import ReduceLayer, reciprocal
from compiler.layers.window_sums import window_sums
from compiler.options import MemoryLimits
from compiler.reference import evaluate
from compiler.runtime.device import open_device
from compiler.runtime.session import Session, dram_bytes
from cosim.golden import GoldenDevice
from cosim.semantics.fixed_point import scale
from hw.config import load_target
from hw.isa.enums import Rounding
from tests.support.graphs import Draft, check, run_on

TARGETS = ("n4", "n8", "n16")
Shape = tuple[int, int, int, int]
#: Padding: top, left, bottom, right.
Pads = tuple[int, int, int, int]


def _pool(draft: Draft, op: str, x: Tensor, kernel: tuple[int, int], **options: tuple[int, ...]) -> Tensor:
    """Add a pool with the given strides and pads (by default 1 and none)."""
    strides, pads = options.get("strides", (1, 1)), options.get("pads", (0, 0, 0, 0))
    sizes = [
        (size + pads[i] + pads[i + 2] - kernel[i]) // strides[i] + 1 for i, size in enumerate(x.shape[1:3])
    ]
    shape = (x.shape[0], *sizes, x.shape[3])
    more = {"count_pads": False} if op == "avg_pool2d" else {}
    attributes = {"kernel": kernel, "strides": strides, "pads": pads, **more}
    return draft.node(op, [x], shape, like=x, dtype=x.dtype, **attributes)


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", range(60))
def test_random_pools(seed: int) -> None:
    """Random windows, types, positions of tensors and memory sizes; onnxruntime's averages may be off by one."""
    draft = Draft(np.random.default_rng(seed))
    rng, op = draft.rng, ("max_pool2d", "avg_pool2d")[seed % 2]
    target, rounding = TARGETS[seed // 2 % 3], str(rng.choice(("reference", "xnnpack", "onnxruntime")))
    dtypes = ("int8", "uint8", "int16") if op == "max_pool2d" else ("int8", "uint8")
    kernel = int(rng.integers(1, 6)), int(rng.integers(1, 6))
    h, w = (int(rng.integers(size, 24)) for size in kernel)
    x = draft.input((int(rng.choice((1, 1, 2))), h, w, int(rng.integers(1, 70))), str(rng.choice(dtypes)))
    if rng.random() < 0.5 and x.dtype != "int16":  # in the scratchpad
        x = draft.node("tanh", [x], x.shape, dtype=x.dtype, scale=1 / 128)
    strides = tuple(int(each) for each in rng.integers(1, 4, 2))
    pads = tuple(int(rng.integers(0, kernel[i % 2])) for i in range(4))
    y = _pool(draft, op, x, kernel, strides=strides, pads=pads)
    exact = op == "max_pool2d" or rounding != "onnxruntime"
    if rng.random() < 0.5 and x.dtype != "int16" and exact:
        y = draft.node("sigmoid", [y], y.shape, dtype=x.dtype, scale=1 / 256)
    graph = draft.graph.finish([y.name])
    limit = int(rng.choice((1 << 13, 1 << 15, 1 << 18)))
    network = compile(graph, target, rounding=rounding, limits=MemoryLimits(sp_bytes=limit))
    inputs = draft.random_inputs()
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        (found,) = run_on(device, network, inputs).values()
    (wanted,) = evaluate(graph, inputs, rounding=rounding).values()  # type: ignore[arg-type]
    off = np.abs(found.astype(int) - wanted)
    assert off.max() <= (not exact), f"seed {seed}\n{graph}"
    assert not network.host, f"seed {seed}"


@pytest.mark.parametrize("channels", [16, 24, 5])
@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
def test_images_in_strips(strides: tuple[int, int], channels: int) -> None:
    for op in ("max_pool2d", "avg_pool2d"):
        draft = Draft(np.random.default_rng(channels))
        x = draft.input((1, 7, 1200, channels))
        check(draft, [_pool(draft, op, x, (3, 5), strides=strides, pads=(1, 2, 1, 2))], "n4")


def test_choice_of_the_unit() -> None:
    """Averages of many elements are computed on the array, others on FUSE; maxima row by row if that is faster."""

    def layer(op: str, kernel: int, stride: int) -> DepthwiseLayer | PoolLayer:
        draft = Draft(np.random.default_rng(0))
        x = draft.input((1, 24, 24, 32))
        y = _pool(draft, op, x, (kernel, kernel), strides=(stride, stride))
        (found,) = compile(draft.graph.finish([y.name]), "n16").layers
        assert isinstance(found, (DepthwiseLayer, PoolLayer))
        return found

    assert isinstance(layer("avg_pool2d", 3, 1), DepthwiseLayer)
    assert isinstance(layer("avg_pool2d", 2, 2), PoolLayer)
    for kernel, stride, how in (
        (3, 1, WindowMethod.ROWS_FIRST),
        (5, 1, WindowMethod.ROWS_FIRST),
        (2, 2, WindowMethod.DIRECT),
        (3, 2, WindowMethod.PAIRS),
        (5, 2, WindowMethod.ROWS_FIRST),
        (2, 1, WindowMethod.PAIRS),
    ):
        found = layer("max_pool2d", kernel, stride)
        assert isinstance(found, PoolLayer)
        assert found.method(load_target("n16"), in_dram=True, alone=True) == how


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", range(24))
def test_maxima_of_pairs(seed: int) -> None:
    """Random windows that overlap; images are in DRAM or in the scratchpad, in strips, of several types."""
    print(f"seed {seed}")
    draft = Draft(np.random.default_rng(seed))
    rng = draft.rng
    kernel, strides = ((3, 3), (2, 2)) if seed % 2 else ((int(rng.integers(2, 4)), 2), (1, 1))
    pads = tuple(int(rng.integers(0, kernel[i % 2])) for i in range(4))
    shape = int(rng.integers(1, 3)), *(int(each) for each in rng.integers(5, 40, 2)), int(rng.integers(9, 70))
    x = draft.input(shape, str(rng.choice(("int8", "uint8"))))
    if rng.random() < 0.4:
        x = draft.node("tanh", [x], x.shape, dtype=x.dtype, scale=1 / 128)
    y = _pool(draft, "max_pool2d", x, kernel, strides=strides, pads=pads)
    if rng.random() < 0.4:
        y = draft.node("sigmoid", [y], y.shape, dtype=x.dtype, scale=1 / 256)
    graph, limit = draft.graph.finish([y.name]), int(rng.choice((1 << 14, 1 << 18)))
    network = compile(graph, TARGETS[seed // 2 % 3], limits=MemoryLimits(sp_bytes=limit))
    inputs = draft.random_inputs()
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        (found,) = run_on(device, network, inputs).values()
    (wanted,) = evaluate(graph, inputs).values()
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", range(30))
def test_maxima_of_two_columns(seed: int) -> None:
    """Random windows of two columns that do not overlap, of images with few channels, in memories of several sizes.

    Some images are a part of the channels of a tensor, and some results are in the scratchpad, or a part of a tensor.
    """
    print(f"seed {seed}")
    draft = Draft(np.random.default_rng(seed))
    rng, target = draft.rng, TARGETS[seed % 3]
    kernel, strides = (int(rng.integers(1, 4)), 2), (int(rng.integers(1, 4)), 2)
    if seed % 2:
        kernel, strides = (2, 2), (2, 2)
    h, w, channels = (
        int(rng.integers(6, 60)),
        int(rng.integers(6, 150)),
        int(rng.integers(1, 1 + int(target[1:]))),
    )
    shape = int(rng.integers(1, 3)), h, w, channels + (seed % 5 == 0)
    x = draft.input(shape, str(rng.choice(("int8", "uint8"))))
    if shape[3] > channels:
        part = (*shape[:3], channels)
        x = draft.node(
            "slice", [x], part, like=x, dtype=x.dtype, starts=(0, 0, 0, 1), sizes=part, steps=(1,) * 4
        )
    y = _pool(draft, "max_pool2d", x, kernel, strides=strides)
    end = rng.random()
    if end < 0.3:
        y = draft.node("sigmoid", [y], y.shape, dtype=x.dtype, scale=1 / 256)
    elif end < 0.6:
        twice = (*y.shape[:3], 2 * channels)
        y = draft.node("concat", [y, y], twice, like=y, dtype=x.dtype, axis=3)
    graph, limit = draft.graph.finish([y.name]), int(rng.choice((1 << 13, 1 << 15, 1 << 18)))
    network = compile(graph, target, limits=MemoryLimits(sp_bytes=limit))
    inputs = draft.random_inputs()
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        (found,) = run_on(device, network, inputs).values()
    (wanted,) = evaluate(graph, inputs).values()
    np.testing.assert_array_equal(found, wanted)


def _maxima(x: np.ndarray, kernel: tuple[int, int], strides: tuple[int, int], pads: Pads) -> np.ndarray:
    """Return the maxima of windows, with numpy's views of windows."""
    top, left, bottom, right = pads
    least = np.iinfo(x.dtype).min
    wide = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=least)
    windows = np.lib.stride_tricks.sliding_window_view(wide, kernel, (1, 2))
    return np.asarray(windows[:, :: strides[0], :: strides[1]].max((-2, -1)))


@pytest.mark.parametrize(
    ("shape", "kernel", "strides", "pads", "layers"),
    [
        ((1, 24, 24, 177), (24, 24), (1, 1), (0, 0, 0, 0), (ReduceLayer,)),
        ((1, 28, 28, 100), (28, 28), (1, 1), (0, 0, 0, 0), (ReduceLayer, ReduceLayer)),
        ((2, 56, 56, 33), (56, 56), (2, 1), (0, 0, 0, 0), (ReduceLayer, ReduceLayer)),
        ((1, 112, 112, 24), (112, 112), (1, 1), (0, 0, 0, 0), (ReduceLayer, ReduceLayer)),
        ((1, 40, 41, 40), (34, 34), (1, 1), (0, 0, 0, 0), (PoolLayer,)),
        ((1, 120, 110, 24), (112, 100), (2, 3), (0, 0, 0, 0), (PoolLayer, PoolLayer)),
        ((1, 90, 95, 20), (90, 70), (5, 1), (3, 0, 1, 69), (PoolLayer, PoolLayer)),
    ],
)
@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_maxima_of_large_windows(
    shape: Shape,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pads: Pads,
    layers: tuple[type, ...],
    dtype: str,
) -> None:
    """Windows as large as the image are reductions; other windows that are too large are separated."""
    draft = Draft(np.random.default_rng(0))
    x = draft.input(shape, dtype)
    y = _pool(draft, "max_pool2d", x, kernel, strides=strides, pads=pads)
    network = compile(draft.graph.finish([y.name]), "n16")
    assert not network.host
    if dtype == "int8":
        assert [type(each) for each in network.layers] == [*layers]
    inputs = draft.random_inputs()
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        (found,) = run_on(device, network, inputs).values()
    np.testing.assert_array_equal(found, _maxima(inputs[x.name], kernel, strides, pads))


@pytest.mark.parametrize("op", ["reduce_max", "reduce_min"])
@pytest.mark.parametrize("keep", [True, False])
def test_extremes_of_images(op: str, *, keep: bool) -> None:
    """Extremes over images whose channels do not fill the lanes; the quantization of the result may differ."""
    for channels, alike in ((3, True), (24, False)):
        draft = Draft(np.random.default_rng(channels))
        x = draft.input((1, 60, 50, channels), "uint8")
        shape = (1, 1, 1, channels) if keep else (1, channels)
        like, scale_of = (x, None) if alike else (None, 0.07)
        y = draft.node(op, [x], shape, like=like, scale=scale_of, dtype="uint8", axes=(1, 2), keep=keep)
        network = check(draft, [y], "n16")
        assert len(network.layers) == 2


@pytest.mark.parametrize("rounding", ["reference", "xnnpack", "onnxruntime"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_averages_that_count_padding(rng: np.random.Generator, dtype: str, rounding: str) -> None:
    """Padding has the value of the zero point."""
    if dtype == "int16" and rounding == "onnxruntime":
        return  # on the host
    draft = Draft(rng)
    zero = 0 if dtype == "int16" else int(rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1))
    x = draft.graph.add_input(Tensor("x", (2, 11, 9, 20), dtype, Quantization.per_tensor(0.1, zero)))
    window = {"kernel": (4, 2), "strides": (2, 1), "pads": (1, 1, 2, 0)}
    y = draft.node("avg_pool2d", [x], (2, 6, 9, 20), like=x, dtype=dtype, **window, count_pads=True)
    network = compile(draft.graph.finish([y.name]), "n16", rounding=rounding, strict=True)
    inputs = draft.random_inputs()
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        (found,) = run_on(device, network, inputs).values()
    edges = ((0, 0), (1, 2), (1, 0), (0, 0))
    wide = np.pad(inputs[x.name].astype(np.int64), edges, constant_values=zero)
    sums = np.lib.stride_tricks.sliding_window_view(wide, (4, 2), (1, 2))[:, ::2].sum((-2, -1))
    wanted = np.trunc(sums / 8 + np.copysign(0.5, sums))
    if rounding == "onnxruntime":
        wanted = np.rint((sums - 8 * zero) / 8) + zero
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("op", ["max_pool2d", "avg_pool2d"])
def test_slices_of_channels_as_whole_images(op: str) -> None:
    """A reduction reads contiguous pixels, so that a slice of channels is copied first."""
    draft = Draft(np.random.default_rng(0))
    x = draft.input((1, 10, 10, 48))
    part = draft.node(
        "slice", [x], (1, 10, 10, 32), like=x, starts=(0, 0, 0, 16), sizes=(1, 10, 10, 32), steps=(1,) * 4
    )
    check(draft, [_pool(draft, op, part, (10, 10))], "n16")


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", range(24))
def test_averages_of_int16(seed: int) -> None:
    """Random windows, of which FUSE or both units add the rows first if that takes fewer cycles; large sums, and memory
    sizes.
    """
    print(f"seed {seed}")
    draft = Draft(np.random.default_rng(seed))
    rng = draft.rng
    kernel = int(rng.integers(1, 6)), int(rng.integers(1, 6))
    shape = int(rng.integers(1, 3)), *(int(each) for each in rng.integers(6, 40, 2)), int(rng.integers(1, 50))
    x = draft.input(shape, "int16")
    strides = tuple(int(each) for each in rng.integers(1, 4, 2))
    pads = tuple(int(rng.integers(0, kernel[i % 2])) for i in range(4))
    y = _pool(draft, "avg_pool2d", x, kernel, strides=strides, pads=pads)
    graph, limit = draft.graph.finish([y.name]), int(rng.choice((1 << 14, 1 << 18)))
    network = compile(graph, TARGETS[seed % 3], limits=MemoryLimits(sp_bytes=limit))
    low, high = -(1 << 15), (1 << 15) - 1
    for inputs in (draft.random_inputs(), {x.name: rng.choice((low, low + 1, high), shape).astype(np.int16)}):
        with GoldenDevice(network.config, dram_bytes(network)) as device:
            (found,) = run_on(device, network, inputs).values()
        (wanted,) = evaluate(graph, inputs).values()
        np.testing.assert_array_equal(found, wanted)
    assert not network.host


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", range(36))
def test_averages_of_few_channels(seed: int) -> None:
    """Random windows at a distance of one column, added by MATRIX and FUSE; the results are those of depthwise mode.

    Some images are a part of the channels of a tensor, and some results are in the scratchpad, or a part of a tensor.
    """
    print(f"seed {seed}")
    draft = Draft(np.random.default_rng(seed))
    rng, target = draft.rng, TARGETS[seed % 3]
    rounding = ("reference", "xnnpack", "onnxruntime")[seed // 3 % 3]
    n = load_target(target).n
    kernel = int(rng.integers(1, 6)), int(rng.integers(1, 6))
    channels = int(rng.integers(1, n if kernel[1] < 3 else n // 2 + 1))
    h, w = (int(rng.integers(size, 50)) for size in kernel)
    x = draft.input((int(rng.integers(1, 3)), h, w, channels + (seed % 5 == 0)), ("int8", "uint8")[seed % 2])
    if x.shape[3] > channels:
        part = (*x.shape[:3], channels)
        x = draft.node(
            "slice", [x], part, like=x, dtype=x.dtype, starts=(0, 0, 0, 1), sizes=part, steps=(1,) * 4
        )
    pads = tuple(int(rng.integers(0, kernel[i % 2])) for i in range(4))
    y = _pool(draft, "avg_pool2d", x, kernel, strides=(int(rng.integers(1, 3)), 1), pads=pads)
    end = rng.random()
    if end < 0.25:
        y = draft.node("sigmoid", [y], y.shape, dtype=x.dtype, scale=1 / 256)
    elif end < 0.5:
        twice = (*y.shape[:3], 2 * channels)
        y = draft.node("concat", [y, y], twice, like=y, dtype=x.dtype, axis=3)
    graph = draft.graph.finish([y.name])
    options = {"target": target, "rounding": rounding, "strict": True}
    direct = compile(graph, **options, limits=MemoryLimits(sp_bytes=int(rng.choice((1 << 13, 1 << 18)))))
    layers = dict(direct.schedule.layers)
    for layer in direct.layers:
        how = window_sums(layer, direct.config) if isinstance(layer, DepthwiseLayer) else None
        if how is not None:
            rows = int(rng.integers(1, 12))
            while rows > 1 and 2 * how.sum_rows(rows) > direct.config.acc_rows:
                rows -= 1
            layers[layer.name] = replace(
                layers[layer.name], fold_kernel_width=True, rows=rows, rows_per_load=rows, acc_buffers=2
            )
    added = compile(graph, **options, schedule=replace(direct.schedule, layers=layers))
    inputs, results = draft.random_inputs(), []
    for network in (direct, added):
        with GoldenDevice(network.config, dram_bytes(network)) as device:
            results += run_on(device, network, inputs).values()
    np.testing.assert_array_equal(results[0], results[1])
    if rounding != "onnxruntime":
        (wanted,) = evaluate(graph, inputs, rounding=rounding).values()
        np.testing.assert_array_equal(results[1], wanted)


@pytest.mark.parametrize(
    ("op", "shape", "window", "share"),
    [
        ("max_pool2d", (56, 56, 24), (3, 2, 1), 0.57),
        ("max_pool2d", (56, 56, 64), (3, 2, 1), 0.76),
        ("max_pool2d", (56, 56, 100), (3, 2, 1), 0.59),
        ("max_pool2d", (28, 28, 64), (2, 1, 0), 0.74),
        ("max_pool2d", (56, 56, 40), (2, 2, 0), 0.93),
        ("max_pool2d", (160, 160, 3), (2, 2, 0), 0.83),
        ("max_pool2d", (147, 151, 3), (2, 2, 0), 0.78),
        ("max_pool2d", (160, 160, 4), (2, 2, 0), 0.92),
        ("max_pool2d", (120, 120, 5), (2, 2, 0), 0.77),
        ("max_pool2d", (112, 112, 6), (2, 2, 0), 0.82),
        ("max_pool2d", (96, 96, 7), (2, 2, 0), 0.83),
        ("max_pool2d", (96, 96, 8), (2, 2, 0), 0.91),
        ("max_pool2d", (96, 96, 9), (2, 2, 0), 0.83),
        ("max_pool2d", (72, 72, 17), (2, 2, 0), 0.77),
        ("max_pool2d", (64, 64, 20), (2, 2, 0), 0.91),
        ("max_pool2d", (20, 20, 240), (20, 1, 0), 0.86),
        ("max_pool2d", (40, 40, 64), (40, 1, 0), 0.88),
        ("max_pool2d", (112, 112, 24), (112, 1, 0), 0.94),
        ("avg_pool2d", (13, 13, 1000), (13, 1, 0), 0.86),
        ("avg_pool2d", (13, 13, 500), (13, 1, 0), 0.79),
        ("avg_pool2d", (160, 160, 1), (3, 1, 1), 0.69),
        ("avg_pool2d", (128, 128, 2), (3, 1, 1), 0.70),
        ("avg_pool2d", (112, 112, 3), (3, 1, 1), 0.71),
        ("avg_pool2d", (224, 224, 3), (3, 1, 1), 0.77),
        ("avg_pool2d", (96, 96, 4), (3, 1, 0), 0.69),
        ("avg_pool2d", (96, 96, 5), (3, 1, 1), 0.71),
        ("avg_pool2d", (80, 80, 6), (3, 1, 1), 0.70),
        ("avg_pool2d", (64, 64, 8), (3, 1, 1), 0.76),
        ("avg_pool2d", (112, 112, 3), (2, 1, 0), 0.84),
        ("avg_pool2d", (96, 96, 4), (5, 1, 2), 0.49),
        ("avg_pool2d of int16", (40, 40, 56), (3, 1, 1), 0.63),
        ("avg_pool2d of int16", (40, 40, 64), (3, 1, 1), 0.70),
        ("avg_pool2d of int16", (56, 56, 24), (3, 1, 0), 0.56),
        ("avg_pool2d of int16", (56, 56, 64), (3, 2, 1), 0.89),
        ("avg_pool2d of int16", (56, 56, 64), (2, 1, 0), 0.88),
        ("avg_pool2d of int16", (56, 56, 64), (2, 2, 0), 0.96),
    ],
)
def test_share_of_the_bus(
    op: str, shape: tuple[int, int, int], window: tuple[int, int, int], share: float
) -> None:
    draft, (kernel, stride, pad) = Draft(np.random.default_rng(0)), window
    op, _, wide = op.partition(" of ")
    x = draft.input((1, *shape), wide or "int8")
    y = _pool(draft, op, x, (kernel, kernel), strides=(stride, stride), pads=(pad,) * 4)
    graph, inputs = draft.graph.finish([y.name]), draft.random_inputs()
    network = compile(graph, "n16")
    with open_device(network, "rtl", 1, 100, 16, print) as device:
        found, cycles = Session(device, network).measure(inputs)
    np.testing.assert_array_equal(found[y.name], evaluate(graph, inputs)[y.name])
    assert (x.bytes + y.bytes) / 16 / cycles >= share


def test_reciprocals_divide_exactly() -> None:
    """All sums of up to 255 bytes, divided as integers with halves away from zero."""
    for count in range(1, 256):
        sums = np.arange(-255 * count, 255 * count + 1)
        wanted = np.sign(sums) * ((2 * np.abs(sums) + count) // (2 * count))
        assert np.array_equal(scale(sums, *reciprocal(count), 0, Rounding.AWAY), wanted), count
