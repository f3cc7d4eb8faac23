"""Quantized ONNX operators of random shapes run entirely on the accelerator and agree with onnxruntime."""

from pathlib import Path

import numpy as np
import pytest

from compiler.api import compile
from tests.support.onnx_models import model, read, reference
from tests.support.onnx_qdq import Qdq, integers

Rng = np.random.Generator
SEEDS = range(5)


def same(folder: Path, build: Qdq, *shapes: tuple[int, ...], within: int, opset: int = 19) -> None:
    """Compile for the accelerator and compare with onnxruntime."""
    inputs = {
        name: integers(*shape, dtype=build.dtype, seed=i)
        for i, (name, shape) in enumerate(zip("abc", shapes, strict=False))
    }
    made = model(build.nodes, inputs, ["y"], build.held, opset)
    network = compile(read(folder, made), "n8", rounding="onnxruntime", strict=True)
    assert not network.host
    wanted = reference(made, inputs)["y"].astype(int)
    off = np.abs(network(**inputs)["y"].astype(int) - wanted)
    assert off.max() <= within, f"{[n.op_type for n in build.nodes]} {shapes}: {off.max()} off"


def image(rng: Rng, least: int = 6) -> tuple[int, ...]:
    """Return the shape of a small image."""
    return (int(rng.integers(1, 3)), int(rng.integers(1, 12)), *(int(n) for n in rng.integers(least, 14, 2)))


def pairs(rng: Rng, low: int, high: int) -> list[int]:
    """Return two random integers in low..high - 1."""
    return [int(n) for n in rng.integers(low, high, 2)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("padded", [False, True])
def test_max_pool_with_dilations(tmp_path: Path, seed: int, padded: bool) -> None:
    rng, build = np.random.default_rng(seed), Qdq("uint8" if seed % 2 else "int8")
    kernel, dilations = pairs(rng, 2, 4), pairs(rng, 1, 4)
    dilations[seed % 2] = max(dilations[seed % 2], 2)
    pads = [int(rng.integers(0, k)) for k in kernel] * 2 if padded else [0] * 4
    pooled = build.add(
        "MaxPool",
        build.real("a"),
        "p",
        kernel_shape=kernel,
        dilations=dilations,
        pads=pads,
        strides=pairs(rng, 1, 4),
    )
    build.quantized(pooled, 0.05, 3)
    same(tmp_path, build, image(rng, 8), within=0)


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scale", [0.05, 2**-4])
@pytest.mark.parametrize("mode", ["half_pixel", "asymmetric", "align_corners"])
def test_linear_resize(tmp_path: Path, seed: int, mode: str, scale: float) -> None:
    rng, build = np.random.default_rng(seed), Qdq("uint8" if seed % 2 else "int8")
    shape, factor = image(rng), int(rng.choice([2, 4]))
    size = [factor * n for n in shape[2:]]
    if mode == "align_corners":
        shape = (*shape[:2], *(n + 1 for n in shape[2:]))
        size = [n + 1 for n in size]
    build.held |= {"empty": np.array([], np.float32), "size": np.array([*shape[:2], *size])}
    made = build.add(
        "Resize",
        f"{build.real('a', scale, 3)} empty empty size",
        "p",
        mode="linear",
        coordinate_transformation_mode=mode,
    )
    build.quantized(made, scale, 3)
    # With other scales, rounding errors of float32 decide ties.
    same(tmp_path, build, shape, within=int(scale == 0.05))


@pytest.mark.parametrize("mode", ["half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize(
    ("shape", "size"),
    [((12, 10), (36, 30)), ((12, 10), (18, 25)), ((20, 16), (15, 12)), ((13, 11), (26, 21))],
)
def test_linear_resize_by_other_factors(
    tmp_path: Path, mode: str, shape: tuple[int, int], size: tuple[int, int]
) -> None:
    """Positions are those of exact arithmetic; few values are next to a tie that float32 decides otherwise."""
    build, x = Qdq("int8"), integers(1, 20, *shape, dtype="int8")
    build.held |= {"empty": np.array([], np.float32), "size": np.array([1, 20, *size])}
    ends = f"{build.real('a', 0.05, 3)} empty empty size"
    made = build.add("Resize", ends, "p", mode="linear", coordinate_transformation_mode=mode)
    build.quantized(made, 0.05, 3)
    whole = model(build.nodes, {"a": x}, ["y"], build.held, 19)
    network = compile(read(tmp_path, whole), "n16", rounding="onnxruntime", strict=True)
    off = np.abs(network(a=x)["y"].astype(int) - reference(whole, {"a": x})["y"])
    print(f"{mode}, {shape} to {size}: {np.mean(off > 0):.2%} of the values differ")
    assert off.max() <= 1 and np.mean(off > 0) < 0.04


@pytest.mark.parametrize(("mode", "most"), [("half_pixel", 0.025), ("asymmetric", 0.08)])
@pytest.mark.parametrize("scale", [0.05, 0.0173])
@pytest.mark.parametrize("zero", [3, 128])
def test_ties_of_linear_resize(tmp_path: Path, mode: str, most: float, scale: float, zero: int) -> None:
    build, x = Qdq("uint8"), integers(1, 3, 40, 40, dtype="uint8")
    build.held |= {"empty": np.array([], np.float32), "size": np.array([1, 3, 80, 80])}
    ends = f"{build.real('a', scale, zero)} empty empty size"
    made = build.add("Resize", ends, "p", mode="linear", coordinate_transformation_mode=mode)
    build.quantized(made, scale, zero)
    whole = model(build.nodes, {"a": x}, ["y"], build.held, 19)
    network = compile(read(tmp_path, whole), "n16", rounding="onnxruntime", strict=True)
    share = np.mean(network(a=x)["y"] != reference(whole, {"a": x})["y"])
    print(f"{mode}, scale {scale}, zero point {zero}: {share:.1%} of the values differ")
    assert share < most


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap", "constant"])
def test_pad(tmp_path: Path, seed: int, mode: str) -> None:
    rng, build = np.random.default_rng(seed), Qdq()
    shape = image(rng)
    build.held["pads"] = np.array([rng.integers(n > 2, n) for n in shape] * 2)
    build.quantized(build.add("Pad", f"{build.real('a')} pads", "p", mode=mode), 0.05, 3)
    same(tmp_path, build, shape, within=0)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("op", ["Max", "Min"])
def test_min_and_max_of_several_operands(tmp_path: Path, seed: int, op: str) -> None:
    rng, build = np.random.default_rng(seed), Qdq("uint8" if seed % 2 else "int8")
    whole = tuple(int(n) for n in rng.integers(2, 9, rng.integers(1, 5)))
    shapes = [
        whole,
        *(tuple(1 if rng.random() < 0.4 else n for n in whole) for _ in range(int(rng.integers(1, 3)))),
    ]
    shapes[1] = shapes[1][int(rng.integers(len(whole))) :]
    names = [build.real(name, 0.05 + 0.01 * i * (seed % 3), 3) for i, name in enumerate("abc"[: len(shapes)])]
    build.quantized(build.add(op, " ".join(names), "m"), 0.06, 4)
    same(tmp_path, build, *shapes, within=0)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("op", ["Max", "Min"])
def test_min_and_max_with_a_constant_per_channel(tmp_path: Path, seed: int, op: str) -> None:
    rng, build = np.random.default_rng(seed), Qdq()
    shape = image(rng)
    limits = build.weights("w", integers(shape[1], 1, 1, seed=seed), 0.04)
    build.quantized(build.add(op, f"{build.real('a')} {limits}", "m"), 0.05, 3)
    same(tmp_path, build, shape, within=0)


@pytest.mark.parametrize("seed", SEEDS)
def test_prelu(tmp_path: Path, seed: int) -> None:
    rng, build = np.random.default_rng(seed), Qdq()
    shape = image(rng, 3)
    slopes = tuple(1 if rng.random() < 0.3 else n for n in shape[int(rng.integers(3)) :])
    held = build.weights("w", integers(*slopes, seed=seed), 0.01)
    build.quantized(build.add("PRelu", f"{build.real('a')} {held}", "p"), 0.0613, -9)
    same(tmp_path, build, shape, within=1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
def test_broadcast_operands(tmp_path: Path, seed: int, op: str) -> None:
    rng, build = np.random.default_rng(seed), Qdq()
    shape = image(rng, 2)
    other = tuple(1 if rng.random() < 0.5 else n for n in shape[int(rng.integers(3)) :])
    names = [build.real("a", 0.05, 3), build.real("b", 0.03, -8)]
    build.quantized(build.add(op, " ".join(names[:: 1 if seed % 2 else -1]), "s"), 0.09, 2)
    same(tmp_path, build, shape, other, within=1)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("counted", [0, 1])
def test_average_pool_into_another_scale(tmp_path: Path, seed: int, counted: int) -> None:
    rng, build = np.random.default_rng(seed), Qdq("uint8" if seed % 2 else "int8")
    kernel = pairs(rng, 2, 5)
    pads = [int(rng.integers(0, k)) for k in kernel * 2]
    pooled = build.add(
        "AveragePool",
        build.real("a", 0.0513, 9),
        "p",
        kernel_shape=kernel,
        pads=pads,
        strides=pairs(rng, 1, 4),
        count_include_pad=counted,
    )
    build.quantized(pooled, float(rng.uniform(0.02, 0.09)), 5)
    same(tmp_path, build, image(rng), within=1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("op", ["Expand", "Tile"])
def test_repeated_elements(tmp_path: Path, seed: int, op: str) -> None:
    rng, build = np.random.default_rng(seed), Qdq()
    whole = tuple(int(n) for n in rng.integers(2, 9, 3))
    shape = tuple(1 if rng.random() < 0.5 else n for n in whole)[
        int(rng.integers(2)) if op == "Expand" else 0 :
    ]
    build.held["times"] = np.array(whole) if op == "Expand" else rng.integers(1, 4, 3)
    moved = build.add(op, f"{build.real('a')} times", "m")
    build.quantized(build.add("Sigmoid", moved, "s"), 1 / 256, -128)
    same(tmp_path, build, shape, within=1)
