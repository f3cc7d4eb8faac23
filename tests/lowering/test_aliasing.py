"""Concatenations, slices and pads that need no copy equal numpy."""

import numpy as np
import pytest

from compiler.api import compile
from compiler.codegen.generate import StageGenerator
from compiler.commands.commands import BufferMemory
from compiler.frontends.builder import GraphBuilder
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization, Tensor
from compiler.lowering.fusion_groups import group
from compiler.lowering.lower import lower
from compiler.passes.canonicalize import fold_pads
from compiler.reference import evaluate as on_host
from compiler.schedule.schedule import LayerSchedule, Schedule
from hw.config import load_target
from tests.layers.move_reference import check, evaluate

Q = Quantization.per_tensor(0.02, 3)


def concatenation(axis: int, shape: tuple[int, ...]) -> Graph:
    """Return a graph that concatenates the max pools of two images along an axis."""
    build = GraphBuilder("concatenation")
    operands = []
    for i in range(2):
        x = build.graph.add_input(Tensor(f"x{i}", shape, "int8", Q))
        y = Tensor(f"p{i}", shape, "int8", Q)
        operands.append(
            build.node("pool", "max_pool2d", [x], y, kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1))
        )
    whole = list(shape)
    whole[axis] *= 2
    build.node("concat", "concat", operands, Tensor("y", tuple(whole), "int8", Q), axis=axis)
    return build.graph.finish(["y"])


@pytest.mark.parametrize(("axis", "free"), [(3, True), (1, True), (2, False)])
def test_operands_of_a_concatenation_are_written_in_place(axis: int, free: bool) -> None:
    graph, rng = concatenation(axis, (1, 4, 5, 6)), np.random.default_rng(3)
    network = compile(graph, "n8", strict=True)
    copied = [layer for layer in network.layers if "concat" in layer.ops]
    assert bool(copied) != free
    inputs = {name: rng.integers(-128, 128, (1, 4, 5, 6)).astype(np.int8) for name in graph.inputs}
    check(network, inputs, evaluate(graph, inputs), f"axis {axis}")


def test_channel_slices_are_read_in_place() -> None:
    build, rng = GraphBuilder("split"), np.random.default_rng(4)
    x = build.graph.add_input(Tensor("x", (1, 6, 6, 12), "int8", Q))
    for i, (start, size) in enumerate(((0, 5), (5, 7))):
        part = build.node(
            "slice",
            "slice",
            [x],
            Tensor(f"s{i}", (1, 6, 6, size), "int8", Q),
            starts=(0, 0, 0, start),
            sizes=(1, 6, 6, size),
            steps=(1, 1, 1, 1),
        )
        weights = build.constant(
            "w", rng.integers(-9, 9, (4, 3, 3, size)).astype(np.int8), Quantization.per_tensor(0.1)
        )
        build.node(
            "conv",
            "conv2d",
            [part, weights],
            Tensor(f"y{i}", (1, 6, 6, 4), "int8", Q),
            strides=(1, 1),
            pads=(1, 1, 1, 1),
            dilations=(1, 1),
            groups=1,
        )
    graph = build.graph.finish(["y0", "y1"])
    inputs = {"x": rng.integers(-128, 128, (1, 6, 6, 12)).astype(np.int8)}
    for target in ("n4", "n8"):
        network = compile(graph, target, strict=True)
        assert [layer.ops for layer in network.layers] == [("conv2d",), ("conv2d",)]
        check(network, inputs, evaluate(graph, inputs), target)


def padded(value: float, reader: str, pads: tuple[tuple[int, int], ...]) -> Graph:
    """Return a graph of a pad and a node that reads its result."""
    build, rng = GraphBuilder("padded"), np.random.default_rng(5)
    x = build.graph.add_input(Tensor("x", (1, 6, 5, 3), "int8", Q))
    shape = tuple(size + sum(pair) for size, pair in zip(x.shape, pads, strict=True))
    p = build.node("pad", "pad", [x], Tensor("p", shape, "int8", Q), pads=pads, value=value)
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1)}
    if reader == "max_pool2d":
        build.node("pool", reader, [p], Tensor("y", shape, "int8", Q), kernel=(3, 3), **window)
    else:
        weights = build.constant(
            "w", rng.integers(-9, 9, (4, 3, 3, shape[3])).astype(np.int8), Quantization.per_tensor(0.1)
        )
        build.node(
            "conv",
            reader,
            [p, weights],
            Tensor("y", (*shape[:3], 4), "int8", Q),
            dilations=(1, 1),
            groups=1,
            **window,
        )
    return build.graph.finish(["y"])


@pytest.mark.parametrize(
    ("value", "reader", "pads", "folded"),
    [
        (0.0, "conv2d", ((0, 0), (1, 2), (0, 3), (0, 0)), True),
        (0.02, "conv2d", ((0, 0), (1, 2), (0, 3), (0, 0)), False),
        (0.0, "conv2d", ((0, 0), (1, 1), (1, 1), (0, 1)), False),
        (-1e9, "max_pool2d", ((0, 0), (1, 0), (0, 1), (0, 0)), True),
        (-1e9, "max_pool2d", ((0, 0), (2, 0), (0, 1), (0, 0)), False),
        (0.0, "max_pool2d", ((0, 0), (1, 0), (0, 1), (0, 0)), False),
    ],
)
def test_pads_are_folded_only_if_exact(
    value: float, reader: str, pads: tuple[tuple[int, int], ...], folded: bool
) -> None:
    graph, rng = padded(value, reader, pads), np.random.default_rng(6)
    assert [node.op for node in fold_pads(graph)] == ([reader] if folded else ["pad", reader])
    inputs = {"x": rng.integers(-128, 128, (1, 6, 5, 3)).astype(np.int8)}
    check(compile(graph, "n8", strict=True), inputs, evaluate(graph, inputs), f"{value} {pads}")


def test_operands_share_the_memory_of_the_concatenation() -> None:
    graph = concatenation(3, (1, 4, 5, 6))
    lowered = lower(graph, group(graph, ()), "reference", load_target("n8"))
    layers = {layer.name: LayerSchedule() for layer in lowered.layers}
    homes = StageGenerator(load_target("n8"), lowered, Schedule((), layers), 0, 2, 0).layouts
    first, second, whole = homes["p0"], homes["p1"], homes["y"]
    assert first.buffer is second.buffer is whole.buffer and whole.buffer.memory == BufferMemory.DRAM
    assert (first.pixel, second.offset, first.offset) == (12, 6, 0)


def test_large_average_of_a_channel_slice() -> None:
    build, rng = GraphBuilder("average"), np.random.default_rng(7)
    x = build.graph.add_input(Tensor("x", (1, 16, 17, 12), "int8", Q))
    part = build.node(
        "slice",
        "slice",
        [x],
        Tensor("s", (1, 16, 17, 5), "int8", Q),
        starts=(0, 0, 0, 4),
        sizes=(1, 16, 17, 5),
        steps=(1, 1, 1, 1),
    )
    build.node(
        "pool",
        "avg_pool2d",
        [part],
        Tensor("y", (1, 1, 1, 5), "int8", Q),
        kernel=(16, 17),
        strides=(1, 1),
        pads=(0, 0, 0, 0),
        count_pads=False,
    )
    graph = build.graph.finish(["y"])
    inputs = {"x": rng.integers(-128, 128, (1, 16, 17, 12)).astype(np.int8)}
    check(compile(graph, "n8", strict=True), inputs, on_host(graph, inputs), "average")
