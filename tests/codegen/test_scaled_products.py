"""Products whose weights have a factor for each block of inputs and output run with scaled sums, exactly."""

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.api import compile
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization, Tensor
from compiler.runtime.session import Session, dram_bytes
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from hw.isa.commands import MATRIX_WORD
from hw.isa.enums import Unit
from tests.layers.test_moves import commands_of
from tests.support.graphs import Draft, check, run_on


def product(
    draft: Draft,
    x: Tensor,
    outputs: int,
    block: int,
    *,
    low: int = -8,
    high: int = 7,
    bias: bool = True,
    dtype: str = "int8",
) -> Tensor:
    """Add a product with random integer weights and factors; about one standard deviation is 40 units of the result."""
    rng, graph, inputs = draft.rng, draft.graph, x.shape[-1]
    draft.count += 1
    name, blocks = f"p{draft.count}", math.ceil(inputs / block)
    scales = tuple(float(np.float32(each)) for each in rng.uniform(1e-4, 2e-4, outputs))
    values = rng.integers(low, high + 1, (outputs, inputs)).astype(np.int8)
    factors = rng.integers(1, 256, (outputs, blocks)).astype(np.uint8)
    operands = [
        x,
        graph.add_tensor(
            Tensor(f"{name}.w", values.shape, "int8", Quantization(scales, (0,) * outputs, 0), values)
        ),
        graph.add_tensor(Tensor(f"{name}.f", factors.shape, "uint8", data=factors)),
    ]
    if bias:
        assert x.quantization is not None
        product_scales = tuple(float(np.float32(x.quantization.scale[0] * each)) for each in scales)
        data = rng.integers(-200_000, 200_000, outputs).astype(np.int32)
        meaning = Quantization(product_scales, (0,) * outputs, 0)
        operands.append(graph.add_tensor(Tensor(f"{name}.b", (outputs,), "int32", meaning, data)))
    assert x.quantization is not None
    spread = (high - low) * 0.3 * 75 * 150 * inputs**0.5 * 1.5e-4 * x.quantization.scale[0]
    return draft.node(
        "block_dense", operands, (*x.shape[:-1], outputs), scale=spread / 40, dtype=dtype, block=block
    )


def computed(graph: Graph, inputs: dict[str, NDArray]) -> dict[str, NDArray]:
    """Compute a graph of products in integers, block by block, with LiteRT's rounding of dense layers."""
    found = dict(inputs)
    for node in graph:
        x, weights, factors, *bias = graph.ins(node)
        y, block = graph.out(node), node.attributes["block"]
        assert x.quantization and weights.quantization and y.quantization
        assert weights.data is not None and factors.data is not None
        centred = found[x.name].astype(np.int64) - x.quantization.zero_point[0]
        sums = np.zeros(y.shape, np.int64)
        for number, start in enumerate(range(0, x.shape[-1], block)):
            part = slice(start, start + block)
            each = centred[..., part] @ weights.data[:, part].astype(np.int64).T
            sums += each * factors.data[:, number].astype(np.int64)
        if bias and bias[0].data is not None:
            sums += bias[0].data
        assert np.abs(sums).max() < 1 << 31
        result = np.zeros(y.shape, np.int64)
        for channel, scale in enumerate(weights.quantization.scale):
            mantissa, exponent = math.frexp(x.quantization.scale[0] * scale / y.quantization.scale[0])
            exact, shift = sums[..., channel] * math.floor(mantissa * 2**31 + 0.5), 31 - exponent
            rounded = (np.abs(exact) + (1 << (shift - 1))) >> shift
            result[..., channel] = np.sign(exact) * rounded + y.quantization.zero_point[0]
        limits = np.iinfo(y.dtype)
        found[y.name] = np.clip(result, limits.min, limits.max).astype(y.dtype)
    return {name: found[name] for name in graph.outputs}


def modes(graph: Graph, target: str) -> set[tuple[int, int]]:
    """Return the fields `wide` and `scaled` of the MATRIX commands."""
    commands = [command for command in commands_of(graph, target) if command.unit == Unit.MATRIX]
    words = [
        MATRIX_WORD.unpack(word) for command in commands if isinstance(word := command.fields["word"], int)
    ]
    return {(word["wide"], word["scaled"]) for word in words}


def random_graph(draft: Draft, n: int, *, int4: bool = False) -> Graph:
    """Return a chain of products with random sizes, blocks, ranges of weights and types.

    With `int4`, weights are int4, and inputs and blocks are multiples of 2N.
    """
    rng, step = draft.rng, 2 * n if int4 else n
    rows, inputs = int(rng.integers(1, 40)), int(rng.integers(1, 6)) * step
    if not int4:
        inputs -= int(rng.integers(0, n))
    shape = (rows, inputs) if rng.random() < 0.7 else (2, rows, inputs)
    x = draft.input(shape, str(rng.choice(("int8", "uint8"))))
    for _ in range(int(rng.integers(1, 4))):
        low, high = (-8, 7) if int4 else ((-8, 8), (-127, 127))[int(rng.integers(0, 2))]
        x = product(
            draft,
            x,
            int(rng.integers(1, 6)) * 2 * n if int4 else int(rng.integers(1, 6 * n)),
            int(rng.integers(1, 4)) * step,
            low=low,
            high=high,
            bias=bool(rng.random() < 0.5),
            dtype=str(rng.choice(("int8", "uint8"))),
        )
    return draft.graph.finish([x.name])


@pytest.mark.parametrize("target", ["n4", "n8", "n16", "n32"])
def test_random_networks_are_exact(target: str, rng: np.random.Generator) -> None:
    config, used = load_target(target), set[tuple[int, int]]()
    for case in range(12):
        draft = Draft(rng)
        graph = random_graph(draft, config.n, int4=case % 2 == 0)
        network, inputs = compile(graph, config), draft.random_inputs()
        wanted = computed(graph, inputs)
        found = run_on(GoldenDevice(config, dram_bytes(network)), network, inputs)
        assert all(np.array_equal(array, wanted[name]) for name, array in found.items())
        used |= modes(graph, target)
    assert used == {(0, 1), (1, 1)}


@pytest.mark.parametrize("target", ["n4", "n16"])
@pytest.mark.parametrize("rounding", ["reference", "xnnpack", "onnxruntime"])
@pytest.mark.parametrize("after", ["clip", "tanh", "add", "sum of products", "concat", "int16"])
def test_epilogues_and_roundings(after: str, rounding: str, target: str, rng: np.random.Generator) -> None:
    """Operators that are part of the layer, results that are part of another tensor, and results of 16 bits."""
    draft, n = Draft(rng), load_target(target).n
    size = int(rng.integers(1, 4)) * 2 * n
    x = draft.input((int(rng.integers(1, 30)), size))
    y = product(draft, x, size, 2 * n, dtype="int16" if after == "int16" else "int8")
    if after == "clip":
        y = draft.node("clip", [y], y.shape, like=y, low=0.0, high=3.0)
    elif after == "tanh":
        y = draft.node("tanh", [y], y.shape, scale=1 / 128)
    elif after == "add":
        y = draft.node("add", [y, x], y.shape, scale=0.5)
    elif after == "sum of products":
        y = draft.node("add", [y, product(draft, x, size, n)], y.shape, scale=0.5)
    elif after == "concat":
        other = draft.input(y.shape)
        other = replace(other, quantization=y.quantization)
        draft.graph.tensors[other.name] = other
        y = draft.node("concat", [other, y], (y.shape[0], 2 * size), like=y, axis=1)
    assert not check(draft, [y], target, rounding).host


def one(draft: Draft, rows: int, depth: int, columns: int, block: int, low: int = -8, high: int = 7) -> Graph:
    """Return a graph of one product."""
    made = product(draft, draft.input((rows, depth)), columns, block, low=low, high=high)
    return draft.graph.finish([made.name])


@pytest.mark.parametrize(
    ("block", "high", "wide"),
    [(32, 7, 1), (64, 7, 1), (128, 7, 1), (16, 7, 0), (48, 7, 0), (32, 8, 0)],
    ids=["a tile", "two tiles", "all", "half a tile", "one and a half", "not int4"],
)
def test_blocks_of_whole_tiles_of_int4_are_wide(block: int, high: int, wide: int) -> None:
    assert modes(one(Draft(np.random.default_rng(0)), 20, 128, 64, block, high=high), "n16") == {(wide, 1)}


@pytest.mark.parametrize(
    ("changes", "block", "high", "why"),
    [
        ({"wide": 0, "sparse": 0}, 32, 7, "wide is 0"),
        ({}, 24, 7, "scales for blocks of 24 inputs, not of a multiple of 16"),
        ({}, 32, 127, "may exceed 32 bits"),
    ],
    ids=["no scaled sums", "other blocks", "large sums"],
)
def test_other_products_run_on_the_host(changes: dict[str, int], block: int, high: int, why: str) -> None:
    draft = Draft(np.random.default_rng(0))
    graph = one(draft, 3, 2048 if high > 7 else 96, 32, block, low=high - 15, high=high)
    config = replace(load_target("n16"), **changes)
    network, inputs = compile(graph, config), draft.random_inputs()
    assert why in " ".join(each.reason for each in network.host)
    found = run_on(GoldenDevice(config, dram_bytes(network)), network, inputs)
    if high == 7:
        assert all(np.array_equal(array, computed(graph, inputs)[name]) for name, array in found.items())


@pytest.mark.parametrize("target", ["n4", "n8"])
def test_rtl_is_exact(target: str, rng: np.random.Generator) -> None:
    for case in range(3):
        draft = Draft(rng)
        graph = random_graph(draft, load_target(target).n, int4=case > 0)
        network, inputs = compile(graph, target), draft.random_inputs()
        with RtlDevice(network.config, dram_bytes(network)) as device:
            found = run_on(device, network, inputs)
        assert all(np.array_equal(array, computed(graph, inputs)[name]) for name, array in found.items())


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "ceiling"), [(128, 512, 256, 35_000), (1, 1024, 512, 19_000)]
)
def test_cycles(rows: int, depth: int, columns: int, ceiling: int) -> None:
    """With int4 and factors for blocks of 32, the array of n16 needs 32,768 cycles for the first product, and the bus
    17,408 for the second.
    """
    draft = Draft(np.random.default_rng(0))
    graph = one(draft, rows, depth, columns, 32)
    network, inputs = compile(graph, "n16"), draft.random_inputs()
    with RtlDevice(network.config, dram_bytes(network)) as device:
        outputs, cycles = Session(device, network).measure(inputs)
    assert all(np.array_equal(array, computed(graph, inputs)[name]) for name, array in outputs.items())
    print(f"{rows} x {depth} x {columns}: {cycles:,} cycles")
    assert cycles <= ceiling
