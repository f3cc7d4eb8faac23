"""Bilinear resizing equals the reference for all machines and layouts, and runs close to the rate of the bus."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from compiler.api import compile
from compiler.frontends.builder import GraphBuilder
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization, Tensor
from compiler.reference import evaluate
from compiler.reference.node_invocation import Kernels
from compiler.runtime.session import Session, dram_bytes
from cosim.device import Device
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from hw.errors import InputError
from hw.isa.enums import Unit
from tests.layers.test_moves import commands_of

Q = Quantization.per_tensor(0.1)
HALF, PLAIN, CORNERS = {"centers": True}, {}, {"corners": True}
Shape = tuple[int, ...]


def resized(build: GraphBuilder, x: Tensor, size: tuple[int, int], **how: bool) -> Tensor:
    """Add a resizing of an image."""
    given = {"corners": False, "centers": False} | how
    y = Tensor("y", (x.shape[0], *size, x.shape[3]), x.dtype, x.quantization)
    return build.node("y", "resize_bilinear", [x], y, size=size, **given)


def graph_of(shape: Shape, size: tuple[int, int], how: dict[str, bool], dtype: str = "int8") -> Graph:
    """Return a graph with one resizing; `how` are the attributes that are True."""
    build = GraphBuilder("resize")
    resized(build, build.graph.add_input(Tensor("x", shape, dtype, Q)), size, **how)
    return build.graph.finish(["y"])


def run(device: Device, network: Any, graph: Graph, rng: np.random.Generator) -> int:
    """Compare a network with the reference for random and extreme values; return its cycles."""
    tensor = graph.tensors["x"]
    limits = np.iinfo(tensor.dtype)
    x = rng.integers(limits.min, limits.max + 1, tensor.shape).astype(tensor.dtype)
    x = np.where(rng.random(tensor.shape) < 0.2, rng.choice((limits.min, limits.max), tensor.shape), x)
    x = x.astype(tensor.dtype)
    wanted = evaluate(graph, {"x": x}, rounding=network.rounding)
    outputs, cycles = Session(device, network).measure({"x": x})
    for name, array in wanted.items():
        np.testing.assert_array_equal(outputs[name], array)
    return cycles


def check(graph: Graph, target: str, rounding: Kernels, rng: np.random.Generator) -> None:
    """Compare a graph, all of which runs on the accelerator, with the reference."""
    network = compile(graph, target, strict=True, rounding=rounding)
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        run(device, network, graph, rng)


@pytest.mark.random_cases("rounding", "dtype")
@pytest.mark.parametrize("rounding", ["reference", "xnnpack", "onnxruntime"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("shape", "size", "how"),
    [
        ((1, 9, 7, 20), (18, 14), HALF),
        ((2, 5, 6, 3), (20, 24), HALF),
        ((1, 4, 5, 17), (32, 40), HALF),
        ((1, 3, 3, 2), (48, 48), HALF),
        ((1, 6, 7, 33), (12, 28), PLAIN),
        ((1, 17, 9, 21), (33, 17), CORNERS),
        ((1, 5, 5, 4), (33, 65), CORNERS),
        ((1, 12, 18, 8), (6, 9), HALF),
        ((1, 12, 16, 5), (3, 4), HALF),
        ((1, 9, 15, 40), (3, 5), HALF),
        ((1, 8, 80, 1), (4, 5), PLAIN),
    ],
)
def test_powers_of_two_and_integer_factors(
    shape: Shape,
    size: tuple[int, int],
    how: dict[str, bool],
    dtype: str,
    rounding: Kernels,
    rng: np.random.Generator,
) -> None:
    check(graph_of(shape, size, how, dtype), str(rng.choice(("n4", "n8", "n16"))), rounding, rng)


@pytest.mark.parametrize("zero", [-5, 4])
def test_onnxruntime_rounds_ties_to_even_distances_from_the_zero_point(
    zero: int, rng: np.random.Generator
) -> None:
    build, shape, size = GraphBuilder("resize"), (1, 9, 8, 12), (18, 16)
    x = build.graph.add_input(Tensor("x", shape, "int8", Quantization.per_tensor(0.1, zero)))
    resized(build, x, size)
    graph = build.graph.finish(["y"])
    values = rng.integers(-128, 128, shape).astype(np.int8)
    network = compile(graph, "n16", strict=True, rounding="onnxruntime")
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        found = Session(device, network).run({"x": values})["y"]
    centred = np.pad(values.astype(np.int64) - zero, ((0, 0), (0, 1), (0, 1), (0, 0)), "edge")
    wanted = np.zeros((1, *size, 12), np.int64)
    for i, j in np.ndindex(2, 2):
        parts = [centred[:, a : 9 + a, b : 8 + b] for a in {0, i} for b in {0, j}]
        wanted[:, i::2, j::2] = np.rint(sum(parts) / len(parts))
    np.testing.assert_array_equal(found, np.clip(wanted + zero, -128, 127))


def _exact_matrix(made: int, total: int, how: dict[str, bool]) -> tuple[np.ndarray, int]:
    """Return the weights of the pixels along one axis as integers, and their unit."""
    less, half = int("corners" in how), Fraction(int("centers" in how), 2)
    rows = []
    for number in range(made):
        place = (number + half) * Fraction(total - less, made - less) - half
        place = min(max(place, Fraction(0)), Fraction(total - 1))
        rows.append([max(1 - abs(place - other), Fraction(0)) for other in range(total)])
    unit = math.lcm(*(weight.denominator for row in rows for weight in row))
    return np.array([[int(weight * unit) for weight in row] for row in rows]), unit


@pytest.mark.parametrize(
    ("size", "made", "how"),
    [
        ((10, 9), (30, 27), HALF),
        ((12, 10), (18, 25), HALF),
        ((20, 16), (15, 12), HALF),
        ((10, 9), (30, 27), PLAIN),
        ((13, 8), (26, 15), CORNERS),
        ((9, 9), (13, 17), HALF),
    ],
)
@pytest.mark.parametrize("channels", [5, 20])
def test_onnxruntime_has_exact_weights(
    size: tuple[int, int],
    made: tuple[int, int],
    how: dict[str, bool],
    channels: int,
    rng: np.random.Generator,
) -> None:
    build, zero = GraphBuilder("resize"), int(rng.integers(-128, 128))
    shape = (1, *size, channels)
    resized(
        build,
        build.graph.add_input(Tensor("x", shape, "int8", Quantization.per_tensor(0.1, zero))),
        made,
        **how,
    )
    graph, values = build.graph.finish(["y"]), rng.integers(-128, 128, shape).astype(np.int8)
    network = compile(graph, "n16", strict=True, rounding="onnxruntime")
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        found = Session(device, network).run({"x": values})["y"]
    (down, first), (across, second) = (_exact_matrix(*each, how) for each in zip(made, size, strict=True))
    sums, unit = np.einsum("ih,jw,bhwc->bijc", down, across, values.astype(np.int64) - zero), first * second
    whole, rest = np.divmod(sums, unit)
    up = (2 * rest > unit) | ((2 * rest == unit) & (whole % 2 == 1))
    np.testing.assert_array_equal(found, np.clip(whole + up + zero, -128, 127))
    np.testing.assert_array_equal(found, evaluate(graph, {"x": values}, rounding="onnxruntime")["y"])


def test_weights_of_three_bytes(rng: np.random.Generator) -> None:
    """XNNPACK's weights are products of two fractions of 11 bits."""
    check(graph_of((1, 7, 6, 19), (21, 18), HALF), "n16", "xnnpack", rng)


@pytest.mark.parametrize("channels", [3, 8, 24])
def test_part_of_a_concatenation(channels: int, rng: np.random.Generator) -> None:
    """The result has gaps between its pixels, so that columns of few channels are computed separately."""
    build = GraphBuilder("parts")
    x = build.graph.add_input(Tensor("x", (1, 6, 8, channels), "int8", Q))
    y, made = resized(build, x, (12, 16), centers=True), (1, 12, 16, channels)
    copy = build.node("copy", "reduce_max", [y], Tensor("copy", made, "int8", Q), axes=(), keep=True)
    joined = Tensor("joined", (*made[:3], 2 * channels), "int8", Q)
    build.node("joined", "concat", [copy, y], joined, axis=3)
    check(build.graph.finish(["joined"]), "n16", "reference", rng)


def test_part_of_the_channels(rng: np.random.Generator) -> None:
    build = GraphBuilder("parts")
    x = build.graph.add_input(Tensor("x", (1, 6, 8, 16), "int8", Q))
    copy = build.node("copy", "reduce_max", [x], Tensor("copy", x.shape, "int8", Q), axes=(), keep=True)
    how = {"starts": (0, 0, 0, 8), "sizes": (1, 6, 8, 8), "steps": (1, 1, 1, 1)}
    part = build.node("part", "slice", [copy], Tensor("part", (1, 6, 8, 8), "int8", Q), **how)
    resized(build, part, (12, 16), centers=True)
    check(build.graph.finish(["y"]), "n16", "reference", rng)


@pytest.mark.parametrize(
    "how", [{"pixels_per_pass": 8}, {"pixels_per_pass": 5}, {"fold_kernel_width": True}], ids=str
)
@pytest.mark.parametrize("channels", [3, 8, 20])
@pytest.mark.parametrize("width", [3, 8, 19])
def test_schedules_that_do_not_suit_tensors_on_chip(
    width: int, channels: int, how: dict[str, Any], rng: np.random.Generator
) -> None:
    """Pixels of several rows, or windows, are replaced by another way if the operand is in the scratchpad."""
    build, size = GraphBuilder("chain"), (15, 2 * width - 1)
    x = build.graph.add_input(Tensor("x", (1, 10, width, channels), "int8", Q))
    window = {"kernel": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1)}
    a = build.node("a", "max_pool2d", [x], Tensor("a", x.shape, "int8", Q), **window)
    y = resized(build, a, size, centers=True)
    made = (1, *size, channels)
    b = build.node("b", "reduce_max", [y], Tensor("b", made, "int8", Q), axes=(), keep=True)
    joined = Tensor("joined", (*made[:3], 2 * channels), "int8", Q)
    build.node("joined", "concat", [b, y], joined, axis=3)
    graph = build.graph.finish(["joined"])
    first = compile(graph, "n16", strict=True, rounding="onnxruntime")
    layers = {
        name: replace(each, **(how if name == "y" else {}), on_chip=name != "joined")
        for name, each in first.schedule.layers.items()
    }
    network = compile(
        graph, "n16", schedule=replace(first.schedule, layers=layers), strict=True, rounding="onnxruntime"
    )
    assert network.schedule.layers["a"].on_chip
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        run(device, network, graph, rng)


def test_columns_of_few_channels_are_computed_together() -> None:
    lanes = [
        command.fields["lanes_tail"]
        for command in commands_of(graph_of((1, 16, 16, 8), (32, 32), HALF), "n16")
        if command.unit == Unit.FUSE
    ]
    assert sum(each == 8 for each in lanes) < len(lanes) / 2


@pytest.mark.parametrize(
    ("dtype", "size", "message"),
    [
        ("int8", (130, 141), r"differ in 15,104 ways between pixels, more than 2,500"),
        ("uint8", (27, 18), r"some float32 fractions are not multiples of 1/256"),
        ("int16", (18, 18), r"int16"),
    ],
)
def test_reasons_for_the_host(dtype: str, size: tuple[int, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        compile(graph_of((1, 9, 9, 4), size, HALF, dtype), "n8", strict=True)


def test_weights_must_fit_half_of_the_scratchpad() -> None:
    graph, config = graph_of((1, 9, 9, 4), (41, 43), HALF), replace(load_target("n8"), sp_bytes=1 << 16)
    with pytest.raises(
        InputError, match=r"ways between pixels, and take [0-9,]+ bytes of scratchpad, more than 32,768"
    ):
        compile(graph, config, strict=True)


@pytest.mark.random_cases("rounding")
@pytest.mark.parametrize("rounding", ["reference", "xnnpack", "onnxruntime"])
@pytest.mark.parametrize(
    ("shape", "size", "dtype", "how"),
    [
        ((1, 11, 9, 40), (17, 14), "int8", HALF),
        ((2, 9, 13, 21), (23, 32), "uint8", HALF),
        ((1, 16, 20, 17), (12, 15), "int8", HALF),
        ((1, 12, 3, 33), (18, 8), "uint8", PLAIN),
        ((2, 10, 10, 16), (15, 19), "int8", CORNERS),
        ((1, 2, 30, 5), (5, 45), "int8", HALF),
    ],
)
def test_products_with_tiles_of_one_to_four_rows(
    shape: Shape, size: tuple[int, int], dtype: str, how: dict[str, bool], rounding: Kernels, rng: Any
) -> None:
    """Every number of pixels of a weight tile, bands of any height, and parts of the channels give the same results."""
    graph = graph_of(shape, size, how, dtype)
    target = str(rng.choice(("n4", "n8", "n16")))
    first = compile(graph, target, rounding=rounding)
    if first.host:
        assert rounding == "reference" and dtype == "uint8"
        return
    n, tried = first.config.n, set[int]()
    for stacked in range(1, 5):
        pixels = min(n // stacked, shape[2])
        if pixels < 2 or n // pixels > shape[1] or pixels in tried:
            continue
        tried.add(pixels)
        rows, columns = int(rng.integers(1, 12)), int(rng.integers(1, 4))
        how_much = {
            "rows": rows,
            "rows_per_load": rows * int(rng.integers(1, 4)),
            "columns": columns,
            "pixels_per_pass": pixels,
            "acc_buffers": 2,
            "y_buffers": 2,
        }
        layers = {name: replace(layer, **how_much) for name, layer in first.schedule.layers.items()}
        network = compile(
            graph, target, schedule=replace(first.schedule, layers=layers), rounding=rounding, strict=True
        )
        print(f"{target}: {how_much}")
        with GoldenDevice(network.config, dram_bytes(network)) as device:
            run(device, network, graph, rng)
    assert tried


@pytest.mark.random_cases("target", "rounding")
@pytest.mark.parametrize("rounding", ["reference", "xnnpack", "onnxruntime"])
@pytest.mark.parametrize("target", ["n8", "n16"])
@pytest.mark.parametrize(
    ("shape", "size", "dtype", "how"),
    [
        ((1, 11, 19, 3), (17, 29), "int8", HALF),
        ((2, 9, 12, 4), (15, 20), "uint8", HALF),
        ((1, 16, 20, 2), (12, 15), "int8", HALF),
        ((1, 12, 2, 1), (18, 8), "int8", PLAIN),
        ((2, 1, 40, 1), (3, 99), "uint8", HALF),
        ((1, 10, 10, 3), (15, 19), "int8", CORNERS),
    ],
)
def test_windows_of_few_channels(
    shape: Shape,
    size: tuple[int, int],
    dtype: str,
    how: dict[str, bool],
    target: str,
    rounding: Kernels,
    rng: Any,
) -> None:
    graph = graph_of(shape, size, how, dtype)
    first = compile(graph, target, rounding=rounding)
    if first.host:
        assert rounding == "reference" and dtype == "uint8"
        return
    rows = int(rng.integers(1, 12))
    how_much = {
        "rows": rows,
        "rows_per_load": rows * int(rng.integers(1, 4)),
        "fold_kernel_width": True,
        "acc_buffers": 2,
        "y_buffers": 2,
    }
    print(f"{target}: {how_much}")
    layers = {name: replace(layer, **how_much) for name, layer in first.schedule.layers.items()}
    schedule = replace(first.schedule, layers=layers)
    network = compile(graph, target, schedule=schedule, rounding=rounding, strict=True)
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        run(device, network, graph, rng)
    if rounding == "reference":
        commands = commands_of(graph, target, network.schedule)
        matrix = [command.fields for command in commands if command.unit == Unit.MATRIX]
        assert matrix and all(each["a_v"] == shape[3] and "dw_len" not in each for each in matrix)


#: Shape, size, flags, rounding and minimum share of the cycles that the bus needs.
SHARES = (
    ((1, 24, 24, 64), (48, 48), HALF, "reference", 0.74),
    ((1, 48, 48, 8), (96, 96), HALF, "reference", 0.75),
    ((1, 12, 12, 128), (48, 48), HALF, "reference", 0.75),
    ((1, 33, 33, 21), (65, 65), CORNERS, "reference", 0.6),
    ((1, 14, 14, 256), (21, 21), HALF, "onnxruntime", 0.9),
    ((1, 40, 40, 24), (100, 100), HALF, "onnxruntime", 0.73),
    ((1, 40, 40, 64), (30, 30), HALF, "onnxruntime", 0.9),
    ((1, 80, 80, 20), (60, 60), HALF, "onnxruntime", 0.54),
    ((2, 28, 28, 40), (42, 42), HALF, "onnxruntime", 0.76),
    ((1, 33, 29, 50), (50, 44), HALF, "onnxruntime", 0.47),
    ((1, 80, 80, 3), (200, 200), HALF, "onnxruntime", 0.46),
    ((1, 128, 128, 3), (192, 192), HALF, "onnxruntime", 0.57),
    ((1, 160, 160, 3), (120, 120), HALF, "onnxruntime", 0.63),
    ((1, 64, 64, 4), (96, 96), HALF, "onnxruntime", 0.51),
)


@pytest.mark.parametrize(("shape", "size", "how", "rounding", "share"), SHARES)
def test_cycles(
    shape: Shape, size: tuple[int, int], how: dict[str, bool], rounding: Kernels, share: float, rng: Any
) -> None:
    graph = graph_of(shape, size, how)
    network = compile(graph, "n16", strict=True, rounding=rounding)
    with RtlDevice(network.config, dram_bytes(network)) as device:
        cycles = run(device, network, graph, rng)
    moved = (graph.tensors["x"].elements + graph.tensors["y"].elements) / network.config.n
    print(f"{shape} to {size}: {cycles:,} cycles, {moved / cycles:.1%} of the bus")
    assert cycles * share <= moved


@pytest.mark.parametrize("width", [8, 16, 32])
def test_strips_of_grouped_columns(width: int, rng: np.random.Generator) -> None:
    """The first group of a strip may read a pixel before those that it depends on."""
    graph = graph_of((1, 9, 32, 4), (18, 64), PLAIN)
    first = compile(graph, "n16", strict=True)
    layers = {name: replace(layer, strip_width=width) for name, layer in first.schedule.layers.items()}
    network = compile(graph, "n16", schedule=replace(first.schedule, layers=layers))
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        run(device, network, graph, rng)
