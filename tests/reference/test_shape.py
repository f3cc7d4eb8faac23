"""Operators that move elements on the host equal onnxruntime in any type, and convert between quantizations."""

import numpy as np
import pytest

from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Quantization, Tensor
from compiler.reference import evaluate
from tests.support.onnx_operator import on_host, run

TRIALS = 12
Rng = np.random.Generator


def distinct_values(rng: Rng, *shape: int) -> np.ndarray:
    """Return distinct values of a random type."""
    values = rng.permutation(int(np.prod(shape))).reshape(shape)
    return values.astype(rng.choice(["float32", "int32", "int64"]))


def sizes(rng: Rng, count: int) -> tuple[int, ...]:
    return tuple(int(size) for size in rng.integers(1, 7, count))


def test_transpose(rng: Rng) -> None:
    for _ in range(TRIALS):
        x, perm = distinct_values(rng, *sizes(rng, 4)), tuple(int(axis) for axis in rng.permutation(4))
        want = run("Transpose", x, perm=perm)
        np.testing.assert_array_equal(on_host("transpose", x, makes=want.shape, perm=perm), want)


def test_reshape(rng: Rng) -> None:
    x = distinct_values(rng, 4, 3, 2)
    np.testing.assert_array_equal(on_host("reshape", x, makes=(2, 12), shape=(2, 12)), x.reshape(2, 12))


def test_concat(rng: Rng) -> None:
    for _ in range(TRIALS):
        shape, axis = sizes(rng, 3), int(rng.integers(-3, 3))
        parts = [normal_like(rng, shape, axis) for _ in range(3)]
        want = run("Concat", *parts, axis=axis)
        np.testing.assert_array_equal(on_host("concat", *parts, makes=want.shape, axis=axis), want)


def normal_like(rng: Rng, shape: tuple[int, ...], axis: int) -> np.ndarray:
    """Return random values of the given shape, but with another size along one axis."""
    other = list(shape)
    other[axis] = int(rng.integers(1, 5))
    return rng.normal(size=other).astype(np.float32)


def test_slice(rng: Rng) -> None:
    for _ in range(TRIALS):
        x = distinct_values(rng, *sizes(rng, 3))
        starts = tuple(int(rng.integers(0, size)) for size in x.shape)
        steps = tuple(int(step) for step in rng.choice([-2, -1, 1, 2], 3))
        counts = tuple(
            int(rng.integers(1, 1 + (start if step < 0 else size - 1 - start) // abs(step) + 1))
            for start, step, size in zip(starts, steps, x.shape, strict=True)
        )
        ends = [start + step * count for start, step, count in zip(starts, steps, counts, strict=True)]
        # In ONNX negative ends count from the back; the minimum integer stands for the position before the first
        # element.
        ends = [end if end >= 0 else np.iinfo(np.int64).min for end in ends]
        want = run("Slice", x, *(np.array(part, np.int64) for part in (starts, ends, range(3), steps)))
        got = on_host("slice", x, makes=counts, starts=starts, sizes=counts, steps=steps)
        np.testing.assert_array_equal(got, want)


def test_pad(rng: Rng) -> None:
    for _ in range(TRIALS):
        x, pads = rng.normal(size=sizes(rng, 3)).astype(np.float32), rng.integers(0, 4, (3, 2))
        want = run("Pad", x, pads.T.reshape(-1).astype(np.int64), np.array(2.5, np.float32))
        edges = tuple((int(before), int(after)) for before, after in pads)
        np.testing.assert_array_equal(on_host("pad", x, makes=want.shape, pads=edges, value=2.5), want)


def test_gather(rng: Rng) -> None:
    for _ in range(TRIALS):
        x, axis = distinct_values(rng, *sizes(rng, 3)), int(rng.integers(-3, 3))
        indices = rng.integers(-x.shape[axis], x.shape[axis], sizes(rng, 2))
        want = run("Gather", x, indices, axis=axis)
        np.testing.assert_array_equal(on_host("gather", x, indices, makes=want.shape, axis=axis), want)


@pytest.mark.parametrize("centers", [False, True])
def test_resize_nearest(rng: Rng, centers: bool) -> None:
    """Nearest resizing equals onnxruntime; power-of-two sizes make onnxruntime's float32 positions exact."""
    for _ in range(TRIALS):
        given = tuple(int(2**power) for power in rng.integers(0, 4, 2))
        size = tuple(int(2**power) for power in rng.integers(0, 4, 2))
        x = rng.normal(size=(2, *given, 3)).astype(np.float32)
        mode = ("half_pixel", "round_prefer_ceil") if centers else ("asymmetric", "floor")
        want = run(
            "Resize",
            np.ascontiguousarray(x.transpose(0, 3, 1, 2)),
            None,
            None,
            np.array([2, 3, *size], np.int64),
            mode="nearest",
            coordinate_transformation_mode=mode[0],
            nearest_mode=mode[1],
        ).transpose(0, 2, 3, 1)
        got = on_host("resize_nearest", x, makes=want.shape, size=size, centers=centers)
        np.testing.assert_array_equal(got, want)


def quantized_result(
    op: str, values: np.ndarray, makes: tuple[int, ...], output: Quantization, **attributes: object
) -> np.ndarray:
    """Return the result of an operator from int8 with scale 0.5 and zero point 3 to another quantization."""
    graph = Graph("one")
    graph.add_input(Tensor("x", values.shape, "int8", Quantization.per_tensor(0.5, 3)))
    graph.add_tensor(Tensor("y", makes, "int8", output))
    graph.add_node(Node("n", op, ("x",), ("y",), attributes))
    return evaluate(graph.finish(["y"]), {"x": values})["y"]


def test_moved_elements_are_requantized() -> None:
    x = np.array([[3, 5, -127], [4, 127, -1]], np.int8)  # 0, 1, -65; 0.5, 62, -2
    quarter = Quantization.per_tensor(0.25, -1)
    for op, attributes, want in (
        ("transpose", {"perm": (1, 0)}, [[-1, 1], [3, 127], [-128, -9]]),
        ("reshape", {"shape": (3, 2)}, [[-1, 3], [-128, 1], [127, -9]]),
        ("slice", {"starts": (0, 0), "sizes": (2, 2), "steps": (1, 1)}, [[-1, 3], [1, 127]]),
    ):
        got = quantized_result(op, x, np.shape(want), quarter, **attributes)
        np.testing.assert_array_equal(got, want, op)


@pytest.mark.parametrize(
    ("value", "stored"), [(0.0, 3), (1.0, 5), (-1000.0, -128), (float("-inf"), -128), (float("inf"), 127)]
)
def test_padding_of_quantized_tensors_is_a_float_value(value: float, stored: int) -> None:
    x = np.full((1, 1), 7, np.int8)
    got = quantized_result(
        "pad", x, (1, 2), Quantization.per_tensor(0.5, 3), pads=((0, 0), (0, 1)), value=value
    )
    np.testing.assert_array_equal(got, [[7, stored]])
