"""Operators that move elements equal numpy exactly, whatever the placement of their tensors."""

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from compiler.api import compile
from compiler.codegen.generate import StageGenerator
from compiler.commands.commands import Command
from compiler.frontends.builder import GraphBuilder
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization, Tensor
from compiler.layers.strided_copy import Walk, stretches
from compiler.lowering.fusion_groups import group
from compiler.lowering.lower import lower
from compiler.reference import evaluate as on_host
from compiler.runtime.session import Session, dram_bytes
from compiler.schedule.schedule import Schedule
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from hw.errors import InputError
from hw.isa.commands import LOAD_WORD
from tests.layers.move_graphs import Maker
from tests.layers.move_reference import check, evaluate

DTYPES = ("int8", "int8", "uint8", "int16", "int32")
SEEDS = {"n4": 40, "n8": 80, "n16": 60}
ON_RTL = 10
Q = Quantization.per_tensor(0.02, 3)


def random_graph(seed: int) -> tuple[Maker, Graph]:
    """Return a random graph and its generator."""
    rng = np.random.default_rng(seed)
    maker = Maker(rng, DTYPES[seed % len(DTYPES)])
    return maker, maker.make(int(rng.integers(2, 8)))


def perturbed(schedule: Schedule, seed: int) -> Schedule:
    """Return a schedule with random placements and tile sizes."""
    rng = random.Random(seed)
    layers = {
        name: replace(
            layer,
            on_chip=rng.random() < 0.6,
            rows=rng.choice((1, 2, 5, 40, layer.rows)),
            x_buffers=rng.choice((1, 2, 3)),
            y_buffers=rng.choice((1, 2)),
            prefetch=rng.choice((0, 4)),
            same_program_as_previous=rng.random() < 0.3,
        )
        for name, layer in schedule.layers.items()
    }
    return replace(schedule, layers=layers)


@pytest.mark.parametrize("target", SEEDS)
def test_random_graphs_under_random_schedules(target: str, drawn: Callable) -> None:
    ran, seeds = 0, drawn(range(SEEDS[target]))
    for seed in seeds:
        maker, graph = random_graph(1000 * len(target) + seed)
        if all(node.op == "reshape" for node in graph):
            continue  # the accelerator has nothing to do
        inputs = maker.inputs(graph)
        wanted = evaluate(graph, inputs)
        first = compile(graph, target, strict=True)
        check(first, inputs, wanted, f"seed {seed}")
        try:
            other = compile(graph, target, schedule=perturbed(first.schedule, seed))
        except InputError:
            continue  # the schedule does not fit
        ran += 1
        check(other, inputs, wanted, f"seed {seed}, other schedule")
    print(f"{ran} of {len(seeds)} other schedules fit")
    assert ran > len(seeds) // 2


def test_random_graphs_on_the_rtl() -> None:
    config = load_target("n8")
    for seed in range(ON_RTL):
        maker, graph = random_graph(500 + seed)
        inputs = maker.inputs(graph)
        network = compile(graph, config, strict=True)
        if seed % 2:
            network = compile(graph, config, schedule=perturbed(network.schedule, seed))
        wanted = evaluate(graph, inputs)
        with RtlDevice(config, dram_bytes(network)) as device:
            for name, found in Session(device, network).run(inputs).items():
                assert np.array_equal(found, wanted[name]), f"seed {seed}: {name}\n{graph}"


@pytest.mark.parametrize("rounding", ["reference", "xnnpack", "onnxruntime"])
@pytest.mark.parametrize("op", ["requantize", "concat", "transpose"])
def test_all_values_are_requantized_as_on_the_host(op: str, rounding: str) -> None:
    rng = np.random.default_rng(11)
    for _ in range(12):
        scales, zeros = np.exp(rng.uniform(-6, -1, 2)), rng.integers(0, 256, 2)
        ends = [Quantization.per_tensor(float(s), int(z)) for s, z in zip(scales, zeros, strict=True)]
        build = GraphBuilder(op)
        x = build.graph.add_input(Tensor("x", (16, 16), "uint8", ends[0]))
        attributes = {"requantize": {}, "concat": {"axis": 0}, "transpose": {"perm": (1, 0)}}[op]
        build.node(op, op, [x], Tensor("y", (16, 16), "uint8", ends[1]), **attributes)
        graph = build.graph.finish(["y"])
        inputs = {"x": np.arange(256, dtype=np.uint8).reshape(16, 16)}
        network = compile(graph, "n8", rounding=rounding, strict=True)
        check(network, inputs, on_host(graph, inputs, rounding=rounding), f"{ends}")  # type: ignore[arg-type]


def commands_of(graph: Graph, target: str, schedule: Schedule | None = None) -> list[Command]:
    """Return the commands of a compiled graph without host operators, layer by layer."""
    network = compile(graph, target, strict=True, schedule=schedule)
    lowered = lower(graph, group(graph, ()), "reference", load_target(target))
    steps, *_ = StageGenerator(network.config, lowered, network.schedule, 0, 3, 0)._steps()
    return [command for step in steps for command in step.commands()]


def test_large_transpose_reads_blocks_from_dram() -> None:
    build = GraphBuilder("transposed")
    window = {"kernel": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1)}
    shape, turned = (1, 11, 19, 40), (1, 40, 11, 19)
    x = build.graph.add_input(Tensor("x", shape, "int8", Q))
    p = build.node("before", "max_pool2d", [x], Tensor("p", shape, "int8", Q), **window)
    t = build.node("turn", "transpose", [p], Tensor("t", turned, "int8", Q), perm=(0, 3, 1, 2))
    build.node("behind", "max_pool2d", [t], Tensor("y", turned, "int8", Q), **window)
    graph = build.graph.finish(["y"])
    network = compile(graph, "n8", strict=True)
    assert not network.schedule.layers["before"].on_chip and network.schedule.layers["turn"].on_chip
    words = [command.fields["word"] for command in commands_of(graph, "n8") if command.layer == 1]
    assert len(words) == 6, "5 times 26 blocks and, of 209 lines, one more"
    assert all(isinstance(word, int) and LOAD_WORD.unpack(word)["transpose"] for word in words)
    inputs = {"x": np.random.default_rng(2).integers(-128, 128, shape).astype(np.int8)}
    check(network, inputs, evaluate(graph, inputs), "transpose")


def single_node(
    op: str, shape: tuple[int, ...] = (2, 6), data: np.ndarray | None = None, **attributes
) -> Graph:
    """Return a graph of a single node with the given output shape."""
    build = GraphBuilder("bad")
    inputs = [build.graph.add_input(Tensor("x", (2, 3), "int8", Q))]
    if op == "concat":
        inputs.append(build.graph.add_input(Tensor("z", (3, 3), "int8", Q)))
    if op == "gather":
        indices = Tensor("i", (2,), "int32")
        inputs.append(build.graph.add_input(indices) if data is None else build.constant("i", data))
    build.node("node", op, inputs, Tensor("y", shape, "int8", Q), **attributes)
    return build.graph.finish(["y"])


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (single_node("transpose", perm=(0, 0)), r"perm must order dimensions 0\.\.1, not \[0, 0\]"),
        (single_node("transpose", perm=(1, 0)), r"output must be of shape \[3, 2\], not \[2, 6\]"),
        (single_node("concat", axis=1), r"'z' of shape \[3, 3\] is not a part of \[2, 6\] along axis 1"),
        (single_node("concat", axis=2), r"axis must be within -2\.\.1, not 2"),
        (single_node("concat", (2, 3), axis=0), r"inputs along axis 0 must add up to 2"),
        (
            single_node("slice", starts=(0, 2), sizes=(2, 2), steps=(1, 1)),
            r"axis 1 has indices 0\.\.2, not 2\.\.3",
        ),
        (single_node("slice", starts=(0,), sizes=(2,), steps=(1,)), "must be 2 integers each"),
        (
            single_node("pad", pads=((0, 0), (1, 1)), value=0.0),
            r"output must be of shape \[2, 5\], not \[2, 6\]",
        ),
        (single_node("pad", pads=((0, 0),), value=0.0), "pads must be 2 pairs, not 1"),
        (single_node("gather", (2, 2), axis=1), "indices are not constants"),
        (
            single_node("gather", (2, 2), np.array([0, 3], np.int32), axis=1),
            r"indices must be within -3\.\.2",
        ),
        (single_node("resize_nearest", size=(4, 4), centers=False), "an image has 4 dimensions, not 2"),
        (single_node("requantize"), r"output must be of shape \[2, 3\], not \[2, 6\]"),
    ],
)
def test_bad_shapes_are_rejected_with_a_message(graph: Graph, message: str) -> None:
    with pytest.raises(InputError, match=message):
        compile(graph, "n8", strict=True)


def test_indices_become_few_ranges() -> None:
    for indices, count in (
        ([0, 0, 1, 1, 2, 2], 1),
        ([0, 2, 4, 6], 1),
        ([5, 4, 3], 1),
        ([0, 1, 2, 7, 8, 9], 2),
        ([4], 1),
        ([0, 0, 1, 2, 2, 3], 3),
        ([3, 3, 3], 1),
    ):
        parts = stretches(indices)
        found = {}
        for part in parts:
            places = [(part.x, part.y)]
            for size, a, b in part.dims:
                places = [(x + i * a, y + i * b) for x, y in places for i in range(size)]
            found |= {y: x for x, y in places}
        assert [found[i] for i in range(len(indices))] == indices
        assert len(parts) <= count, indices


def test_pieces_cover_a_walk_exactly_once() -> None:
    rng = np.random.default_rng(9)
    for _ in range(50):
        sizes = rng.integers(1, 9, 3).tolist()
        walk = Walk(
            tuple((s, 1, st) for s, st in zip(sizes, (sizes[1] * sizes[2], sizes[2], 1), strict=True))
        )
        most = int(rng.integers(1, 200))
        seen = []
        for piece in walk.pieces(most):
            assert piece.count <= most
            places = [piece.y]
            for size, _, step in piece.dims:
                places = [y + i * step for y in places for i in range(size)]
            seen += places
        assert sorted(seen) == list(range(walk.count)), (sizes, most)


def test_concatenation_without_an_exact_multiplier_runs_on_the_host() -> None:
    build = GraphBuilder("halves")
    inputs = [
        build.graph.add_input(Tensor(f"x{i}", (256,), "uint8", Quantization.per_tensor(*q)))
        for i, q in enumerate(((0.037, 134), (0.037, 132)))
    ]
    output = Tensor("y", (512,), "uint8", Quantization.per_tensor(0.01, 123))
    build.node("concat", "concat", inputs, output, axis=0)
    graph = build.graph.finish(["y"])
    values = {name: np.arange(256, dtype=np.uint8) for name in graph.inputs}
    check(compile(graph, "n8"), values, on_host(graph, values), "on the host")
    with pytest.raises(InputError, match="no multiplier reproduces LiteRT's float32 rounding of 'x0'"):
        compile(graph, "n8", strict=True)


@pytest.mark.parametrize(
    ("shape", "size"),
    [((2, 67, 71, 3), (101, 113)), ((1, 33, 40, 4), (47, 51)), ((1, 83, 89, 1), (131, 137))],
)
@pytest.mark.parametrize("centers", [True, False])
def test_scattered_resizings_are_two_layers(
    rng: np.random.Generator, shape: tuple[int, ...], size: tuple[int, int], centers: bool
) -> None:
    build = GraphBuilder("resize")
    x = build.graph.add_input(Tensor("x", shape, "int8", Q))
    y = Tensor("y", (shape[0], *size, shape[3]), "int8", Q)
    build.node("y", "resize_nearest", [x], y, size=size, centers=centers)
    graph = build.graph.finish(["y"])
    network = compile(graph, "n16", strict=True)
    assert len(network.layers) == 2
    values = rng.integers(-128, 128, shape).astype(np.int8)
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        found = Session(device, network).run({"x": values})["y"]
    rows, columns = (
        ((2 * np.arange(made) + centers) * given) // (2 * made)
        for made, given in zip(size, shape[1:3], strict=True)
    )
    np.testing.assert_array_equal(found, values[:, rows][:, :, columns])
