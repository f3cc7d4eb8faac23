"""Moves whose lines are short: boxes cover every copy, results equal numpy, and cycles stay near those of the bus."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from compiler.api import compile
from compiler.frontends.builder import GraphBuilder
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization, Tensor
from compiler.layers.permutation import (
    BoxPlan,
    Ends,
    Engine,
    Mode,
    engine_of,
    interleaved_rows,
    plans,
    regions,
)
from compiler.layers.strided_copy import Walk
from compiler.reference import evaluate
from compiler.runtime.session import Session, dram_bytes
from cosim.device import Device
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from hw.isa.enums import Unit
from tests.layers.test_moves import commands_of

Q = Quantization.per_tensor(0.02, 3)
Shape = tuple[int, ...]
Expected = Callable[[NDArray], NDArray]


def _places(walk: Walk) -> NDArray[np.int64]:
    """Return the addresses in source and destination of all elements of a walk."""
    out = np.array([[walk.x, walk.y]])
    for count, x, y in walk.dims:
        out = (out[:, None, :] + np.arange(count)[:, None] * np.array([x, y])).reshape(-1, 2)
    return out


def _copy(walk: Walk, x: NDArray, y: NDArray) -> None:
    places = _places(walk)
    y[places[:, 1]] = x[places[:, 0]]


def _turn(walks: list[tuple[Walk, int]], engine: Engine, x: NDArray, y: NDArray) -> None:
    for walk, lane in walks:
        step = walk.dims[lane][2]
        for part in regions(walk, lane, engine):
            assert part.columns <= engine.n and part.rows <= engine.rows
            assert step == 1 or (step == 2 and part.pair is not None)
            span = sum((count - 1) * step for count, step, _ in part.digits) + 1
            assert span <= engine.n or part.equidistant, "a tile reads one line"
            dims = ((part.columns, part.pitch, step), *part.digits, *part.loops, *part.copies)
            _copy(Walk(dims, part.x, part.y), x, y)


def _interleave(walk: Walk, byte: int, engine: Engine, x: NDArray, y: NDArray) -> None:
    for part in interleaved_rows(walk, byte, engine):
        assert part.rows <= engine.rows and part.lines in (2, 4) and 1 <= part.tail <= engine.n
        (count, a, b), *others = part.loops
        last = part.x + (count - 1) * a, part.y + (count - 1) * b
        for blocks, lanes, start in ((count - 1, engine.n, (part.x, part.y)), (1, part.tail, last)):
            dims = ((blocks, a, b), *others, (lanes, 1, part.lines), (part.lines, part.pitch, 1))
            _copy(Walk(dims, *start), x, y)


def _move(plan: BoxPlan, engine: Engine, x: NDArray, y: NDArray) -> None:
    """Move all boxes of a plan as the units do, but through buffers of the sizes that the plan states."""
    loaded_size, between_size, permuted_size = plan.sizes
    for box in plan.parts(engine.n):
        source = x
        if not plan.ends.x_here:
            source = np.full(loaded_size + engine.n, 99, x.dtype)
            _copy(box.loads, x, source)
        if plan.mode == Mode.STORE:
            _copy(box.stores(plan.mode), source, y)
            continue
        target = y if plan.ends.y_here else np.full(permuted_size + engine.n, 98, x.dtype)
        if plan.mode == Mode.COPY:
            _copy(box.permutation(), source, target)
        elif plan.mode in (Mode.TURN, Mode.TURN_PAIRS):
            _turn([(box.permutation(), plan.along)], engine, source, target)
        elif plan.mode == Mode.INTERLEAVE:
            _interleave(box.permutation(), plan.along, engine, source, target)
        else:
            first, second, size = box.twice(plan.along)
            assert size <= between_size
            between = np.full(size, 97, x.dtype)
            _turn(first, engine, source, between)
            _turn(second, engine, between, target)
        if not plan.ends.y_here:
            _copy(box.stores(plan.mode), target, y)


def _random_walk(rng: np.random.Generator) -> Walk:
    """Return a permutation of the dimensions of a tensor, some with repeated elements, as a walk over bytes."""
    shape = [int(rng.choice([1, 2, 3, 5, 8, 12, 17, 33, 64])) for _ in range(int(rng.integers(2, 5)))]
    size = int(rng.choice([1, 1, 2, 4]))
    steps = [int(np.prod(shape[i + 1 :])) * size for i in range(len(shape))]
    dims = [(shape[i], steps[i]) for i in rng.permutation(len(shape))]
    if rng.random() < 0.3:
        dims.insert(int(rng.integers(len(dims) + 1)), (int(rng.integers(2, 4)), 0))
    dims.append((size, 1))
    out, pitch = [], 1
    for count, x in reversed(dims):
        out.append((count, x, pitch))
        pitch *= count
    return Walk(tuple(reversed(out))).merged()


#: Walks that are moved in each way on n16.
WAYS = {
    Mode.STORE: Walk(((50, 640, 1280), (2, 0, 640), (640, 1, 1))),
    Mode.COPY: Walk(((60, 24, 10), (10, 1, 1))),
    Mode.TURN: Walk(((100, 1, 128), (128, 100, 1))),
    Mode.TURN_TWICE: Walk(((1600, 60, 60), (20, 1, 3), (3, 20, 1))),
    Mode.TURN_PAIRS: Walk(((64, 2, 128), (64, 128, 2), (2, 1, 1))),
    Mode.INTERLEAVE: Walk(((90, 100, 100), (50, 1, 2), (2, 50, 1))),
}


@pytest.mark.parametrize("mode", WAYS)
def test_boxes_are_moved_in_the_fastest_way(mode: Mode) -> None:
    engine, walk = engine_of(load_target("n16")), WAYS[mode]
    places = _places(walk)
    x = np.random.default_rng(1).integers(-99, 90, int(places[:, 0].max()) + 1 + engine.n).astype(np.int16)
    wanted, made = (np.zeros(int(places[:, 1].max()) + 1, np.int16) for _ in range(2))
    _copy(walk, x, wanted)
    found = plans(walk, Ends(False, False, False), engine, 8192)
    assert mode in {plan.mode for plan in found}
    for plan in found:
        _move(plan, engine, x, made)
    assert np.array_equal(made, wanted)


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", range(4))
def test_boxes_of_random_permutations_move_every_byte_to_its_place(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for number in range(40):
        engine = engine_of(load_target(str(rng.choice(["n4", "n8", "n16"]))))
        walk = _random_walk(rng)
        if not walk.dims or walk.count > 40_000:
            continue
        places = _places(walk)
        x = rng.integers(-99, 90, int(places[:, 0].max()) + 1 + engine.n).astype(np.int16)
        wanted = np.zeros(int(places[:, 1].max()) + 1, np.int16)
        _copy(walk, x, wanted)
        ends = Ends(bool(rng.random() < 0.3), bool(rng.random() < 0.3), False)
        made = np.zeros_like(wanted)
        found = plans(walk, ends, engine, int(rng.choice([256, 1024, 8192])))
        for plan in found:
            _move(plan, engine, x, made)
        assert not found or np.array_equal(made, wanted), f"seed {seed}, walk {number}: {walk}, {ends}"


def _one(op: str, shape: Shape, out: Shape, dtype: str = "int8", **attributes: object) -> Graph:
    build = GraphBuilder(op)
    quantization = None if dtype == "float32" else Q
    x = build.graph.add_input(Tensor("x", shape, dtype, quantization))
    build.node(op, op, [x], Tensor("y", out, dtype, quantization), **attributes)
    return build.graph.finish(["y"])


def transpose(shape: Shape, perm: Shape, dtype: str = "int8") -> tuple[Graph, Expected]:
    """Return a transposition, and the same in numpy."""
    graph = _one("transpose", shape, tuple(shape[i] for i in perm), dtype, perm=perm)
    return graph, lambda x: x.transpose(perm)


def shuffle(h: int, w: int, c: int, groups: int) -> tuple[Graph, Expected]:
    """Return a channel shuffle, and the same in numpy."""
    split, turned = (1, h, w, groups, c // groups), (1, h, w, c // groups, groups)
    build, perm = GraphBuilder("shuffle"), (0, 1, 2, 4, 3)
    x = build.graph.add_input(Tensor("x", (1, h, w, c), "int8", Q))
    a = build.node("split", "reshape", [x], Tensor("a", split, "int8", Q), shape=split)
    b = build.node("turn", "transpose", [a], Tensor("b", turned, "int8", Q), perm=perm)
    build.node("join", "reshape", [b], Tensor("y", (1, h, w, c), "int8", Q), shape=(1, h, w, c))
    return build.graph.finish(["y"]), lambda x: x.reshape(split).transpose(perm).reshape(1, h, w, c)


def depth_to_space(h: int, w: int, c: int, block: int, order: str) -> tuple[Graph, Expected]:
    """Return blocks of pixels made of channels, and the same in numpy.

    `order` is "dcr" or "crd" for pixels with adjacent channels, "nchw" for planes of channels.
    """
    rest = c // block**2
    if order == "nchw":
        shape, apart, perm = (1, c, h, w), (1, block, block, rest, h, w), (0, 3, 4, 1, 5, 2)
        made = (1, rest, h * block, w * block)
    else:
        dcr = order == "dcr"
        shape, made = (1, h, w, c), (1, h * block, w * block, rest)
        apart = (1, h, w, block, block, rest) if dcr else (1, h, w, rest, block, block)
        perm = (0, 1, 3, 2, 4, 5) if dcr else (0, 1, 4, 2, 5, 3)
    return _reshaped(shape, apart, perm, made)


def space_to_depth(h: int, w: int, c: int, block: int, order: str) -> tuple[Graph, Expected]:
    """Return channels made of blocks of pixels, and the same in numpy; `order` is "nhwc" or "nchw"."""
    rows, columns = h // block, w // block
    if order == "nchw":
        apart, perm = (1, c, rows, block, columns, block), (0, 3, 5, 1, 2, 4)
        return _reshaped((1, c, h, w), apart, perm, (1, c * block**2, rows, columns))
    apart, perm = (1, rows, block, columns, block, c), (0, 1, 3, 2, 4, 5)
    return _reshaped((1, h, w, c), apart, perm, (1, rows, columns, c * block**2))


def _reshaped(shape: Shape, apart: Shape, perm: Shape, made: Shape) -> tuple[Graph, Expected]:
    build, turned = GraphBuilder("blocks"), tuple(apart[i] for i in perm)
    x = build.graph.add_input(Tensor("x", shape, "int8", Q))
    a = build.node("split", "reshape", [x], Tensor("a", apart, "int8", Q), shape=apart)
    b = build.node("turn", "transpose", [a], Tensor("b", turned, "int8", Q), perm=perm)
    build.node("join", "reshape", [b], Tensor("y", made, "int8", Q), shape=made)
    return build.graph.finish(["y"]), lambda x: x.reshape(apart).transpose(perm).reshape(made)


def nearest_to(h: int, w: int, c: int, size: tuple[int, int]) -> tuple[Graph, Expected]:
    """Return a resizing to the nearest pixel, and the same in numpy."""
    graph = _one("resize_nearest", (1, h, w, c), (1, *size, c), size=size, centers=True)
    rows, columns = ((2 * np.arange(n) + 1) * x // (2 * n) for n, x in zip(size, (h, w), strict=True))
    return graph, lambda x: x[:, rows][:, :, columns]


def focus(h: int, w: int, c: int) -> tuple[Graph, Expected]:
    """Return a concatenation of every second pixel of every second row, and the same in numpy."""
    build, sizes = GraphBuilder("focus"), (1, h // 2, w // 2, c)
    x = build.graph.add_input(Tensor("x", (1, h, w, c), "int8", Q))
    starts = [(0, i, j, 0) for j in range(2) for i in range(2)]
    parts = [
        build.node(
            f"part{number}",
            "slice",
            [x],
            Tensor(f"part{number}", sizes, "int8", Q),
            starts=start,
            sizes=sizes,
            steps=(1, 2, 2, 1),
        )
        for number, start in enumerate(starts)
    ]
    build.node("join", "concat", parts, Tensor("y", (*sizes[:3], 4 * c), "int8", Q), axis=3)
    return build.graph.finish(["y"]), lambda x: np.concatenate([x[:, i::2, j::2] for _, i, j, _ in starts], 3)


def roll(shape: Shape, axis: int, by: int) -> tuple[Graph, Expected]:
    """Return a concatenation of two slices, which rotates a tensor along an axis, and the same in numpy."""
    build, start = GraphBuilder("roll"), shape[axis] - by
    x = build.graph.add_input(Tensor("x", shape, "int8", Q))
    parts = []
    for number, (first, size) in enumerate(((start, by), (0, start))):
        sizes = tuple(size if i == axis else n for i, n in enumerate(shape))
        limits = {"starts": tuple(first if i == axis else 0 for i in range(len(shape))), "sizes": sizes}
        part = Tensor(f"part{number}", sizes, "int8", Q)
        parts.append(build.node(part.name, "slice", [x], part, steps=(1,) * len(shape), **limits))
    build.node("join", "concat", parts, Tensor("y", shape, "int8", Q), axis=axis)
    return build.graph.finish(["y"]), lambda x: np.roll(x, by, axis)


def nearest(h: int, w: int, c: int, factor: int) -> tuple[Graph, Expected]:
    """Return an enlargement by an integer factor, and the same in numpy."""
    size = (h * factor, w * factor)
    graph = _one("resize_nearest", (1, h, w, c), (1, *size, c), size=size, centers=False)
    return graph, lambda x: x.repeat(factor, 1).repeat(factor, 2)


def every_second(h: int, w: int, c: int) -> tuple[Graph, Expected]:
    """Return every second channel, and the same in numpy."""
    sizes = (1, h, w, c // 2)
    graph = _one("slice", (1, h, w, c), sizes, starts=(0,) * 4, sizes=sizes, steps=(1, 1, 1, 2))
    return graph, lambda x: x[..., ::2]


def _run(device: Device, graph: Graph, expected: Expected, target: str) -> int:
    """Check a graph on a device with random inputs; return its cycles."""
    network = compile(graph, target, strict=True)
    tensor = graph.tensors["x"]
    x = np.random.default_rng(5).integers(-128, 128, tensor.shape).astype(tensor.dtype)
    outputs, cycles = Session(device, network).measure({"x": x})
    assert np.array_equal(outputs["y"], expected(x))
    return cycles


@pytest.mark.parametrize("target", ["n4", "n8", "n16", "n32"])
@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        transpose((61, 93), (1, 0)),
        transpose((1, 40, 41, 3), (0, 3, 1, 2)),
        transpose((1, 3, 40, 41), (0, 2, 3, 1)),
        transpose((70, 45), (1, 0), "int16"),
        transpose((60, 50), (1, 0), "float32"),
        transpose((1, 30, 41, 20), (0, 3, 1, 2), "int16"),
        transpose((900, 7), (1, 0)),
        transpose((7, 900), (1, 0)),
        transpose((1, 12, 2, 14, 2, 5), (0, 1, 3, 2, 4, 5)),
        shuffle(9, 8, 58, 2),
        shuffle(7, 9, 60, 3),
        nearest(13, 11, 3, 2),
        nearest(9, 7, 20, 3),
        every_second(14, 13, 34),
        shuffle(9, 11, 100, 2),
        shuffle(9, 11, 44, 4),
        depth_to_space(11, 13, 12, 2, "crd"),
        depth_to_space(12, 10, 36, 3, "dcr"),
        depth_to_space(11, 13, 48, 4, "crd"),
        depth_to_space(14, 19, 32, 4, "nchw"),
        space_to_depth(30, 26, 3, 2, "nhwc"),
        space_to_depth(30, 27, 3, 3, "nchw"),
        nearest_to(22, 30, 5, (33, 45)),
        nearest_to(16, 24, 20, (28, 30)),
        focus(26, 30, 3),
        transpose((5, 31, 33), (2, 1, 0)),
        transpose((3, 11, 13, 21), (3, 1, 2, 0)),
        transpose((3, 12, 23), (2, 1, 0), "int16"),
        transpose((5, 7, 9, 3, 11), (1, 2, 4, 0, 3)),
        roll((1, 13, 14, 20), 2, 3),
        roll((1, 13, 14, 20), 1, 6),
    ],
)
def test_moves_equal_numpy(graph: Graph, expected: Expected, target: str) -> None:
    network = compile(graph, target, strict=True)
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        _run(device, graph, expected, target)


#: Graph and expected result, bytes read and written, and minimum share of the cycles that the bus needs for them.
SHARES = (
    (transpose((1, 28, 28, 100), (0, 3, 1, 2)), 2 * 78_400, 0.9),
    (transpose((1, 3, 128, 160), (0, 2, 3, 1)), 2 * 61_440, 0.8),
    (transpose((128, 256), (1, 0), "int16"), 2 * 65_536, 0.92),
    (transpose((200, 150), (1, 0), "int16"), 2 * 60_000, 0.92),
    (transpose((1, 20, 40, 40), (0, 2, 3, 1), "int16"), 2 * 64_000, 0.9),
    (transpose((251, 257), (1, 0)), 2 * 64_507, 0.86),
    (transpose((7, 9000), (1, 0)), 2 * 63_000, 0.82),
    (transpose((9000, 7), (1, 0)), 2 * 63_000, 0.92),
    (transpose((90, 12, 64), (1, 0, 2)), 2 * 69_120, 0.9),
    (transpose((5, 130, 99), (2, 1, 0)), 2 * 64_350, 0.82),
    (transpose((2, 20, 30, 50), (3, 2, 1, 0)), 2 * 60_000, 0.82),
    (transpose((2, 20, 30, 50), (3, 1, 2, 0)), 2 * 60_000, 0.83),
    (transpose((8, 14, 14, 3, 14), (1, 2, 4, 0, 3)), 2 * 65_856, 0.8),
    (roll((1, 56, 56, 96), 2, 3), 2 * 301_056, 0.98),
    (shuffle(14, 14, 464, 4), 2 * 90_944, 0.8),
    (nearest(16, 16, 100, 2), 5 * 25_600, 0.8),
    (shuffle(28, 29, 88, 4), 2 * 71_456, 0.9),
    (shuffle(33, 35, 58, 2), 2 * 66_990, 0.92),
    (shuffle(40, 40, 60, 3), 2 * 96_000, 0.86),
    (space_to_depth(128, 160, 3, 2, "nhwc"), 2 * 61_440, 0.9),
    (space_to_depth(128, 160, 3, 2, "nchw"), 2 * 61_440, 0.89),
    (focus(128, 160, 3), 2 * 61_440, 0.89),
    (depth_to_space(72, 72, 12, 2, "dcr"), 2 * 62_208, 0.88),
    (depth_to_space(72, 72, 12, 2, "crd"), 2 * 62_208, 0.69),
    (depth_to_space(40, 40, 64, 2, "crd"), 2 * 102_400, 0.9),
    (depth_to_space(56, 56, 48, 4, "crd"), 2 * 150_528, 0.8),
    (depth_to_space(66, 65, 16, 4, "nchw"), 2 * 68_640, 0.87),
    (nearest_to(64, 64, 16, (96, 96)), 65_536 + 147_456, 0.96),
    (nearest_to(30, 30, 21, (45, 45)), 18_900 + 42_525, 0.87),
    (nearest_to(40, 40, 18, (70, 90)), 28_800 + 113_400, 0.86),
)


@pytest.mark.parametrize(("case", "moved", "share"), SHARES)
def test_moves_run_at_the_rate_of_the_bus(case: tuple[Graph, Expected], moved: int, share: float) -> None:
    config = load_target("n16")
    with RtlDevice(config, 1 << 22) as device:
        cycles = _run(device, *case, "n16")
    print(f"{case[0].name}: {cycles:,} cycles, {moved / config.n / cycles:.1%} of the bus")
    assert cycles * share <= moved / config.n


def test_shuffles_are_transposed_twice_by_matrix() -> None:
    graph, _ = shuffle(14, 14, 464, 4)
    units = [command.unit for command in commands_of(graph, "n16")]
    assert units.count(Unit.MATRIX) > 20
    assert units.count(Unit.LOAD) < 30, "boxes are loaded as long lines"


def _linear(h: int, w: int, c: int, factor: int) -> onnx.ModelProto:
    scales = numpy_helper.from_array(np.array([1, 1, factor, factor], np.float32), "scales")
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", (1, c, h, w)), ("y", (1, c, h * factor, w * factor)))
    ]
    graph = helper.make_graph([node], "linear", ends[:1], ends[1:], [scales])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize(("size", "share"), [((16, 16, 128, 2), 0.5), ((40, 40, 32, 2), 0.5)])
def test_interpolation_on_the_rtl(tmp_path, size: tuple[int, int, int, int], share: float) -> None:
    path = tmp_path / "linear.onnx"
    onnx.save(_linear(*size), path)
    network = compile(path, "n16")
    x = np.random.default_rng(3).normal(size=network.inputs[0].shape).astype(np.float32)
    with RtlDevice(network.config, dram_bytes(network)) as device:
        outputs, cycles = Session(device, network).measure({"x": x})
    assert network.graph is not None
    wanted = evaluate(network.graph, {"x": x}, rounding="onnxruntime")["y"]
    assert np.array_equal(outputs["y"], wanted)
    moved = x.size * (1 + size[3] ** 2)
    print(f"linear {size}: {cycles:,} cycles, {moved / 16 / cycles:.1%} of the bus")
    assert cycles * share <= moved / 16
